"""One run at a time in a folder: a lock of the operating system, which ends with its process however that ends.

Snakemake's own lock is a file that outlives a killed run and that `--unlock` removes without asking whether a run goes
on. No torch here: this is read while Snakemake builds the workflow.
"""

from __future__ import annotations

import errno
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TextIO, TypeVar

try:
    import fcntl
except ImportError:  # Windows, where Snakemake's own lock is all there is
    fcntl = None

T = TypeVar("T")
LOCK_FILE = Path(".snakemake", "lantern.lock")
# What Snakemake may be asked beside a run, since it changes nothing.
_HARMLESS = {"-n", "--dry-run", "--dryrun", "--lint", "--summary", "--detailed-summary", "--dag", "--rulegraph"}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}  # some network file systems


class RunLock:
    """The lock of a folder in which the workflow runs.

    Args:
        path: its file, which stays; what counts is whether a process holds it.
    """

    def __init__(self, path: Path | str = LOCK_FILE) -> None:
        self._path = Path(path)
        self._file: IO[str] | None = None

    def check(self, arguments: Sequence[str]) -> None:
        """Refuses a command that would get into the way of a run that goes on.

        Args:
            arguments: Snakemake's command line.

        Raises:
            ValueError: another process holds the lock; names it.
        """
        if self._path.exists() and not _HARMLESS & set(arguments):
            with open(self._path, "r+", encoding="utf-8") as file:
                if not try_lock(file):
                    raise ValueError(self._refusal(file.read()))

    def hold(self) -> None:
        """Takes the lock until the process ends.

        Raises:
            ValueError: another process holds it; names it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._path, "a+", encoding="utf-8")  # noqa: SIM115 (stays open: closing gives the lock back)
        if not try_lock(self._file):
            self._file.seek(0)
            raise ValueError(self._refusal(self._file.read()))
        write_holder(self._file)

    def _refusal(self, holder: str) -> str:
        return (
            f"a run goes on in {self._path.resolve().parents[1]} ({holder.strip() or 'just started'}) and this one "
            "was not started: wait for it or stop it, then run again"
        )


def try_lock(file: IO[str]) -> bool:
    """Locks an open file for this process alone, without waiting; False where another process has it locked.

    Where the file system or the system knows no locks, nothing is locked and the answer is True.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return True


def wait_until(attempt: Callable[[], T], reason: Callable[[], str], terminal: TextIO) -> T:
    """Tries once a second until it works, and says once why it has to wait.

    Args:
        attempt: what is tried; something true ends the waiting.
        reason: what the terminal shows; asked where the first attempt fails.
        terminal: where it is shown.

    Returns:
        What the attempt gave.
    """
    if not (found := attempt()):
        print(reason(), file=terminal, flush=True)
        while not (found := attempt()):
            time.sleep(1.0)
    return found


def write_holder(file: IO[str]) -> None:
    """Empties a locked file and writes who holds it: "process 123 on a host"."""
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
