"""`--profile profiles/slurm` on a real Slurm gives what one machine gives, and asks for what the profile says."""

import itertools

import pytest

from cluster_run import GPU_RULES, TINY_CONFIG, assert_equal_but_for_time, megabytes, minutes
from lantern_pipeline.config.resources import JobSizes

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_the_tables_equal_a_local_runs_in_everything_but_time(cluster_run, local_run):
    assert_equal_but_for_time(cluster_run.workflow, local_run)


def test_gpu_rules_run_in_the_gpu_partition_and_see_one_gpu(cluster_run):
    jobs = [job for rule in GPU_RULES for job in cluster_run.jobs_of(rule)]
    assert len(jobs) == 4
    for job in jobs:
        assert (job["Partition"], job["TresPerJob"]) == ("gpu", "gres:gpu:1")
        assert cluster_run.devices[job["JobId"]] == {"0"}


def test_jobs_that_wait_together_for_the_gpu_run_one_after_the_other(cluster_run):
    jobs = [job for job in cluster_run.jobs if job["Partition"] == "gpu"]
    first, second = cluster_run.jobs_of("generate_images")
    # It is Slurm that keeps them apart: Snakemake, told of one GPU for each job, sends both.
    assert max(first["SubmitTime"], second["SubmitTime"]) < min(first["EndTime"], second["EndTime"])
    times = sorted((job["StartTime"], job["EndTime"]) for job in jobs)
    assert all(ended <= started for (_, ended), (started, _) in itertools.pairwise(times))


def test_a_finished_run_leaves_no_process(slurm, cluster_run):
    assert slurm.processes() == []


def test_other_rules_run_in_the_cpu_partition_and_see_no_gpu(cluster_run):
    jobs = [job for job in cluster_run.jobs if job["Partition"] == "cpu"]
    assert [job["Comment"].split("_")[1] for job in jobs] == ["start", "measure", "report"]
    for job in jobs:
        assert "TresPerJob" not in job and cluster_run.devices[job["JobId"]] == {"none"}


@pytest.mark.parametrize("rule", GPU_RULES)
def test_a_job_asks_for_the_memory_and_time_of_its_rule(cluster_run, rule):
    sizes = JobSizes(TINY_CONFIG, has_gpu=False)
    wanted = {
        "generate_images": (sizes.decoding_mb(), sizes.decoding_minutes(4, 2)),
        "measure_latency": (sizes.decoding_mb(), sizes.decoding_minutes(4, 1)),
        "measure_total_variation": (sizes.scoring_mb(1000), sizes.decoding_minutes(4, 2, 120)),
    }[rule]
    for job in cluster_run.jobs_of(rule):
        assert (megabytes(job), minutes(job)) == tuple(resource(None, 1) for resource in wanted)


def test_short_jobs_go_as_one(cluster_run):
    comments = [job["Comment"] for job in cluster_run.jobs]
    assert sum("summarise" in comment for comment in comments) == 1
    report = next(comment for comment in comments if "summarise" in comment)
    assert "publish_tables" in report
    assert len(comments) == 7


def test_every_job_succeeded_at_the_first_attempt(cluster_run):
    assert {job["JobState"] for job in cluster_run.jobs} == {"COMPLETED"}
