"""Peak memory between two calls: `reset_peak` before a computation, `peak_gib` after it."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

GIB = 2**30


def reset_peak(device: torch.device) -> None:
    """Start a new measurement. A CPU needs Linux for this, else the measurement began with the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # this system has no such file, or forbids writing it
            # 5 resets VmHWM, the largest resident memory so far.
            Path("/proc/self/clear_refs").write_text("5")


def peak_gib(device: torch.device) -> float:
    """Return PyTorch's peak memory on a GPU, else this process's resident memory, in GiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GIB
    status = Path("/proc/self/status")
    if status.exists():  # Linux, whose `ru_maxrss` is also the memory of the process that started this one
        return int(re.findall(r"VmHWM:\s*(\d+) kB", status.read_text())[0]) * 1024 / GIB
    # `ru_maxrss` is in bytes on macOS, elsewhere in KiB.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
