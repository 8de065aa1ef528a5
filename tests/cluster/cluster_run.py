"""The tiny workflow on a toy Slurm: a user's copy of profiles/slurm, and what the jobs were."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml
from snakemake.utils import update_config

from lantern.config import load_yaml
from tiny_run import ROOT, TINY, Workflow

PROFILE = ROOT / "profiles" / "slurm"
SMALL = Path(__file__).parent / "small.yaml"
# The config says cpu, so that these rules compute on it; they ask for the toy's GPU all the same.
GPU_RULES = ["generate_images", "measure_latency", "measure_law"]
# All that comes before the first image, as one job: a test has no time for nine.
MODELS = [
    *("write_prompts", "write_captions", "train_recogniser", "train_clip", "train_tokenizer", "encode_images"),
    *("train_target", "train_drafter", "build_nearest_codes"),
]
SHORT_CHECKS = ["--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "1"]
TINY_CONFIG = load_yaml(ROOT / "config.yaml")
update_config(TINY_CONFIG, load_yaml(TINY))
# What a test on a toy Slurm says differently on the command line: no accounting, no GPU to compute on, no patience.
OVERRIDES = ["--config", "device=cpu", "--slurm-status-command", "squeue", *SHORT_CHECKS, "--latency-wait", "5"]


@dataclass(frozen=True)
class ClusterRun:
    """A finished run on Slurm.

    Attributes:
        workflow: where it ran.
        profile: the entries of its profile.
        jobs: Slurm's jobs, as `ToySlurm.jobs` gives them.
        devices: job id -> values of CUDA_VISIBLE_DEVICES.
    """

    workflow: Workflow
    profile: dict
    jobs: list
    devices: dict

    def jobs_of(self, rule):
        """Jobs of a rule, by the comment that the plugin gives them."""
        found = [job for job in self.jobs if job["Comment"] == f"rule_{rule}" or f"rule_{rule}_w" in job["Comment"]]
        assert found, f"no job of {rule} among {[job['Comment'] for job in self.jobs]}"
        return found


def copy_profile(folder):
    """Copies the profile, as a user does, and changes what the toy Slurm wants; returns the copy's entries."""
    shutil.copytree(PROFILE, folder)
    file = folder / "config.yaml"
    entries = yaml.safe_load(file.read_text())
    for rule in GPU_RULES:
        entries.setdefault("set-resources", {}).setdefault(rule, {})["gpu"] = 1
    entries["groups"].update(dict.fromkeys(MODELS, "models"))
    entries["group-components"]["models"] = len(MODELS) + 1
    file.write_text(yaml.safe_dump(entries))
    return entries


def run_on(slurm, folder, *targets):
    """Runs the tiny workflow on a Slurm, in a folder."""
    entries = copy_profile(folder / "profile")
    workflow = Workflow(folder, overlays=(SMALL,))
    code, output = workflow.run("--profile", str(folder / "profile"), *OVERRIDES, "--", *targets, timeout=900)
    assert code == 0, output + workflow.logs() + slurm.logs()
    return ClusterRun(workflow, entries, slurm.jobs(), slurm.visible_devices())
