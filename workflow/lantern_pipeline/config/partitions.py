"""Check of jobs against the partitions of a Slurm cluster, because a job that fits no partition would wait forever."""

from __future__ import annotations

from typing import Any


def check_partitions(workflow: Any) -> None:
    """Check that every job of a run fits a Slurm partition.

    The partitions and their limits are in a file that the Snakemake profile names (`slurm-partition-config`).

    Args:
        workflow: Snakemake's workflow before it starts jobs. If its executor is not Slurm, nothing is checked.

    Raises:
        ValueError: a job needs more cores, memory, time or GPUs than any partition has.
    """
    file = getattr(workflow.executor_settings, "partition_config", None)
    if file is None:
        return
    from snakemake_executor_plugin_slurm.partitions import read_partition_file

    partitions = read_partition_file(file)
    for job in workflow.dag.needrun_jobs():
        if not job.is_local and all(partition.score_job_fit(job) is None for partition in partitions):
            asked = job.resources
            raise ValueError(
                f"job {job.rule.name} fits no partition of {file}: it requests {job.threads} cores, "
                f"{asked.get('mem_mb')} MB, {asked.get('runtime')} minutes and {asked.get('gpu', 0)} GPUs; correct the "
                "limits there, request less (set-resources in the profile), or set config key device to cpu if no "
                "partition has GPUs"
            )
