"""What this machine lends to jobs. Read while Snakemake builds the workflow: no torch here."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def memory_bytes(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Memory that this process and those it starts may have together.

    Args:
        groups: where Linux shows its control groups, version 2.
        own: where Linux names the one of this process.

    Returns:
        The machine's memory, or less where a container or a cluster's session has a limit; None on a system that does
        not say.
    """
    limits = []
    with suppress(AttributeError, ValueError, OSError):  # no such question on this system
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    names = [line.removeprefix("0::/") for line in _read(own).splitlines() if line.startswith("0::/")]
    for group in [groups / name for name in names]:
        limits += [int(text) for place in (group, *group.parents) if (text := _read(place / "memory.max")).isdecimal()]
    return min(limits, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
