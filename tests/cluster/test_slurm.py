"""`--profile profiles/slurm` on a real Slurm: asks for what the profile says, outlives a cancelled job, same images."""

import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import toy_slurm
from conftest import load_config
from lantern.records import load_records
from lantern_pipeline.config.resources import JobSizes
from tiny_run import ROOT, TINY, copy_run

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SMALL = Path(__file__).parent / "small.yaml"
RECORDS = [
    f"results/tiny/generation/{method}/seen/T1/s0n0/1-of-1.safetensors"
    for method in ("autoregressive", "bounded-k4-delta0.2")
]
# The config says cpu, so that the rule computes on it; it asks for the toy's GPU all the same.
RESOURCES = {"generate_images": {"gpu": 1}}
# What a test on a toy Slurm says differently on the command line: no accounting, no GPU to compute on, no patience.
OVERRIDES = [
    *("--config", "device=cpu", "--slurm-status-command", "squeue", "--latency-wait", "5"),
    *("--slurm-init-seconds-before-status-checks", "1", "--seconds-between-status-checks", "1"),
    *("--max-status-checks-per-second", "10"),
]


@pytest.fixture(scope="module")
def slurm():
    """A Slurm of our own; tests that want one skip where none can be."""
    reason = toy_slurm.why_not()
    if reason:
        pytest.skip(reason)
    # A test run that is ended by SIGTERM ends like one that is interrupted: its fixtures are taken down.
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by SIGTERM", returncode=143))
    with toy_slurm.ToySlurm() as running:
        yield running
    toy_slurm.LOCK.release()
    signal.signal(signal.SIGTERM, before)


def jobs_of(jobs, rule, *wildcards):
    """Slurm's jobs of a rule with these wildcards, by the comment that the plugin gives them."""
    return [job for job in jobs if f"rule_{rule}_" in job["Comment"] and all(w in job["Comment"] for w in wildcards)]


def cancel_in_the_middle(slurm, workflow, process):
    """Cancels the autoregressive job when it has drawn some of its images, its processes stopped until then."""

    def is_stopped():
        running = [job for job in jobs_of(slurm.jobs(), "generate_images", "autoregressive") if "RUNNING" in str(job)]
        if running and list(workflow.result("generation").glob("autoregressive/*/*/*/.partial-*")):
            slurm.signal(running[0]["JobId"], signal.SIGSTOP)
            slurm.run("scancel", running[0]["JobId"])
            return True
        assert process.poll() is None, "the run ended before its job could be cancelled"
        return False

    toy_slurm.wait(is_stopped, 300, "a generation job must be in its middle")


@pytest.fixture(scope="module")
def cluster_run(slurm, finished, tmp_path_factory):
    """Images of the tiny run's models, drawn on Slurm, with a user's copy of the profile."""
    workflow = copy_run(finished, tmp_path_factory.mktemp("cluster") / "run", (SMALL,))
    file = Path(shutil.copytree(ROOT / "profiles" / "slurm", workflow.folder / "profile")) / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"set-resources": RESOURCES}))
    command = workflow.command("--profile", str(file.parent), *OVERRIDES, "--", *RECORDS)
    environment, printed = os.environ | {"LANTERN_PARTIAL_EVERY_S": "0"}, workflow.folder / "printed.txt"
    with open(printed, "w") as output:
        process = subprocess.Popen(command, cwd=workflow.folder, env=environment, stdout=output, stderr=output)
        try:
            cancel_in_the_middle(slurm, workflow, process)
            code = process.wait(400)
        finally:
            process.kill()
    assert code == 0, printed.read_text() + workflow.logs() + slurm.logs()
    return SimpleNamespace(workflow=workflow, jobs=slurm.jobs(), devices=slurm.visible_devices())


def test_the_images_are_a_local_runs(cluster_run, finished, tmp_path):
    local = copy_run(finished, tmp_path / "local", (SMALL,))
    code, output = local.run(*RECORDS)
    assert code == 0, output + local.logs()
    for name in RECORDS:
        ours, theirs = (load_records(run.folder / name) for run in (local, cluster_run.workflow))
        assert len(ours) == 40 and ours.prompt_ids == theirs.prompt_ids and ours.codes.equal(theirs.codes)


def test_gpu_jobs_see_one_gpu_one_after_the_other_and_others_none(slurm, cluster_run):
    generated = jobs_of(cluster_run.jobs, "generate_images")
    assert len(generated) == 3  # one of the two was sent twice
    for job in cluster_run.jobs:
        is_gpu_job = job in generated
        assert job["Partition"] == ("gpu" if is_gpu_job else "cpu")
        assert job.get("TresPerJob") == ("gres:gpu:1" if is_gpu_job else None)
        assert cluster_run.devices[job["JobId"]] == {"0" if is_gpu_job else "none"}
    times = sorted((job["StartTime"], job["EndTime"]) for job in generated)
    assert all(ended <= started for (_, ended), (started, _) in itertools.pairwise(times))
    assert slurm.processes() == []


def test_a_cancelled_job_is_sent_again_with_more_and_goes_on_behind_its_finished_images(cluster_run):
    sizes = JobSizes(load_config([ROOT / "config.yaml", TINY, SMALL]), has_gpu=False)
    mega, minutes = sizes.decoding_mb(), sizes.decoding_minutes(40, 2)
    cancelled, again = jobs_of(cluster_run.jobs, "generate_images", "autoregressive")
    (spared,) = jobs_of(cluster_run.jobs, "generate_images", "bounded")
    assert [job["JobState"] for job in (cancelled, again, spared)] == ["CANCELLED", "COMPLETED", "COMPLETED"]
    for attempt, job in ((1, cancelled), (2, again), (1, spared)):
        assert f"mem={mega(None, attempt)}M" in job["TRES"].split(",")
        hours, mins, _ = job["TimeLimit"].split(":")
        assert 60 * int(hours) + int(mins) == minutes(None, attempt)
    logs = cluster_run.workflow.result("logs")
    messages = {
        method: (logs / f"generate_images.{method}.seen.T1.s0n0.1-of-1.log").read_text()
        for method in ("autoregressive", "bounded-k4-delta0.2")
    }
    behind = {name: "of 40 images were drawn by an interrupted job" in log for name, log in messages.items()}
    assert behind == {"autoregressive": True, "bounded-k4-delta0.2": False}


def test_nothing_else_is_sent(cluster_run):
    rest = [job for job in cluster_run.jobs if job not in jobs_of(cluster_run.jobs, "generate_images")]
    assert len(rest) == 1 and "start" in rest[0]["Comment"] and rest[0]["JobState"] == "COMPLETED"
