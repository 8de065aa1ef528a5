"""What jobs ask for follows from the config's sizes."""

import copy
import subprocess
import sys

from snakemake.utils import update_config

from conftest import DATA
from lantern.config import load_yaml
from lantern.job_resources import JobSizes, growing

ROOT = DATA.parents[1]
DEFAULT = load_yaml(ROOT / "config.yaml")


def overlaid(*names):
    config = copy.deepcopy(DEFAULT)
    for name in names:
        update_config(config, load_yaml(ROOT / "experiments" / f"{name}.yaml"))
    return config


def test_every_attempt_asks_for_twice_as_much():
    assert [growing(500)(None, attempt) for attempt in (1, 2, 3)] == [500, 1000, 2000]


def test_the_embedded_world_asks_for_little():
    sizes = JobSizes(DEFAULT, has_gpu=False)
    assert sizes.decoding_mb()(None, 1) == 2000 and sizes.training_mb()(None, 1) == 3000
    assert sizes.decoding_minutes(10**6, 1)(None, 1) == 60  # its forwards are not a published model's


def test_a_published_target_is_held_in_the_files_format_and_its_own():
    """822 million parameters, 6 bytes each while float32 becomes bfloat16; 6.34 GiB were measured without CUDA."""
    config = overlaid("llamagen_stage1")
    on_cpu, on_gpu = (JobSizes(config, has_gpu=gpu).decoding_mb()(None, 1) for gpu in (False, True))
    assert 6.0 * 1024 < on_cpu < 7.0 * 1024 and on_gpu == on_cpu + 3000
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


def test_no_torch_is_imported_while_the_workflow_is_read():
    command = "import sys, lantern.job_resources; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], cwd=ROOT).returncode == 0
