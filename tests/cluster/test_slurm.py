"""Tests of the Slurm profile on a real Slurm: the whole target, with a cancelled job and a killed Snakemake."""

import itertools
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from helpers import toy_slurm
from helpers.configs import load_config, typed_config
from helpers.faults import held_run
from helpers.paths import ROOT
from helpers.tiny_run import TINY, copy_run, planned, with_overlay, without_time
from lantern.records import load_records
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.plan.resources import JobSizes

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
SMALL = Path(__file__).parent / "small.yaml"
CANCELLED = "generation/bounded-k4-delta0.3/seen/T1/s0n0/1-of-1.safetensors"
UNSEEN = CANCELLED.replace("0.3", "0.4")
# The config says cpu, so that the rule computes on it; it requests the toy's GPU all the same.
RESOURCES = {"generate_images": {"gpu": 1}, "measure_total_variation": {"gpu": 1}}
# What a test on a toy Slurm says differently on the command line: no patience.
OVERRIDES = [
    *("--latency-wait", "5", "--slurm-init-seconds-before-status-checks", "1"),
    *("--seconds-between-status-checks", "1", "--max-status-checks-per-second", "10"),
]
# Answers as sacct does if there is accounting, which the toy lacks. The plugin does not understand "CANCELLED by 0".
SACCT = """#!/bin/sh
case "$*" in *--name*) squeue --states=all --noheader --format "%i|%T" | sed "s/CANCELLED/CANCELLED by 0/";; esac
"""


@pytest.fixture(scope="module")
def slurm():
    """Start a Slurm for the tests. They are skipped if Slurm cannot run here."""
    reason = toy_slurm.why_not()
    if reason:
        pytest.skip(reason)
    # A test run that is ended by SIGTERM ends like one that is interrupted: its fixtures are taken down.
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by SIGTERM", returncode=143))
    with toy_slurm.ToySlurm() as running:
        yield running
    toy_slurm.LOCK.release()
    signal.signal(signal.SIGTERM, before)


def jobs_of(jobs, rule):
    """Return Slurm's jobs of a rule, which the plugin writes into the comment of each job."""
    return [job for job in jobs if job["Comment"].partition("_wildcards")[0] == f"rule_{rule}"]


def cancel_in_the_middle(slurm, workflow, folder, arguments):
    """Start a run of one job, cancel the running job, and let its second attempt end."""
    with held_run(workflow, folder, *arguments, f"results/tiny/{CANCELLED}") as held:
        held.job()
        (folder / "held").unlink()
        slurm.run("scancel", slurm.jobs()[-1]["JobId"])
        held.job()  # the same, sent again
        held.release()
        assert held.wait() == 0, held.output()


def kill_in_the_middle(slurm, workflow, folder, arguments):
    """Start a run of one job, kill Snakemake while the job runs, and let the job end by itself."""
    with held_run(workflow, folder, *arguments, f"results/tiny/{UNSEEN}") as held:
        held.job()
        held.process.kill()
        held.wait()
        held.release()
        toy_slurm.wait(lambda: not slurm.run("squeue", "-h").strip(), 120, "the job must end by itself")


@pytest.fixture(scope="module")
def local_run(finished, tmp_path_factory):
    """Return the same run on this machine, without disturbance."""
    local = copy_run(finished, tmp_path_factory.mktemp("local") / "run", (SMALL,))
    code, output = local.run()
    assert code == 0, output + local.logs()
    return local


