"""What jobs ask for follows from the config's sizes."""

import subprocess
import sys

import pytest

from conftest import ROOT, load_config
from lantern.models.config import draft_parameters, target_parameters
from lantern_pipeline.config.resources import JobSizes, growing

DEFAULT = load_config([ROOT / "config.yaml"])


def overlaid(*names):
    return load_config([ROOT / "config.yaml", *(ROOT / "experiments" / f"{name}.yaml" for name in names)])


def test_every_attempt_asks_for_twice_as_much():
    assert [growing(500)(None, attempt) for attempt in (1, 2, 3)] == [500, 1000, 2000]
    assert [growing(500, 700)(None, attempt) for attempt in (1, 2, 3)] == [500, 700, 700]
    assert growing(900, 700)(None, 2) == 900  # what the first attempt needs is asked for again


def test_repeated_attempts_stay_within_two_days():
    minutes = JobSizes(overlaid("lumina_mgpt"), True).decoding_minutes(600, 1)
    assert [minutes(None, attempt) for attempt in (1, 2, 3)] == [2117, 2880, 2880]


def test_the_embedded_world_asks_for_little():
    sizes = JobSizes(DEFAULT, has_gpu=False)
    assert sizes.decoding_mb()(None, 1) == 2000 and sizes.training_mb()(None, 1) == 3000
    assert sizes.decoding_minutes(10**6, 1)(None, 1) == 60  # its forwards are not a published model's


def test_a_published_target_is_held_once_in_the_runs_number_format():
    """822 million parameters of 2 bytes, read from a mapped file, and 1 GiB of noise."""
    config = overlaid("llamagen_stage1")
    on_cpu, on_gpu = (JobSizes(config, has_gpu=gpu).decoding_mb()(None, 1) for gpu in (False, True))
    assert 3.5 * 1024 < on_cpu < 4.5 * 1024 and on_gpu == on_cpu + 3000
    config["generation"]["dtype"] = "float32"
    assert JobSizes(config, has_gpu=False).decoding_mb()(None, 1) > on_cpu + 1500
    assert JobSizes(config, has_gpu=True).scoring_mb(1000)(None, 2) > 2 * on_gpu


def test_time_follows_images_tokens_and_batch():
    stage_1, stage_2 = (
        JobSizes(overlaid("llamagen_stage1"), True),
        JobSizes(overlaid("llamagen_stage1", "llamagen_stage2"), True),
    )
    assert stage_1.decoding_minutes(1600, 16)(None, 1) == 60  # 39 minutes by its tokens, but never below the first
    long = stage_1.decoding_minutes(16000, 16)(None, 1)
    assert long == 384 and stage_1.decoding_minutes(16000, 8)(None, 1) == 2 * long
    assert stage_1.scoring_minutes(18 * 5000)(None, 1) == 231 and stage_1.scoring_minutes(100)(None, 2) == 240
    assert stage_1.images_of("coco", 16) == 313 and stage_2.images_of("coco") == 5000


def test_a_published_target_of_classes_is_as_large_as_one_of_captions():
    minutes = JobSizes(overlaid("llamagen_c2i"), True).decoding_minutes(10**6, 1)(None, 1)
    assert minutes > 10 * JobSizes(DEFAULT, True).decoding_minutes(10**6, 1)(None, 1)


def test_a_target_of_seven_billion_parameters_is_never_held_in_float32():
    """Anole's and Janus-Pro-7B's weights in bfloat16 are 14 GB; the drafter's table of ids 0.5."""
    janus = overlaid("janus_pro")
    janus["target"] |= {"dim": 4096, "num_layers": 30, "num_heads": 32, "ffn_width": 11008}
    cases = [(overlaid("anole"), 6.81, 0.538), (overlaid("lumina_mgpt"), 6.81, 0.538), (janus, 6.64, 0.303)]
    emu3 = JobSizes(overlaid("emu3"), has_gpu=False)
    assert target_parameters(emu3.sizes) / 1e9 == pytest.approx(8.00, abs=0.01)
    for config, num_target, num_drafter in cases:
        sizes = JobSizes(config, has_gpu=False)
        assert target_parameters(sizes.sizes) / 1e9 == pytest.approx(num_target, abs=0.01)
        assert draft_parameters(sizes.drafter) / 1e9 == pytest.approx(num_drafter, abs=0.001)
        assert 15_000 < sizes.decoding_mb()(None, 1) < 20_000 and sizes.converting_mb()(None, 1) < 25_000


def test_no_torch_is_imported_while_the_workflow_is_read():
    command = "import sys, lantern_pipeline.config.resources; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], cwd=ROOT).returncode == 0
