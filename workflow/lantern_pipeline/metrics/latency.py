"""Latency at batch 1: every method draws the same prompts in turn, so that a drift of the machine hits all alike."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lantern.decoding import Decoder
from lantern.decoding_state import DecodingState
from lantern.generation import decode_timed, synchronise
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.stepping import StepRunner
from lantern_pipeline.metrics.intervals import bootstrap_interval, mean_statistic
from lantern_pipeline.metrics.timed_images import TimedImage

PARTS = ("draft", "target", "score", "verify", "commit")  # of a step, as `Decoder.timer` is told them
COLUMNS = ["method_id", "temperature", "stepping", "prompt_id", "seconds", "target_forwards"]


def measure_latency(
    decoders: Sequence[Decoder], prompts: Sequence[Prompt], encoder: TextEncoder, *, run_seed: int, num_warmup: int
) -> tuple[pd.DataFrame, list[TimedImage]]:
    """Times decoders image by image at batch 1, interleaved: one row per decoder, stepping and prompt, COLUMNS, seconds
    without text encoding, noise and image decoding; and the images themselves, with the seconds of their forwards.
    Decoders whose steps are captured are timed eagerly, too, but for the images; captures need a warm-up image.

    The order of the decoders is turned by one place from image to image, so that none profits from its neighbour. The
    first `num_warmup` images of each decoder are not counted.
    """
    timed = [stepped for decoder in decoders for stepped in _both_ways(decoder)]
    rows, images = [], []
    for turn in tqdm(range(-num_warmup, len(prompts)), desc="latency", unit="image of each method", disable=None):
        prompt = prompts[turn % len(prompts)]
        for place in range(len(timed)):
            decoder = timed[(place + turn) % len(timed)]
            with _marks(decoder) as marks:
                generation, seconds = decode_timed(decoder, [prompt], encoder, run_seed)
            if turn < 0:
                continue
            method, temperature = decoder.spec.to_dict(), decoder.sampling.temperature
            setting = (method["method_id"], temperature, decoder.runner.mode, prompt.id)
            rows.append((*setting, seconds, int(generation.target_forwards[0])))
            if decoder in decoders:
                images.append(TimedImage(method, temperature, prompt.id, generation, _step_seconds(marks, seconds)))
    return pd.DataFrame(rows, columns=COLUMNS), images


@contextmanager
def _marks(decoder: Decoder) -> Iterator[list[float | torch.cuda.Event]]:
    """Moments at which the forwards of an image begin, prefill first; the decoder is left as it was."""
    marks, runner = [], decoder.runner
    decoder.runner = _MarkingRunner(runner, lambda: marks.append(_now(decoder.device)))
    try:
        yield marks
    finally:
        decoder.runner = runner


class _MarkingRunner:
    """A decoder's runner that says when an image begins, and when each of its steps does."""

    def __init__(self, runner: StepRunner, mark: Callable[[], None]) -> None:
        self._runner, self._mark = runner, mark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def borrow(self, decoder: Decoder, num_rows: int) -> DecodingState:
        self._mark()
        return self._runner.borrow(decoder, num_rows)

    def step(self, decoder: Decoder, state: DecodingState) -> None:
        self._mark()
        self._runner.step(decoder, state)


def _now(device: torch.device) -> float | torch.cuda.Event:
    """The clock's time; on a GPU an event in its queue, for which nothing waits."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _step_seconds(marks: Sequence[float | torch.cuda.Event], seconds: float) -> list[float]:
    """Seconds of each forward of an image that took `seconds`; the last forward lasts to the image's end."""
    is_clock = isinstance(marks[0], float)
    begun = [mark - marks[0] if is_clock else marks[0].elapsed_time(mark) / 1000 for mark in marks]
    return np.diff([*begun, max(seconds, begun[-1])]).tolist()


def _both_ways(decoder: Decoder) -> list[Decoder]:
    return [decoder] if decoder.runner.mode == "eager" else [decoder.stepped("eager"), decoder]


def profile_steps(
    decoders: Sequence[Decoder],
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    *,
    run_seed: int,
    num_resamples: int = 1000,
) -> pd.DataFrame:
    """Takes the steps of every method apart by the clock, at batch 1: one row per method and part (PARTS and "other"):
    method_id, part, milliseconds (mean per step after the prefill, with _low and _high over images), num_steps.

    Steps are run eagerly, and the clocks cost something themselves: parts are to be compared with each other, whole
    images are timed by `measure_latency`. The first image of each decoder does not count.
    """
    spent: dict[tuple[str, str], list[float]] = defaultdict(list)
    num_steps: dict[str, int] = defaultdict(int)
    for turn in tqdm(range(-1, len(prompts)), desc="profile", unit="image of each method", disable=None):
        for decoder in decoders:
            with _clocks(decoder) as clocks:
                generation, _ = decode_timed(decoder, [prompts[max(turn, 0)]], encoder, run_seed)
            if turn < 0:
                continue
            method_id, steps = decoder.spec.method_id, int(generation.target_forwards[0]) - 1
            num_steps[method_id] += steps
            clocks["other"] = clocks.pop("step") - sum(clocks[part] for part in PARTS)
            for part, seconds in clocks.items():
                spent[method_id, part].append(1000 * seconds / steps)
    rows = []
    for (method_id, part), values in spent.items():
        low, high = bootstrap_interval(mean_statistic, np.array(values), num_resamples=num_resamples, seed=run_seed)
        interval = {"milliseconds_low": low, "milliseconds_high": high}
        row = {"method_id": method_id, "part": part, "milliseconds": float(np.mean(values)), **interval}
        rows.append({**row, "num_steps": num_steps[method_id]})
    return pd.DataFrame(rows)


@contextmanager
def _clocks(decoder: Decoder) -> Iterator[dict[str, float]]:
    """Seconds spent in each part and in whole steps ("step") while the block runs; the decoder is left as it was."""
    seconds = dict.fromkeys([*PARTS, "step"], 0.0)

    @contextmanager
    def clock(part: str) -> Iterator[None]:
        synchronise(decoder.device)
        begun = time.perf_counter()
        yield
        synchronise(decoder.device)
        seconds[part] += time.perf_counter() - begun

    timer, decoder.timer = decoder.timer, clock
    try:
        yield seconds
    finally:
        decoder.timer = timer
