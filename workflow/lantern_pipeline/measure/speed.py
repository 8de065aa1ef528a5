"""Speed: tokens per target forward, latency at batch 1, speed-up over autoregressive decoding, substitutions.

`mean_accepted_length` is, everywhere in this project, the number of tokens emitted per forward pass of the target, the
bonus token included: the prompt's own forward counts, autoregressive decoding has exactly 1, and the wall-clock
speed-up cannot exceed it. Some papers report the accepted drafts alone, which is one less.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lantern_pipeline.measure.intervals import LEVEL, bootstrap_interval, crossed_resamples, ratio_statistic
from lantern_pipeline.measure.registry import with_ends
from lantern_pipeline.measure.repeats import KEYS, repeat_groups

BASELINE = "autoregressive"


def mean_accepted_length(
    num_tokens: np.ndarray, target_forwards: np.ndarray, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, float]:
    """Computes tokens per target forward with its 95 % interval over prompts and repeats, from the counts of each
    image, (prompts,) or (repeats, prompts): mean_accepted_length, mean_accepted_length_low, mean_accepted_length_high.

    The ratio is of totals (all tokens by all forwards, prefill included): the mean over steps of what a step emitted.
    """
    num_tokens, target_forwards = np.asarray(num_tokens), np.asarray(target_forwards)
    low, high = bootstrap_interval(ratio_statistic, num_tokens, target_forwards, num_resamples=num_resamples, seed=seed)
    return {
        "mean_accepted_length": float(num_tokens.sum() / target_forwards.sum()),
        "mean_accepted_length_low": low,
        "mean_accepted_length_high": high,
    }


def summarise_latency(latency: pd.DataFrame, *, num_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Computes latency and speed-up of every method from a table as `pair_latency` takes it: a row per KEYS, and one of
    all repeats where there are several.

    A prompt's time is the least of its rounds. latency_s is their mean over prompts, speedup the ratio of sums over
    prompts, autoregressive decoding's by the method's; both with `_low` and `_high`, 95 % over prompts, rounds and
    repeats. speedup_cpu is the same ratio of the process's core-seconds, num_timed counts the images that were timed,
    and busy_elsewhere is how many cores other work kept busy.
    """
    rows = []
    for key, group in repeat_groups(pair_latency(latency)):
        names = ("seconds", "baseline", "cpu_seconds", "cpu_baseline")
        seconds, baseline, cpu_seconds, cpu_baseline = (_stack_rounds(group, name) for name in names)
        found = [_latency_and_speedup(seconds, baseline)]
        num_repeats, num_rounds, num_prompts = seconds.shape
        of_rounds = np.random.Generator(np.random.PCG64([seed, 2]))
        for repeats, prompts in crossed_resamples(num_repeats, num_prompts, num_resamples, seed):
            rounds = of_rounds.integers(0, num_rounds, (len(repeats), num_rounds))
            for chosen in zip(repeats, rounds, prompts, strict=True):
                found.append(_latency_and_speedup(seconds[np.ix_(*chosen)], baseline[np.ix_(*chosen)]))
        ends = np.quantile(found[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        if num_prompts < 2:
            ends[:] = np.nan
        values = np.stack([found[0], *ends]).T.flatten()
        row = {**dict(zip(KEYS, key, strict=True)), **dict(zip(with_ends("latency_s", "speedup"), values, strict=True))}
        row["speedup_cpu"] = _latency_and_speedup(cpu_seconds, cpu_baseline)[1]
        rows.append({**row, "num_timed": num_repeats * num_prompts, "busy_elsewhere": group["busy_elsewhere"].mean()})
    return pd.DataFrame(rows)


def _stack_rounds(rows: pd.DataFrame, name: str) -> np.ndarray:
    """A column of one group as (repeats, rounds, prompts)."""
    table = rows.pivot(index=["repeat", "round"], columns="prompt_id", values=name)
    return table.to_numpy(np.float64).reshape(rows["repeat"].nunique(), -1, table.shape[1])


def _latency_and_speedup(seconds: np.ndarray, baseline: np.ndarray) -> tuple[float, float]:
    """Mean of the least seconds, and speed-up, of (repeats, rounds, prompts)."""
    least = seconds.min(axis=1)
    return least.mean(), baseline.min(axis=1).sum() / least.sum()


def pair_latency(latency: pd.DataFrame) -> pd.DataFrame:
    """Puts beside each timing (columns KEYS, prompt_id, round, seconds and cpu_seconds at batch 1) that of
    autoregressive decoding of the same prompt and round: baseline and cpu_baseline.

    Methods ran interleaved, so that a prompt's two timings shared the machine's state. Of a method that was timed both
    eagerly and captured, the latter counts.
    """
    if "stepping" in latency.columns:
        is_eager = latency["stepping"] == "eager"
        latency = latency[
            is_eager == is_eager.groupby([latency[name] for name in (*KEYS, "prompt_id")]).transform("all")
        ]
    turn = ["prompt_set", "temperature", "repeat", "prompt_id", "round"]
    baseline = latency[latency["method_id"] == BASELINE].set_index(turn)[["seconds", "cpu_seconds"]]
    baseline.columns = ["baseline", "cpu_baseline"]
    return latency.join(baseline, on=turn, validate="many_to_one")
