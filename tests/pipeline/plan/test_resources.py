"""Tests that the resources of jobs follow from the sizes in the config."""

import pytest

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern.models.config import DraftConfig, draft_parameters, target_parameters
from lantern_models.sizes import chameleon_draft
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.plan.resources import JobSizes, draft_sizes, growing

DEFAULT = load_config([ROOT / "config.yaml"])


def overlaid(*names):
    return load_config([ROOT / "config.yaml", *(ROOT / "experiments" / f"{name}.yaml" for name in names)])


def job_sizes(config, has_gpu):
    return JobSizes(config, card_of(config), has_gpu)


def test_every_attempt_asks_for_twice_as_much():
    assert [growing(500)(None, attempt) for attempt in (1, 2, 3)] == [500, 1000, 2000]
    assert [growing(500, 700)(None, attempt) for attempt in (1, 2, 3)] == [500, 700, 700]
    assert growing(900, 700)(None, 2) == 900  # the request of the first attempt is repeated


def test_repeated_attempts_stay_within_two_days():
    minutes = job_sizes(typed_config(overlaid("lumina_mgpt")), True).decoding_minutes(600, 1)
    assert [minutes(None, attempt) for attempt in (1, 2, 3)] == [2117, 2880, 2880]


def test_the_embedded_world_asks_for_little():
    sizes = job_sizes(typed_config(DEFAULT), has_gpu=False)
    assert sizes.decoding_mb()(None, 1) == 2000 and sizes.training_mb()(None, 1) == 3000
    assert sizes.decoding_minutes(10**6, 1)(None, 1) == 60  # its forwards are not a published model's


def test_a_published_target_is_held_once_in_the_runs_number_format():
    """822 million parameters of 2 bytes, read from a mapped file, and 1 GiB of noise."""
    config = overlaid("llamagen_stage1")
    on_cpu, on_gpu = (job_sizes(typed_config(config), has_gpu=gpu).decoding_mb()(None, 1) for gpu in (False, True))
    assert 3.5 * 1024 < on_cpu < 4.5 * 1024 and on_gpu == on_cpu + 3000
    config["generation"]["dtype"] = "float32"
    assert job_sizes(typed_config(config), has_gpu=False).decoding_mb()(None, 1) > on_cpu + 1500
    assert job_sizes(typed_config(config), has_gpu=True).scoring_mb(1000)(None, 2) > 2 * on_gpu


def test_time_follows_images_tokens_and_batch():
    stage_1, stage_2 = (
        job_sizes(typed_config(overlaid("llamagen_stage1")), True),
        job_sizes(typed_config(overlaid("llamagen_stage1", "llamagen_stage2")), True),
    )
    assert stage_1.decoding_minutes(1600, 16)(None, 1) == 60  # 39 minutes by its tokens, but never below the first
    long = stage_1.decoding_minutes(16000, 16)(None, 1)
    assert long == 384 and stage_1.decoding_minutes(16000, 8)(None, 1) == 2 * long
    assert stage_1.scoring_minutes(18 * 5000)(None, 1) == 231 and stage_1.scoring_minutes(100)(None, 2) == 240
    assert stage_1.images_of("coco", 16) == 313 and stage_2.images_of("coco") == 5000


def test_a_published_target_of_classes_is_as_large_as_one_of_captions():
    minutes = job_sizes(typed_config(overlaid("llamagen_c2i")), True).decoding_minutes(10**6, 1)(None, 1)
    assert minutes > 10 * job_sizes(typed_config(DEFAULT), True).decoding_minutes(10**6, 1)(None, 1)


def test_a_target_of_seven_billion_parameters_is_never_held_in_float32():
    """The bfloat16 weights of Anole and Janus-Pro-7B take 14 GB, the drafter's table of ids 0.5 GB."""
    janus = overlaid("janus_pro")
    janus["target"] |= {"dim": 4096, "num_layers": 30, "num_heads": 32, "ffn_width": 11008}
    cases = [(overlaid("anole"), 6.81, 0.538), (overlaid("lumina_mgpt"), 6.81, 0.538), (janus, 6.64, 0.303)]
    emu3 = job_sizes(typed_config(overlaid("emu3")), has_gpu=False)
    assert target_parameters(emu3.sizes) / 1e9 == pytest.approx(8.00, abs=0.01)
    for config, num_target, num_drafter in cases:
        sizes = job_sizes(typed_config(config), has_gpu=False)
        assert target_parameters(sizes.sizes) / 1e9 == pytest.approx(num_target, abs=0.01)
        assert draft_parameters(sizes.drafter) / 1e9 == pytest.approx(num_drafter, abs=0.001)
        assert 15_000 < sizes.decoding_mb()(None, 1) < 20_000 and sizes.converting_mb()(None, 1) < 25_000


