"""Speed: tokens per target forward, latency at batch 1, speed-up over autoregressive decoding, substitutions.

`mean_accepted_length` is, everywhere in this project, the number of tokens emitted per forward pass of the target, the
bonus token included: the prompt's own forward counts, autoregressive decoding has exactly 1, and the wall-clock
speed-up cannot exceed it. Some papers report the accepted drafts alone, which is one less.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lantern_pipeline.measure.intervals import bootstrap_interval, median_statistic, ratio_statistic
from lantern_pipeline.measure.repeats import KEYS, repeat_groups, stack_prompts

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
    """Computes median latency and paired speed-up of every method, with 95 % intervals over prompts and repeats, from a
    table as `pair_latency` takes it: one row per KEYS, and one of all repeats where there are several, with latency_s
    and speedup (medians) with `_low` and `_high`, and num_timed (timed images).

    The speed-up is the median of the paired ratios: the median ignores single hiccups of the machine.
    """
    options = {"num_resamples": num_resamples, "seed": seed}
    rows = []
    for key, group in repeat_groups(pair_latency(latency)):
        row: dict[str, object] = dict(zip(KEYS, key, strict=True))
        for name, column in (("latency_s", "seconds"), ("speedup", "ratio")):
            values = stack_prompts(group, column)
            low, high = bootstrap_interval(median_statistic, values, **options)
            row |= {name: float(np.median(values)), f"{name}_low": low, f"{name}_high": high}
        rows.append({**row, "num_timed": len(group)})
    return pd.DataFrame(rows)


def pair_latency(latency: pd.DataFrame) -> pd.DataFrame:
    """Pairs each timing (columns KEYS, prompt_id, seconds at batch 1) with that of autoregressive decoding of the same
    prompt: one row per KEYS and prompt, with seconds and ratio, the seconds of autoregressive decoding by the method's.

    Methods ran interleaved, so that a prompt's two timings shared the machine's state. A prompt that was timed several
    times counts once, by its median. Of a method that was timed both eagerly and captured, the latter
    counts.
    """
    if "stepping" in latency.columns:
        is_eager = latency["stepping"] == "eager"
        latency = latency[
            is_eager == is_eager.groupby([latency[name] for name in (*KEYS, "prompt_id")]).transform("all")
        ]
    place = ["prompt_set", "temperature", "repeat"]
    per_prompt = latency.groupby([*place, "method_id", "prompt_id"], sort=False)["seconds"].median().reset_index()
    parts = []
    for _, group in per_prompt.groupby(place, sort=False):
        baseline = group[group["method_id"] == BASELINE].set_index("prompt_id")["seconds"]
        for _, rows in group.groupby("method_id", sort=False):
            parts.append(rows.assign(ratio=baseline.loc[rows["prompt_id"]].to_numpy() / rows["seconds"]))
    return pd.concat(parts, ignore_index=True)
