"""Clocks for decoding steps, parts of steps, and blocks of calls, on a CPU or a GPU.

`lantern bench`, the workflow's latency, the GPU check and `benchmarks/` use these clocks. Whole images are timed by
`lantern.generation.decode_timed`. This module imports nothing else of the pipeline, because `benchmarks/decode.py` uses
it together with older versions of the packages.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple, cast

import torch

from lantern.generation import synchronise

NUM_BLOCKS = 5
Moment = float | torch.cuda.Event  # seconds on a CPU, an event on a GPU


def now(device: torch.device) -> Moment:
    """Return the current moment: a time in seconds, or on a GPU a CUDA event, for which the host does not wait."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begin: Moment, end: Moment) -> float:
    """Return the seconds between two moments of one device. A GPU must have been synchronised after `end`."""
    if isinstance(begin, torch.cuda.Event):
        # CUDA measures in milliseconds.
        return begin.elapsed_time(cast("torch.cuda.Event", end)) / 1000
    return cast("float", end) - begin


class Timing(NamedTuple):
    """Seconds per call in several blocks of calls: median, fastest and slowest block."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """Summarise the seconds per call of each block."""
        return cls(median(seconds), min(seconds), max(seconds))


def time_blocks(
    call: Callable[[], object],
    device: torch.device,
    num_calls: int,
    num_blocks: int = NUM_BLOCKS,
    warm_up_s: float = 0.5,
) -> Timing:
    """Time a function in blocks of `num_calls` calls, after a warm-up of at least one call."""
    # In the warm-up, an idle GPU raises its clock frequency.
    begun = time.perf_counter()
    while True:
        call()
        synchronise(device)
        if time.perf_counter() - begun >= warm_up_s:
            break
    return Timing.of([_time_block(call, device, num_calls) / num_calls for _ in range(num_blocks)])


def _time_block(call: Callable[[], object], device: torch.device, num_calls: int) -> float:
    begin = now(device)
    for _ in range(num_calls):
        call()
    end = now(device)
    # The host waits only here, at the end of a block, so that it can run ahead of the GPU.
    synchronise(device)
    return seconds_between(begin, end)


@contextmanager
def clock(seconds: dict[str, float], name: str, device: torch.device) -> Iterator[None]:
    """Time the `with` block, between synchronisations of the device, and add the seconds to `seconds[name]`."""
    synchronise(device)
    begun = time.perf_counter()
    yield
    synchronise(device)
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun


class EnoughSteps(Exception):
    """Exception of `PartClock`, which leaves the decoding of an image early."""


class PartClock:
    """Clock of the parts of decoding steps, to be used as `Decoder.timer`. It does not wait for a GPU.

    Attributes:
        max_steps: number of steps after which the clock raises `EnoughSteps`. None for no limit.
        parts: name of a part -> its milliseconds in each step. "step" is the whole step, "other" is the time of the
            step that belongs to no named part.
    """

    def __init__(self, max_steps: int | None = None) -> None:
        self.max_steps = max_steps
        self.parts: dict[str, list[float]] = defaultdict(list)
        self._now: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Time the `with` block as one part of the current step. Part "step" is the whole step, and ends it."""
        begun = time.perf_counter()
        yield
        self._now[part] += 1000 * (time.perf_counter() - begun)
        if part == "step":
            self._end_step()

    def _end_step(self) -> None:
        # The sum holds the step itself: other = step - (sum - step).
        self._now["other"] = 2 * self._now["step"] - sum(self._now.values())
        for name, milliseconds in self._now.items():
            self.parts[name].append(milliseconds)
        self._now.clear()
        if len(self.parts["step"]) == self.max_steps:
            raise EnoughSteps

    def medians(self) -> dict[str, float]:
        """Return the median of each part over all steps, as "<part>_ms" -> milliseconds."""
        return {f"{name}_ms": median(values) for name, values in self.parts.items()}
