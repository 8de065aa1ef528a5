"""Speed: tokens per forward pass of the target, and, at batch 1, latency, relative step cost and speed-up.

speed-up = tokens per forward / relative step cost. Tokens per forward carry over from machine to machine, the other
two do not: the cost of a step depends on how much of it is arithmetic on the step's tokens.

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
SPEEDS = ("latency_s", "relative_step_cost", "speedup")


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
    """Compute latency, relative step cost and speed-up of every method.

    A prompt's time is the least of its rounds.

    Args:
        latency: a table as `pair_latency` takes it.
        num_resamples: bootstrap resamples of the intervals.
        seed: random seed of the bootstrap.

    Returns:
        A row per KEYS, and one of all repeats if there are several. Of prompts, rounds and repeats, with 95 % intervals
        (`_low`, `_high`): latency_s, the mean over prompts; relative_step_cost, the seconds of a forward pass by those
        of autoregressive decoding; speedup, the sum of autoregressive decoding's seconds by the method's. speedup_cpu
        is the same ratio of the process's core-seconds, num_timed the number of images that were timed, busy_elsewhere
        the cores that other work kept busy, and machine what decoded.
    """
    rows = []
    for key, group in repeat_groups(pair_latency(latency)):
        names = ("seconds", "baseline", "target_forwards", "baseline_forwards", "cpu_seconds", "cpu_baseline")
        *times, cpu_seconds, cpu_baseline = (_stack_rounds(group, name) for name in names)
        seconds = times[0]
        found = [_speeds(*times)]
        num_repeats, num_rounds, num_prompts = seconds.shape
        of_rounds = np.random.Generator(np.random.PCG64([seed, 2]))
        for repeats, prompts in crossed_resamples(num_repeats, num_prompts, num_resamples, seed):
            rounds = of_rounds.integers(0, num_rounds, (len(repeats), num_rounds))
            for chosen in zip(repeats, rounds, prompts, strict=True):
                found.append(_speeds(*(part[np.ix_(*chosen)] for part in times)))
        ends = np.quantile(found[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        if num_prompts < 2:
            ends[:] = np.nan
        values = np.stack([found[0], *ends]).T.flatten()
        row = {**dict(zip(KEYS, key, strict=True)), **dict(zip(with_ends(*SPEEDS), values, strict=True))}
        row["speedup_cpu"] = _speeds(cpu_seconds, cpu_baseline, *times[2:])[-1]
        row |= {"num_timed": num_repeats * num_prompts, "busy_elsewhere": group["busy_elsewhere"].mean()}
        rows.append({**row, "machine": ", ".join(sorted(group["machine"].unique()))})
    return pd.DataFrame(rows)


def _stack_rounds(rows: pd.DataFrame, name: str) -> np.ndarray:
    """A column of one group as (repeats, rounds, prompts)."""
    table = rows.pivot(index=["repeat", "round"], columns="prompt_id", values=name)
    return table.to_numpy(np.float64).reshape(rows["repeat"].nunique(), -1, table.shape[1])


def _speeds(
    seconds: np.ndarray, baseline: np.ndarray, forwards: np.ndarray, baseline_forwards: np.ndarray
) -> tuple[float, float, float]:
    """Compute SPEEDS from the least seconds of each prompt; all arrays are (repeats, rounds, prompts)."""
    least, baseline = seconds.min(axis=1), baseline.min(axis=1)
    step_cost = (least.sum() / forwards[:, 0].sum()) / (baseline.sum() / baseline_forwards[:, 0].sum())
    return least.mean(), step_cost, baseline.sum() / least.sum()


def pair_latency(latency: pd.DataFrame) -> pd.DataFrame:
    """Join each timing at batch 1 with autoregressive decoding's of the same prompt and round.

    Methods ran interleaved, so that a prompt's two timings shared the machine's state. If a method was timed both
    eagerly and captured, the captured times count.

    Args:
        latency: columns KEYS, prompt_id, round, seconds, cpu_seconds and target_forwards.

    Returns:
        The table with columns baseline, cpu_baseline and baseline_forwards.
    """
    if "stepping" in latency.columns:
        is_eager = latency["stepping"] == "eager"
        latency = latency[
            is_eager == is_eager.groupby([latency[name] for name in (*KEYS, "prompt_id")]).transform("all")
        ]
    turn = ["prompt_set", "temperature", "repeat", "prompt_id", "round"]
    baseline = latency[latency["method_id"] == BASELINE].set_index(turn)[["seconds", "cpu_seconds", "target_forwards"]]
    baseline.columns = ["baseline", "cpu_baseline", "baseline_forwards"]
    return latency.join(baseline, on=turn, validate="many_to_one")
