"""Environment variables of every job, in one place. Read while Snakemake builds the workflow: no torch here."""

from __future__ import annotations

import os
from pathlib import Path

# Snakemake itself sets OMP_NUM_THREADS and its kin from each rule's `threads`.
JOB_ENVIRONMENT = {
    # glibc gives large tensors back to the system and faults them in again, at up to ten times the cost: let it keep
    # them.
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
    # GNU OpenMP's threads wait for each other by spinning. Where another process wants the core, that costs five times
    # the work itself (measured: 468 against 92 ms for a training step with two threads); so they soon go to sleep.
    "GOMP_SPINCOUNT": "2000",
    # Nothing is fetched from a model hub in the middle of a run.
    "HF_HUB_OFFLINE": "1",
}


def set_job_environment(root: Path | str) -> None:
    """Sets the variables that jobs inherit; a value that the user has set stays.

    Scripts import the packages of the project's folder `root`, whether they are installed or not.
    """
    for name, value in JOB_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    own = [str(root), str(Path(root, "workflow"))]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in own]
    os.environ["PYTHONPATH"] = os.pathsep.join([*own, *others])