@pytest.fixture(scope="module")
def cluster_run(slurm, finished, tmp_path_factory):
    """Return a run on Slurm that was disturbed and resumed, with a copy of the profile as a user makes one."""
    folder = tmp_path_factory.mktemp("cluster")
    workflow = copy_run(finished, folder / "run", (SMALL,))
    file = Path(shutil.copytree(ROOT / "profiles" / "slurm", workflow.folder / "profile")) / "config.yaml"
    entries = yaml.safe_load(file.read_text())
    entries["set-resources"] |= RESOURCES
    file.write_text(yaml.safe_dump(entries))
    (folder / "bin").mkdir()
    (folder / "bin" / "sacct").write_text(SACCT)
    (folder / "bin" / "sacct").chmod(0o755)
    arguments = ["--workflow-profile", str(file.parent), *OVERRIDES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        cancel_in_the_middle(slurm, workflow, folder / "cancelled", arguments)
        kill_in_the_middle(slurm, workflow, folder / "killed", arguments)
        disturbed = slurm.jobs()
        code, output = workflow.make("resume", *arguments, WRITE_REPORT_IF_OLD=":")
    assert code == 0, output + workflow.logs() + slurm.logs()
    return SimpleNamespace(
        workflow=workflow, disturbed=disturbed, jobs=slurm.jobs(), devices=slurm.visible_devices(), output=output
    )


def test_images_and_table_are_a_local_runs(cluster_run, local_run):
    for name in (CANCELLED, UNSEEN):
        ours, theirs = (load_records(run.result(name)) for run in (local_run, cluster_run.workflow))
        assert ours.prompt_ids == theirs.prompt_ids and ours.codes.equal(theirs.codes)
    tables = [without_time(pd.read_csv(run.result("summary.csv"))) for run in (local_run, cluster_run.workflow)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_a_cancelled_job_is_sent_again_with_more_and_goes_on_behind_its_finished_images(cluster_run):
    config = typed_config(load_config([ROOT / "config.yaml", TINY, SMALL]))
    sizes = JobSizes(config, card_of(config), has_gpu=False)
    mega, minutes = sizes.decoding_mb(), sizes.decoding_minutes(4, 2)
    cancelled, again, unseen = cluster_run.disturbed
    assert [job["JobState"] for job in (cancelled, again, unseen)] == ["CANCELLED", "COMPLETED", "COMPLETED"]
    for attempt, job in ((1, cancelled), (2, again)):
        assert f"mem={mega(None, attempt)}M" in job["TRES"].split(",")
        hours, mins, _ = job["TimeLimit"].split(":")
        assert 60 * int(hours) + int(mins) == minutes(None, attempt)


def test_what_ended_after_the_kill_is_made_again_and_a_later_change_plans_what_it_plans_undisturbed(
    cluster_run, local_run, tmp_path
):
    assert len(jobs_of(cluster_run.jobs, "generate_images")) == 4
    assert f"--forcerun results/tiny/{UNSEEN} --rerun-incomplete" in cluster_run.output
    counts = []
    for run in (local_run, cluster_run.workflow):
        changed = with_overlay(run, tmp_path, sampling={"top_k": 20})
        changed.overlays = (SMALL, *changed.overlays)
        code, output = changed.run("--dry-run", "--quiet", "rules")
        assert code == 0, output
        counts.append(planned(output))
    assert counts[0] == counts[1] and counts[0]["generate_images"] == 3


def test_the_whole_target_is_made_by_jobs_that_all_complete(cluster_run):
    resumed = [job for job in cluster_run.jobs if job not in cluster_run.disturbed]
    assert {job["JobState"] for job in resumed} == {"COMPLETED"}
    for rule in ("measure_latency", "measure_quality", "summarise", "draw_tradeoff", "write_provenance"):
        assert len(jobs_of(resumed, rule)) == 1, rule


def test_gpu_jobs_see_one_gpu_one_after_the_other_and_others_none(slurm, cluster_run):
    gpu_jobs = [job for rule in RESOURCES for job in jobs_of(cluster_run.jobs, rule)]
    alone = jobs_of(cluster_run.jobs, "measure_latency")  # has the whole node, its GPU too
    for job in (job for job in cluster_run.jobs if job not in alone):
        is_gpu_job = job in gpu_jobs
        assert job["Partition"] == ("gpu" if is_gpu_job else "cpu")
        assert job.get("TresPerJob") == ("gres:gpu:1" if is_gpu_job else None)
        assert cluster_run.devices[job["JobId"]] == {"0" if is_gpu_job else "none"}
    times = sorted((job["StartTime"], job["EndTime"]) for job in gpu_jobs)
    assert all(ended <= started for (_, ended), (started, _) in itertools.pairwise(times))
    assert slurm.processes() == []


def test_latency_is_measured_on_a_node_of_its_own(cluster_run):
    (timed,) = jobs_of(cluster_run.jobs, "measure_latency")
    others = [job for job in cluster_run.jobs if job is not timed]
    assert timed["OverSubscribe"] == "NO" and {job["OverSubscribe"] for job in others} == {"OK"}
    assert all(job["EndTime"] <= timed["StartTime"] or job["StartTime"] >= timed["EndTime"] for job in others)
