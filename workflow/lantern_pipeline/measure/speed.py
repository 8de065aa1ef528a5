"""Speed: tokens per forward pass of the target. At batch 1 also latency, relative step cost and speed-up.

speed-up = tokens per forward pass / relative step cost. The relative step cost is the time per forward pass, with
drafting and verification, divided by the time of an autoregressive step. Tokens per forward pass are the same on other
machines. Step cost and speed-up are not, because machines differ in how much longer a step takes if it has more tokens.

In this project, `mean_accepted_length` is always the number of tokens emitted per forward pass of the target, including
the bonus token. Some papers count only the accepted drafts, which gives one less. The prefill counts as a forward pass,
so that autoregressive decoding has exactly 1. The wall-clock speed-up cannot exceed this number.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.intervals import LEVEL, bootstrap_interval, crossed_resamples, ratio_statistic
from lantern_pipeline.measure.repeats import KEYS, repeat_groups, stack_prompts

BASELINE = "autoregressive"
SPEEDS = ("latency_s", "relative_step_cost", "speedup")


def mean_accepted_length(
    num_tokens: np.ndarray, target_forwards: np.ndarray, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, float]:
    """Compute the tokens per forward pass of the target, with a 95 % interval over prompts and repeats of the run.

    The value is the total number of tokens, divided by the total number of forward passes, including prefill. It equals
    the mean number of tokens that a forward pass emits.

    Args:
        num_tokens: number of tokens of each image, (prompts,) or (repeats, prompts).
        target_forwards: number of forward passes of each image, the same shape.
        num_resamples: number of bootstrap resamples.
        seed: random seed of the bootstrap.

    Returns:
        Columns mean_accepted_length (the value), mean_accepted_length_low and mean_accepted_length_high.
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

    The time of a prompt is its time in the fastest round.

    Args:
        latency: timings at batch 1, one row per method, prompt and round, with the columns that `pair_latency` needs.
        num_resamples: number of bootstrap resamples of the intervals.
        seed: random seed of the bootstrap.

    Returns:
        One row per combination of KEYS (method, prompt set, temperature, repeat), and one row that pools all repeats if
        the run was repeated with other seeds. The first three columns have 95 % intervals (`_low`, `_high`) over
        prompts, rounds and repeats.

        - latency_s: mean time of an image in seconds.
        - relative_step_cost: time per forward pass, divided by the time per forward pass of autoregressive decoding.
        - speedup: total time of autoregressive decoding, divided by the total time of the method.
        - speedup_cpu: speed-up computed from the process's CPU seconds, summed over cores, instead of wall-clock time.
        - num_timed: number of timed images.
        - busy_elsewhere: mean number of cores that other processes kept busy.
        - machine: name of the processor.
    """
    rows = []
    for key, group in repeat_groups(pair_latency(latency)):
        names = ("seconds", "baseline", "target_forwards", "baseline_forwards", "cpu_seconds", "cpu_baseline")
        keys = ("repeat", "round", "prompt_id")
        *times, cpu_seconds, cpu_baseline = (stack_prompts(group, name, keys) for name in names)
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


def _speeds(
    seconds: np.ndarray, baseline: np.ndarray, forwards: np.ndarray, baseline_forwards: np.ndarray
) -> tuple[float, float, float]:
    """Compute mean latency, relative step cost and speed-up of a method, from the fastest round of each prompt.

    Args:
        seconds: times of the method. All four arrays are (repeats, rounds, prompts).
        baseline: times of autoregressive decoding.
        forwards: numbers of forward passes of the method.
        baseline_forwards: numbers of forward passes of autoregressive decoding.

    Returns:
        (mean latency in seconds, relative step cost, speed-up), in the order of SPEEDS.
    """
    least, baseline = seconds.min(axis=1), baseline.min(axis=1)
    step_cost = (least.sum() / forwards[:, 0].sum()) / (baseline.sum() / baseline_forwards[:, 0].sum())
    return least.mean(), step_cost, baseline.sum() / least.sum()


def pair_latency(latency: pd.DataFrame) -> pd.DataFrame:
    """Join each timing at batch 1 with the timing of autoregressive decoding for the same prompt and round.

    Methods took turns image by image, so the machine had the same load during both timings. If a method was timed both
    with eager steps and as a CUDA graph, only the timing of the graph is kept.

    Args:
        latency: a table with the columns prompt_id, round, seconds, cpu_seconds and target_forwards, and those that
            `repeats.KEYS` lists. Column stepping ("eager" or "graph") is optional.

    Returns:
        The table with three more columns, which repeat three columns for autoregressive decoding: baseline (seconds),
        cpu_baseline (cpu_seconds) and baseline_forwards (target_forwards).
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
