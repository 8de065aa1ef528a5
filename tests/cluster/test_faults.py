"""What clusters do to jobs, done to the jobs of one run on a real Slurm: its tables come out as if nothing had been."""

import datetime
import os
import shutil
import signal
import subprocess
import time

import pytest

from cluster_run import (
    TARGETS,
    ClusterRun,
    assert_equal_but_for_time,
    copy_profile,
    jobs_of,
    megabytes,
    minutes,
    profile_arguments,
)
from tiny_run import copy_run

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# The generation jobs, by what happens to them: method, shard.
STARVED = ("autoregressive", "1-of-2")
CANCELLED = ("autoregressive", "2-of-2")
HUNG = ("bounded-k4-delta0.2", "1-of-2")
SPARED = ("bounded-k4-delta0.2", "2-of-2")
# A generation job takes about 850 MB, Snakemake's 160 MB included: one is given too little at first.
MEMORY = f"(550 if wildcards.method + wildcards.scatteritem in {''.join(STARVED)!r} else 2000) * 2 ** (attempt - 1)"
# A controller writes down what it was told after some seconds; killed earlier, it has never heard of the job.
WRITTEN_DOWN = datetime.timedelta(seconds=6)
DOWN_S = 3


def copy_without_images(run, folder):
    """Copies a finished run, dates and Snakemake's records included, without its images and what was made of them."""
    copy = copy_run(run, folder, run.overlays)
    for path in [copy.result("generation"), copy.result("quality"), folder / "profile"]:
        shutil.rmtree(path)
    for path in [*(folder / target for target in TARGETS), *copy.result(".").glob("*.*")]:
        path.unlink()
    return copy


def find_running(slurm, rule, *wildcards):
    """The running job of a rule, or None."""
    return next((job for job in jobs_of(slurm.jobs(), rule, *wildcards) if job["JobState"] == "RUNNING"), None)


def stop_in_the_middle(slurm, workflow, method, shard):
    """Stops the processes of a generation job that has drawn some of its images; returns the job, or None."""
    if not list(workflow.result("generation").glob(f"{method}/*/*/*/.partial-{shard}-*")):
        return None
    job = find_running(slurm, "generate_images", method, shard)
    if job is not None:
        slurm.signal(job["JobId"], signal.SIGSTOP)
    return job


def hang(slurm, workflow):
    """A job that does not move any more, on a sick disk for example, runs into its time limit: an hour, so this is the
    hour's end for Slurm.
    """
    job = stop_in_the_middle(slurm, workflow, *HUNG)
    if job is not None:
        slurm.run("scontrol", "update", f"JobId={job['JobId']}", "EndTime=now")
    return job is not None


def cancel(slurm, workflow):
    """Somebody cancels a job."""
    job = stop_in_the_middle(slurm, workflow, *CANCELLED)
    if job is not None:
        slurm.run("scancel", job["JobId"])
    return job is not None


def restart_controller(slurm, workflow):
    """The controller is killed while jobs run, and started again. Each has begun its step: one that is asked for while
    the controller is away waits for minutes.
    """
    job = find_running(slurm, "measure_quality")
    if job is None or datetime.datetime.now() - datetime.datetime.fromisoformat(job["StartTime"]) < WRITTEN_DOWN:
        return False
    steps = slurm.run("squeue", "--steps", "--noheader", "--format=%i").split()
    if any(f"{job['JobId']}.0" not in steps for job in slurm.jobs() if job["JobState"] == "RUNNING"):
        return False
    slurm.kill_controller()
    time.sleep(DOWN_S)
    slurm.start_controller()
    return True


