"""GPUs of one machine, one job each: Snakemake counts how many are in use, this decides which."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

import torch

from lantern_pipeline.runtime.run_lock import try_lock, wait_until

VARIABLE = "CUDA_VISIBLE_DEVICES"


@contextmanager
def hold_gpus(num: int, rule: str, terminal: TextIO, folder: Path | None = None) -> Iterator[None]:
    """Gives a job GPUs that no other job of this user on this machine has, and makes it see no others.

    They are held by locks of the operating system, which end with the process; where none is free the job waits.
    Without a GPU, or where fewer are visible than are asked for, nothing happens: what uses them says so.

    Args:
        num: GPUs that the job asks for, 0 for none.
        rule: the job's rule, for the message on the terminal.
        terminal: where a job that has to wait says so, once.
        folder: of the lock files; by default one of this user among the machine's temporary files.
    """
    visible = visible_gpus() if num else []
    if not 0 < num <= len(visible):
        yield
        return
    user = os.getuid() if hasattr(os, "getuid") else "user"  # a container's user may have no name
    folder = folder or Path(tempfile.gettempdir(), f"lantern-gpus-{user}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with ExitStack() as stack:
        reason = f"{rule}: waiting for {num} of {len(visible)} GPUs, which other jobs have"
        mine = wait_until(lambda: _take(visible, num, folder, stack), lambda: reason, terminal)
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = ",".join(mine)  # read when CUDA starts, and by processes that the job starts
        try:
            yield
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before


def visible_gpus() -> list[str]:
    """GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    names = os.environ.get(VARIABLE)
    if names is not None:
        return [name.strip() for name in names.split(",") if name.strip()]
    return [str(index) for index in range(torch.cuda.device_count())]


def _take(names: list[str], num: int, folder: Path, stack: ExitStack) -> list[str]:
    """Locks `num` of the GPUs until `stack` ends; where fewer are free, none of them."""
    taken = []
    with ExitStack() as attempt:
        for name in names:
            # In a container of a cluster's job, 0 is the job's own first GPU.
            key = re.sub(r"[^A-Za-z0-9-]", "_", f"{name}-{os.environ.get('SLURM_JOB_ID', '')}")
            if try_lock(attempt.enter_context(open(folder / key, "a", encoding="utf-8"))):
                taken.append(name)
            if len(taken) == num:
                stack.enter_context(attempt.pop_all())
                return taken
    return []
