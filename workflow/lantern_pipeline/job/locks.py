"""Locks that keep two processes from using the same GPU.

The operating system releases a lock when its process ends, even if the process is killed.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TextIO

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}  # some network file systems


def try_lock(file: IO[str]) -> bool:
    """Lock an open file for this process, without waiting. Return False if another process has locked it.

    If the file system does not support locks, nothing is locked and the result is True.
    """
    from filelock import lock_descriptor

    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


@contextmanager
def hold_gpu(rule: str, terminal: TextIO, folder: Path | None = None) -> Iterator[None]:
    """Context manager: reserve a free GPU for a job, and hide all other GPUs from the job.

    Snakemake limits the number of jobs that use a GPU, but does not choose the GPU. On a machine without one, nothing
    happens.

    Args:
        folder: folder of the lock files; None for a folder of the user in the system's temporary folder.
    """
    names = visible_gpus()
    if not names:
        yield
        return
    user = os.getuid() if hasattr(os, "getuid") else "user"  # a container's user may have no name
    folder = folder or Path(tempfile.gettempdir(), f"lantern-gpus-{user}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        if not (mine := _take_gpu(names, folder, stack)):
            print(f"{rule}: waiting for one of {len(names)} GPUs, which other jobs have", file=terminal, flush=True)
            while not (mine := _take_gpu(names, folder, stack)):
                time.sleep(1.0)
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
    """Return the names of the GPUs that this process may use, in the form that CUDA_VISIBLE_DEVICES accepts."""
    names = os.environ.get(VISIBLE_GPUS)
    if names is not None:
        return [name.strip() for name in names.split(",") if name.strip()]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def _take_gpu(names: list[str], folder: Path, stack: ExitStack) -> str | None:
    """Lock a free GPU until `stack` is closed and return its name, or return None if no GPU is free."""
    for name in names:
        # Several Slurm jobs may use the same name for different GPUs, so the key contains the number of the Slurm job.
        key = re.sub(r"[^A-Za-z0-9-]", "_", f"{name}-{os.environ.get('SLURM_JOB_ID', '')}")
        # `attempt` closes the file again if another process has locked it; else `pop_all` moves it to `stack`
        with ExitStack() as attempt:
            if try_lock(attempt.enter_context(open(folder / key, "a", encoding="utf-8"))):
                stack.enter_context(attempt.pop_all())
                return name
    return None