def inject(slurm, workflow, process, faults, seconds=1200):
    """Injects each fault when its time has come; returns those that are left when Snakemake has ended."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        faults = [fault for fault in faults if not fault(slurm, workflow)]
        time.sleep(0.02 if faults else 0.5)
    return faults


@pytest.fixture(scope="module")
def disturbed_run(slurm, cluster_run, tmp_path_factory):
    """The same run once more from its first image on, in two shards, with every fault."""
    workflow = copy_without_images(cluster_run.workflow, tmp_path_factory.mktemp("faults") / "run")
    copy_profile(workflow.folder, {"generate_images": {"mem_mb": MEMORY}})
    before = len(slurm.jobs())
    command = workflow.command(*profile_arguments(workflow.folder), "--set-scatter", "shards=2", "--", *TARGETS)
    environment = os.environ | {"LANTERN_PARTIAL_EVERY_S": "0"}
    printed = workflow.folder / "printed.txt"
    with open(printed, "w") as file:
        process = subprocess.Popen(command, cwd=workflow.folder, env=environment, stdout=file, stderr=file)
        try:
            left = inject(slurm, workflow, process, [hang, cancel, restart_controller])
        finally:
            process.kill()
    assert process.wait() == 0 and not left, f"{left}\n{printed.read_text()}{workflow.logs()}{slurm.logs()}"
    return ClusterRun(workflow, slurm.jobs()[before:], slurm.visible_devices())


def attempts_at(run, method, shard):
    """States of the jobs that were sent for a shard, oldest first, and the log of the last."""
    jobs = run.jobs_of("generate_images", method, shard)
    log = run.workflow.result("logs") / f"generate_images.{method}.seen.T1.s0n0.{shard}.log"
    return jobs, [job["JobState"] for job in jobs], log.read_text()


def goes_on_behind_its_images(log):
    return "of 20 images were drawn by an interrupted job" in log


def test_the_tables_equal_those_of_an_undisturbed_run(disturbed_run, cluster_run):
    assert_equal_but_for_time(disturbed_run.workflow, cluster_run.workflow)


def test_a_cancelled_job_is_sent_again_and_goes_on_behind_its_finished_images(disturbed_run):
    _, states, log = attempts_at(disturbed_run, *CANCELLED)
    assert states == ["CANCELLED", "COMPLETED"]
    assert goes_on_behind_its_images(log)


def test_a_job_out_of_time_is_sent_again_with_more_and_goes_on_behind_its_finished_images(disturbed_run):
    jobs, states, log = attempts_at(disturbed_run, *HUNG)
    assert states == ["TIMEOUT", "COMPLETED"]
    (undisturbed,), *_ = attempts_at(disturbed_run, *SPARED)
    assert minutes(jobs[1]) == 2 * minutes(undisturbed)
    assert goes_on_behind_its_images(log)


def test_a_job_out_of_memory_is_sent_again_with_more(slurm, disturbed_run):
    jobs, states, _ = attempts_at(disturbed_run, *STARVED)
    # Without cgroups Slurm ends the job's step, and then Snakemake its job.
    assert states == ["FAILED", "COMPLETED"]
    assert [megabytes(job) for job in jobs] == [550, 1100]
    assert f"StepId={jobs[0]['JobId']}.0 exceeded memory limit" in slurm.logs()


def test_a_job_outlives_a_controller_that_is_killed(slurm, disturbed_run):
    (job,) = disturbed_run.jobs_of("measure_quality")
    assert job["JobState"] == "COMPLETED"
    assert f"Recovered JobId={job['JobId']} StepId=batch" in slurm.logs()


def test_only_jobs_with_a_fault_are_sent_again_and_nothing_is_trained(slurm, disturbed_run):
    _, states, log = attempts_at(disturbed_run, *SPARED)
    assert states == ["COMPLETED"] and not goes_on_behind_its_images(log)
    after = ["measure_total_variation", "measure_quality", "report_publish_tables_summarise"]
    comments = [job["Comment"].partition("_wildcards")[0] for job in disturbed_run.jobs]
    assert sorted(comments) == sorted(["rule_generate_images"] * (4 + 3) + [f"rule_{name}" for name in after])
    assert slurm.processes() == []
