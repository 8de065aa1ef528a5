"""Latency at batch 1: every method draws the same prompts in turn, so that a drift of the machine hits all alike."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lantern.decoding import Decoder
from lantern.decoding_state import DecodingState
from lantern.generation import decode_timed, synchronise
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern_pipeline.metrics.intervals import bootstrap_interval, mean_statistic

PARTS = ("draft", "target", "score", "verify", "commit")  # of a step, as `Decoder.timer` is told them
COLUMNS = ["method_id", "temperature", "stepping", "prompt_id", "seconds", "target_forwards"]


def measure_latency(
    decoders: Sequence[Decoder], prompts: Sequence[Prompt], encoder: TextEncoder, *, run_seed: int, num_warmup: int
) -> pd.DataFrame:
    """Times decoders image by image at batch 1, interleaved: one row per decoder, stepping and prompt, COLUMNS, seconds
    without text encoding, noise and image decoding. Decoders whose steps are captured or compiled are timed eagerly,
    too; captures and compilations need a warm-up image.

    The order of the decoders is turned by one place from image to image, so that none profits from its neighbour. The
    first `num_warmup` images of each decoder are not counted.
    """
    decoders = [stepped for decoder in decoders for stepped in _both_ways(decoder)]
    rows = []
    for turn in tqdm(range(-num_warmup, len(prompts)), desc="latency", unit="image of each method", disable=None):
        prompt = prompts[turn % len(prompts)]
        for place in range(len(decoders)):
            decoder = decoders[(place + turn) % len(decoders)]
            generation, seconds = decode_timed(decoder, [prompt], encoder, run_seed)
            if turn >= 0:
                forwards = int(generation.target_forwards[0])
                setting = (decoder.spec.method_id, decoder.sampling.temperature, decoder.runner.mode)
                rows.append((*setting, prompt.id, seconds, forwards))
    return pd.DataFrame(rows, columns=COLUMNS)


def _both_ways(decoder: Decoder) -> list[Decoder]:
    return [decoder] if decoder.runner.mode == "eager" else [decoder.stepped("eager"), decoder]


@torch.inference_mode()
def relative_step_times(
    decoders: Sequence[Decoder],
    baseline: Decoder,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    *,
    run_seed: int,
    num_steps: int,
) -> list[float]:
    """Times of decoders' steps in steps of `baseline`, all on one batch of the prompts: for each decoder the ratio of
    the fastest of `num_steps` steps that both take in turn, so that a drift of the machine hits both alike. First steps
    do not count. No more than two batches are held at once.
    """
    captions = encoder.encode([prompt.text for prompt in prompts])

    def start(decoder: Decoder) -> DecodingState:
        return decoder.start(*captions, [decoder.make_noise(run_seed, prompt.id) for prompt in prompts])

    base_state, ratios = start(baseline), []
    for decoder in decoders:
        pairs = ((decoder, start(decoder)), (baseline, base_state))
        turns = [[_time_step(*pair) for pair in pairs] for _ in range(num_steps + 1)]
        own, other = np.min(turns[1:], axis=0)
        ratios.append(float(own / other))
    return ratios


def _time_step(decoder: Decoder, state: DecodingState) -> float:
    """Seconds of a step; those of a complete batch take as long as others."""
    state.noise.advance(state.lengths, decoder.max_depth + 1)
    synchronise(decoder.device)
    begun = time.perf_counter()
    decoder.runner.step(decoder, state)
    synchronise(decoder.device)
    return time.perf_counter() - begun


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
