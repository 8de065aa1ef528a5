"""Locks of a job and of a GPU. The operating system holds them, so that they end with their process, however it ends.

Snakemake's own lock is a file that outlives a killed run, and says nothing of jobs that such a run left behind.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TextIO, TypeVar

T = TypeVar("T")
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}  # some network file systems


def try_lock(file: IO[str]) -> bool:
    """Locks an open file for this process alone, without waiting; False where another process has it locked.

    Where the file system or the system knows no locks, nothing is locked and the answer is True.
    """
    from filelock import lock_descriptor

    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


@contextmanager
def hold_job(rule: str, log: Path, terminal: TextIO) -> Iterator[None]:
    """Lets one process at a time work on the job that writes this log file: a killed Snakemake leaves jobs behind."""
    # Not the log file itself: Snakemake removes it before a job starts.
    path = Path(".snakemake", "lantern_jobs", hashlib.sha256(str(log).encode()).hexdigest()[:16])
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as file:
        left = "which a killed run left at the same job; kill or scancel it to go on"
        _wait_until(lambda: try_lock(file), lambda: f"{rule}: waiting for {_read_holder(file)}, {left}", terminal)
        _write_holder(file)
        yield


@contextmanager
def hold_gpu(rule: str, terminal: TextIO, folder: Path | None = None) -> Iterator[None]:
    """Reserve a GPU for a job, and hide all others from it.

    Snakemake counts the GPUs in use; this function chooses one. If none is free, the job waits. On a machine without a
    GPU nothing happens.
    """
    names = visible_gpus()
    if not names:
        yield
        return
    user = os.getuid() if hasattr(os, "getuid") else "user"  # a container's user may have no name
    folder = folder or Path(tempfile.gettempdir(), f"lantern-gpus-{user}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        reason = f"{rule}: waiting for one of {len(names)} GPUs, which other jobs have"
        mine = _wait_until(lambda: _take_gpu(names, folder, stack), lambda: reason, terminal)
        before = os.environ.get(VISIBLE_GPUS)
        os.environ[VISIBLE_GPUS] = mine  # read when CUDA starts, and by processes that the job starts
        try:
            yield
        finally:
            if before is None:
                del os.environ[VISIBLE_GPUS]
            else:
                os.environ[VISIBLE_GPUS] = before


def visible_gpus() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    names = os.environ.get(VISIBLE_GPUS)
    if names is not None:
        return [name.strip() for name in names.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def _take_gpu(names: list[str], folder: Path, stack: ExitStack) -> str | None:
    """Locks one of the GPUs until `stack` ends; None where none is free."""
    for name in names:
        # In a container of a cluster's job, 0 is the job's own first GPU.
        key = re.sub(r"[^A-Za-z0-9-]", "_", f"{name}-{os.environ.get('SLURM_JOB_ID', '')}")
        with ExitStack() as attempt:
            if try_lock(attempt.enter_context(open(folder / key, "a", encoding="utf-8"))):
                stack.enter_context(attempt.pop_all())
                return name
    return None


def _wait_until(attempt: Callable[[], T | None], reason: Callable[[], str], terminal: TextIO) -> T:
    """Call `attempt` once a second until it returns a true value, and return that. Print once why it waits."""
    if not (found := attempt()):
        print(reason(), file=terminal, flush=True)
        while not (found := attempt()):
            time.sleep(1.0)
    return found


def _write_holder(file: IO[str]) -> None:
    """Empty a locked file and write who holds it: "process 123 on a host", in a Slurm job "..., Slurm job 62"."""
    job = os.environ.get("SLURM_JOB_ID")
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}{f', Slurm job {job}' if job else ''}\n")
    file.flush()


def _read_holder(file: IO[str]) -> str:
    file.seek(0)
    return file.readline().strip()
