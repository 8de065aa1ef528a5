"""The clocks of all benchmarks: parts of decoding steps, and medians over blocks of calls."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

import torch

NUM_BLOCKS = 5


class EnoughSteps(Exception):
    """Ends an image of which no more steps are wanted."""


class PartClock:
    """Milliseconds of the parts of decoding steps; a decoder's `timer`.

    Args:
        max_steps: the number of steps after which `EnoughSteps` is raised; None for no such number.

    Attributes:
        parts: milliseconds of each step, by the name of the part; "other" is the rest of "step".
    """

    def __init__(self, max_steps: int | None = None) -> None:
        self.max_steps = max_steps
        self.parts: dict[str, list[float]] = defaultdict(list)
        self._now: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Measure a block as a part of the step that runs."""
        begun = time.perf_counter()
        yield
        self._now[part] += 1000 * (time.perf_counter() - begun)
        if part == "step":
            self._end_step()

    def _end_step(self) -> None:
        self._now["other"] = 2 * self._now["step"] - sum(self._now.values())
        for name, milliseconds in self._now.items():
            self.parts[name].append(milliseconds)
        self._now.clear()
        if len(self.parts["step"]) == self.max_steps:
            raise EnoughSteps

    def medians(self) -> dict[str, float]:
        """Return the median milliseconds of each part, by "<part>_ms"."""
        return {f"{name}_ms": median(values) for name, values in self.parts.items()}


class Timing(NamedTuple):
    """Seconds of a call: the median over blocks, the shortest and the longest block."""

    median: float
    low: float
    high: float


def time_blocks(
    call: Callable[[], object],
    device: torch.device,
    num_calls: int,
    num_blocks: int = NUM_BLOCKS,
    warm_up_s: float = 0.5,
) -> Timing:
    """Time a call in blocks, after a warm-up in which an idle card raises its clock.

    Args:
        call: what is timed.
        device: where it runs; on a GPU, events on the current stream are the clock.
        num_calls: calls of a block, all of which are launched before the host waits.
        num_blocks: number of blocks.
        warm_up_s: seconds of calls that do not count; at least one call.
    """
    begun = time.perf_counter()
    while True:
        call()
        synchronise(device)
        if time.perf_counter() - begun >= warm_up_s:
            break
    seconds = [_time_block(call, device, num_calls) / num_calls for _ in range(num_blocks)]
    return Timing(median(seconds), min(seconds), max(seconds))


def _time_block(call: Callable[[], object], device: torch.device, num_calls: int) -> float:
    if device.type != "cuda":
        begun = time.perf_counter()
        for _ in range(num_calls):
            call()
        return time.perf_counter() - begun
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(num_calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


@contextmanager
def clock(seconds: dict[str, float], name: str, device: torch.device) -> Iterator[None]:
    """Add the seconds of a block to a dictionary, the device synchronised."""
    synchronise(device)
    begun = time.perf_counter()
    yield
    synchronise(device)
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done what it was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
