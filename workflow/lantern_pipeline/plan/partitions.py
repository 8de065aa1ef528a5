"""Check of jobs against the partitions of a Slurm cluster, because a job that fits no partition would wait forever."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def check_partitions(workflow: Any) -> None:
    """Raise a ValueError if a job of a run needs more cores, memory, time or GPUs than any Slurm partition has.

    Args:
        workflow: Snakemake's workflow before it starts jobs. If its executor is not Slurm, nothing is checked.
    """
    # Name of the file with the limits, from the profile's key `slurm-partition-config`.
    file = getattr(workflow.executor_settings, "partition_config", None)
    if file is None:
        return
    from snakemake_executor_plugin_slurm.partitions import read_partition_file
    from snakemake_interface_common.exceptions import WorkflowError

    partitions = read_partition_file(file)
    for job in _submitted_jobs(workflow):
        name, remedy = f"job {job.name}", ""
        # With --groups, a group is one job of Slurm's.
        if job.is_group():
            name, remedy = (
                f"the group {job.groupid} of {len(job)} jobs",
                "put fewer jobs into it (--group-components), ",
            )
        try:
            # the score of a partition is None if the job does not fit it
            is_too_large = all(partition.score_job_fit(job) is None for partition in partitions)
        except WorkflowError as error:  # the jobs of a group request different words, such as --exclusive
            raise ValueError(f"{name} cannot be submitted: {error}; group other rules") from error
        if is_too_large:
            asked = job.resources
            raise ValueError(
                f"{name} fits no partition of {file}: it requests {job.threads} cores, "
                f"{asked.get('mem_mb')} MB, {asked.get('runtime')} minutes and {asked.get('gpu', 0)} GPUs; {remedy}"
                "correct the limits there, request less (set-resources in the profile), or set config key device to "
                "cpu if no partition has GPUs"
            )


def _submitted_jobs(workflow: Any) -> list[Any]:
    """Return what Snakemake will submit: each job that has to run, or the group to which it belongs."""
    found: dict[Any, Any] = {}
    for job in workflow.dag.needrun_jobs():
        group = workflow.dag.get_job_group(job)
        if group is None:
            found[job] = job
        elif group not in found:
            # Only a sorted group can sum its minutes, and Snakemake may still add jobs to its own, so sort a copy.
            found[group] = type(group)(group.groupid, group.jobs, workflow.global_resources)
            found[group].finalize()
    return [job for job in found.values() if not job.is_local]


def remove_old_logs(workflow: Any) -> None:
    """Remove the logs of jobs that will run again on a cluster."""
    for job in workflow.dag.needrun_jobs():
        # Else Snakemake shows the log of an earlier run for a job that Slurm refuses to start.
        for log in job.log:
            Path(log).unlink(missing_ok=True)