def test_images_of_a_prompt_set_are_its_prompts_times_their_copies_in_equal_shards():
    config = {
        **DEFAULT,
        "prompts": {
            "few": {"file": "f.txt", "num": 10, "copies": 4},
            "whole": {"file": "f.txt"},
            "one": {"file": "f.txt", "num": 7},
        },
    }
    sizes = job_sizes(typed_config(config), has_gpu=False)
    found = [sizes.images_of(name, shards) for name, shards in (("few", 1), ("few", 3), ("whole", 1), ("one", 1))]
    assert found == [40, 14, 5000, 7]


MEGABYTES = {
    # weights of 3.9 million parameters and the process
    ("default", True): (4367, 4330, 4320, 4322),
    # 778 million parameters of the target, 45 million of the drafter; logits are counted where there is no GPU
    ("llamagen_stage1", False): (4019, 6112, 3768, 5304),
    ("llamagen_stage1", True): (7019, 7501, 6768, 8304),
    # 6,812 million and 538 million; noise of an image is held to 2^25 bytes
    ("lumina_mgpt", False): (16538, 32848, 23351, 39310),
    ("lumina_mgpt", True): (19538, 32626, 26351, 42310),
}


@pytest.mark.parametrize(("name", "has_gpu"), MEGABYTES)
def test_memory_is_that_of_models_noise_and_logits(name, has_gpu):
    sizes = job_sizes(typed_config(DEFAULT if name == "default" else overlaid(name)), has_gpu)
    jobs = (sizes.decoding_mb(), sizes.scoring_mb(), sizes.converting_mb(), sizes.training_mb())
    assert tuple(job(None, 1) for job in jobs) == MEGABYTES[name, has_gpu]
    assert (sizes.decoding_mb(500)(None, 1), sizes.scoring_mb(500)(None, 1)) == (
        MEGABYTES[name, has_gpu][0] + 500,
        MEGABYTES[name, has_gpu][1] + 500,
    )


def test_small_models_ask_for_a_floor():
    sizes = job_sizes(typed_config(DEFAULT), has_gpu=False)
    jobs = (sizes.decoding_mb(), sizes.scoring_mb(), sizes.converting_mb(), sizes.training_mb())
    assert [job(None, 1) for job in jobs] == [2000, 3000, 2000, 3000]


def test_logits_are_those_of_16_images_while_they_are_few():
    config = overlaid("llamagen_stage1")
    on_cpu, on_gpu = (job_sizes(typed_config(config), has_gpu=gpu).scoring_mb()(None, 1) for gpu in (False, True))
    assert on_cpu - (on_gpu - 3000) == 1611  # six arrays of 16 x 256 x 16384 float32 numbers


def test_a_drafter_trained_beside_a_bfloat16_target_holds_it_in_two_bytes():
    found = job_sizes(typed_config(overlaid("llamagen_stage1", "llamagen_drafter")), has_gpu=False).training_mb()(
        None, 1
    )
    assert found == 3659 == MEGABYTES["llamagen_stage1", False][3] - 2 * 822.5


def test_a_trained_target_asks_for_its_own_weights_gradients_and_moments():
    """16 bytes for each of 778 million parameters. None of its drafter is in memory."""
    sizes = job_sizes(typed_config(overlaid("llamagen_stage1")), has_gpu=False)
    assert sizes.target_training_mb()(None, 1) == 1300 + 12447
    assert job_sizes(typed_config(DEFAULT), has_gpu=False).target_training_mb()(None, 1) == 3000


def test_scoring_holds_the_target_twice_and_the_drafter_once():
    sizes = job_sizes(typed_config(overlaid("lumina_mgpt")), has_gpu=True)
    weights = 2 * (2 * target_parameters(sizes.sizes) + sizes.num_drafter) / 1e6
    assert sizes.scoring_mb()(None, 1) == pytest.approx(4300 + weights, abs=1)


def test_no_first_attempt_is_doubled_beyond_the_largest_partition():
    sizes = job_sizes(typed_config(overlaid("lumina_mgpt")), has_gpu=True)
    assert [sizes.training_mb()(None, attempt) for attempt in (1, 2, 3)] == [42310, 84620, 128000]


def test_only_the_published_drafters_of_chameleons_see_the_prompts_ids():
    """A draft model that was trained here, and LlamaGen's published one, have other layouts."""
    own, llamagen = overlaid("lumina_mgpt"), overlaid("llamagen_stage1")
    own["drafter"]["checkpoint"] = None
    for config, make in (
        (own, DraftConfig.of),
        (llamagen, DraftConfig.of),
        (overlaid("lumina_mgpt"), chameleon_draft),
    ):
        target = card_of(typed_config(config)).target_config()
        assert draft_sizes(typed_config(config), target) == make(target)
