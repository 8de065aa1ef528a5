"""The tiny workflow on a toy Slurm: a user's copy of profiles/slurm, and what the jobs were."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import yaml
from snakemake.utils import update_config

from lantern_pipeline.config.validate import load_yaml
from tiny_run import ROOT, TINY, Workflow, without_time

PROFILE = ROOT / "profiles" / "slurm"
SMALL = Path(__file__).parent / "small.yaml"
# The config says cpu, so that these rules compute on it; they ask for the toy's GPU all the same.
GPU_RULES = ["generate_images", "measure_latency", "measure_total_variation"]
TARGETS = ["results/summary.csv", "results/paired.csv"]
SHORT_CHECKS = [
    *("--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "1"),
    *("--max-status-checks-per-second", "10"),
]
TINY_CONFIG = load_yaml(ROOT / "config.yaml")
update_config(TINY_CONFIG, load_yaml(TINY))
# What a test on a toy Slurm says differently on the command line: no accounting, no GPU to compute on, no patience.
OVERRIDES = ["--config", "device=cpu", "--slurm-status-command", "squeue", *SHORT_CHECKS, "--latency-wait", "5"]


@dataclass(frozen=True)
class ClusterRun:
    """A finished run on Slurm.

    Attributes:
        workflow: where it ran.
        jobs: Slurm's jobs, as `ToySlurm.jobs` gives them.
        devices: job id -> values of CUDA_VISIBLE_DEVICES.
    """

    workflow: Workflow
    jobs: list
    devices: dict

    def jobs_of(self, rule, *wildcards):
        """Jobs of a rule, oldest first."""
        found = jobs_of(self.jobs, rule, *wildcards)
        assert found, f"no job of {rule} among {[job['Comment'] for job in self.jobs]}"
        return found


def jobs_of(jobs, rule, *wildcards):
    """Those of Slurm's jobs that are of a rule and have these wildcards, by the comment that the plugin gives them."""
    return [
        job
        for job in jobs
        if (job["Comment"] == f"rule_{rule}" or f"rule_{rule}_w" in job["Comment"])
        and all(wildcard in job["Comment"] for wildcard in wildcards)
    ]


def megabytes(job):
    """Memory that one of Slurm's jobs asked for."""
    tres = dict(entry.split("=", 1) for entry in job["TRES"].split(","))
    return int(tres["mem"].removesuffix("M"))


def minutes(job):
    """Time that one of Slurm's jobs asked for."""
    hours, minutes, seconds = job["TimeLimit"].split(":")
    return 60 * int(hours) + int(minutes) + int(seconds) / 60


def assert_equal_but_for_time(workflow, other):
    """Checks that the tables of two runs are the same, bit by bit, but for what was measured with a clock."""
    for target in TARGETS:
        tables = [without_time(pd.read_csv(run.folder / target)) for run in (workflow, other)]
        pd.testing.assert_frame_equal(*tables, check_exact=True)
        assert not tables[0].empty


def profile_arguments(folder):
    """Arguments with which Snakemake runs on the toy Slurm, with the profile that `copy_profile` put into a folder."""
    return ["--profile", str(folder / "profile"), *OVERRIDES]


def copy_profile(folder, resources=None):
    """Copies the profile, as a user does, and changes what the toy Slurm wants.

    Args:
        folder: what the copy is put into, as "profile".
        resources: rule -> what it asks for; by default the toy's GPU for the rules that want one.
    """
    file = Path(shutil.copytree(PROFILE, folder / "profile")) / "config.yaml"
    entries = yaml.safe_load(file.read_text())
    entries["set-resources"] = {rule: {"gpu": 1} for rule in GPU_RULES} if resources is None else resources
    file.write_text(yaml.safe_dump(entries))


def run_on(slurm, workflow):
    """Runs the tiny workflow on a Slurm, behind its training."""
    copy_profile(workflow.folder)
    code, output = workflow.run(*profile_arguments(workflow.folder), "--", *TARGETS)
    assert code == 0, output + workflow.logs() + slurm.logs()
    return ClusterRun(workflow, slurm.jobs(), slurm.visible_devices())


def run_locally(workflow):
    """Runs the same on this machine."""
    code, output = workflow.run("--", *TARGETS)
    assert code == 0, output + workflow.logs()
    return workflow
