"""Tests of the Slurm profile without Slurm: every overlay plans with it, and its jobs fit the shipped partitions."""

import re
from types import SimpleNamespace

import pytest
import yaml
from snakemake_executor_plugin_slurm.utils import parse_time_to_minutes

from helpers.paths import ROOT
from helpers.tiny_run import Workflow
from lantern_pipeline.plan.partitions import remove_old_logs

PROFILE = ROOT / "profiles" / "slurm"
ENTRIES = yaml.safe_load((PROFILE / "config.yaml").read_text())
PARTITIONS = yaml.safe_load((PROFILE / "partitions.yaml").read_text())["partitions"]
DECODING = ("generate_images", "measure_latency", "measure_total_variation", "run_ablation")
# The overlays that `make test` plans: of training, and of the largest models.
FAST = ("llamagen_drafter_captions", "glm_image")
# Jobs of all shards request the same.
ONE_SHARD = ["shards=1", "text_shards=1", "image_shards=1"]


def plan(folder, overlays, *arguments):
    """Plan a run with the profile in an empty folder.

    Returns a dict per job with its rule, threads and resources.
    """
    for name in ("models", "workflow"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "images").mkdir()  # the folder that overlays leave to the user
    arguments = ["--workflow-profile", str(PROFILE), "--dry-run", "--forceall", *arguments]
    arguments += ["--set-scatter", *ONE_SHARD]
    code, output = Workflow(folder, tuple(overlays), config=()).run(*arguments)
    assert code == 0, output
    jobs = []
    for rule, block in re.findall(r"^(?:local)?rule (\w+):\n((?: +.*\n)+)", output, re.M):
        resources = re.findall(r"(\w+)=([^,\s]+)", re.search("resources: (.*)", block)[1])
        jobs.append({"rule": rule, **{name: int(value) for name, value in resources if value.isdigit()}})
        jobs[-1]["threads"] = int((re.search(r"threads: (\d+)", block) or [0, 1])[1])
        jobs[-1]["is_alone"] = "slurm_extra=--exclusive" in block
    return jobs


def stack_of(overlay):
    """Return the config files that the first lines of an overlay combine, including the overlay itself."""
    head = re.match("(#.*\n)+", overlay.read_text())[0]
    named = re.search(r"--configfile ([^\"\n]+)", head)
    stack = [ROOT / name for name in named[1].split()] if named else [overlay]
    assert overlay in stack
    return stack


@pytest.mark.parametrize(
    "overlay",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in FAST else pytest.mark.slow)
        for path in sorted((ROOT / "experiments").glob("*.yaml"))
    ],
)
def test_the_last_attempt_of_every_job_of_an_overlay_fits_its_partition(overlay, tmp_path):
    jobs = plan(tmp_path, stack_of(overlay), "--attempt", str(1 + ENTRIES["restart-times"]))
    for job in jobs:
        limits = PARTITIONS["gpu" if job.get("gpu") else "cpu"]
        assert job["mem_mb"] <= limits["max_mem_mb"], job
        assert job["runtime"] <= parse_time_to_minutes(limits["max_runtime"]), job
        assert job["threads"] <= ENTRIES["cores"] <= limits["max_threads"], job
    decoding = [job for job in jobs if job["rule"].endswith(DECODING)]
    assert decoding and all(job["gpu"] == 1 for job in decoding)


def test_jobs_that_decode_ask_for_a_gpu_and_jobs_that_time_have_a_node_of_their_own(tmp_path):
    jobs = plan(tmp_path, [ROOT / "experiments" / "quick.yaml"])
    assert {job["gpu"] for job in jobs if job["rule"] in DECODING} == {1}
    assert {job["rule"] for job in jobs if job["is_alone"]} == {"measure_latency"}


def test_no_job_asks_for_a_gpu_if_the_config_says_cpu(tmp_path):
    jobs = plan(tmp_path, [ROOT / "experiments" / "quick.yaml"], "--config", "device=cpu")
    assert {job["gpu"] for job in jobs if job["rule"] in DECODING} == {0}


@pytest.mark.parametrize(
    ("limits", "groups", "words"),
    [
        ("cpu: {max_mem_mb: 10}", [], r"job \w+ fits no partition of .* \d+ cores, \d+ MB, \d+ minutes and [01] GPUs"),
        # Two jobs side by side, since a job may have two cores, and three layers of 60 minutes. Without `until`, single
        # jobs that take longer might be named first.
        (
            "gpu: {max_gpu: 2, max_runtime: 150}",
            ["--until", "generate_images", "--groups", "generate_images=gen", "--group-components", "gen=6"],
            "the group gen of 6 jobs fits no partition .* 2 cores, .* 180 minutes and 2 GPUs",
        ),
        # All jobs are one group: of several groups, one might hold the only job that times.
        (
            "gpu: {max_gpu: 2}",
            ["--groups", "generate_images=gen", "measure_latency=gen", "--group-components", "gen=100"],
            "the group gen of .* cannot be submitted: .* slurm_extra",
        ),
    ],
)
def test_what_fits_no_partition_ends_the_run_before_any_job(limits, groups, words, tmp_path):
    (tmp_path / "partitions.yaml").write_text(f"partitions: {{{limits}}}")
    profile = ["--workflow-profile", str(PROFILE), "--slurm-partition-config", str(tmp_path / "partitions.yaml")]
    run = Workflow(tmp_path, (ROOT / "experiments" / "quick.yaml",), config=())
    code, output = run.run(*profile, *groups)
    assert code != 0 and re.search(words, output.strip().splitlines()[-1]), output


def test_a_job_that_runs_again_on_a_cluster_has_no_log_of_an_earlier_run(tmp_path):
    old, missing = tmp_path / "old.log", tmp_path / "missing.log"
    old.write_text("success")
    jobs = [SimpleNamespace(log=[str(old)]), SimpleNamespace(log=[str(missing)]), SimpleNamespace(log=[])]
    remove_old_logs(SimpleNamespace(dag=SimpleNamespace(needrun_jobs=lambda: jobs)))
    assert not old.exists()


def test_what_re_runs_is_the_same_as_on_one_machine():
    default = yaml.safe_load((ROOT / "profiles" / "default" / "config.yaml").read_text())
    kept = ("rerun-triggers", "rerun-incomplete", "scheduler")
    assert [ENTRIES[name] for name in kept] == [default[name] for name in kept]


def test_memory_and_time_grow_with_the_attempt():
    default = [ENTRIES["default-resources"][name] for name in ("mem_mb", "runtime")]
    assert all(eval(value, {"attempt": 2}) == 2 * eval(value, {"attempt": 1}) for value in default)
    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        fixed = re.findall(r"(?:mem_mb|runtime)=\d.*", file.read_text())
        assert not fixed, f"{file.name}: {fixed} do not grow"


def test_an_hour_without_an_answer_of_slurm_does_not_lose_jobs():
    assert ENTRIES["slurm-status-attempts"] / ENTRIES["max-status-checks-per-second"] >= 3600


def test_a_cancelled_job_is_noticed_where_accounting_reports_who_cancelled_it():
    assert ENTRIES["slurm-status-command"] == "squeue"
