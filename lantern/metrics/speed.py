"""Speed: tokens per target forward, latency at batch 1, speed-up over autoregressive decoding, substitutions.

`mean_accepted_length` is, everywhere in this project, the number of tokens emitted per forward pass of the target, the
bonus token included: the prompt's own forward counts, autoregressive decoding has exactly 1, and the wall-clock
speed-up cannot exceed it. Some papers report the accepted drafts alone, which is one less.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lantern.metrics.bootstrap import bootstrap_interval, median_statistic, ratio_statistic

BASELINE = "autoregressive"


def mean_accepted_length(
    num_tokens: np.ndarray, target_forwards: np.ndarray, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, float]:
    """Computes tokens per target forward over a set of images, with its 95 % interval over prompts.

    The ratio is of totals (all tokens by all forwards): the mean over steps of what a step emitted.

    Args:
        num_tokens: (images,) integer, tokens of each image.
        target_forwards: (images,) integer, forward passes of the target that each image took, prefill included.
        num_resamples: bootstrap resamples.
        seed: of the bootstrap.

    Returns:
        mean_accepted_length, mean_accepted_length_low, mean_accepted_length_high: tokens per forward.

    Raises:
        ValueError: an image with no forward, or with more forwards than tokens.
    """
    num_tokens, target_forwards = np.asarray(num_tokens), np.asarray(target_forwards)
    if (target_forwards < 1).any() or (target_forwards > num_tokens).any():
        raise ValueError("target_forwards must lie in [1, number of tokens]: every forward emits a token at least")
    low, high = bootstrap_interval(ratio_statistic, num_tokens, target_forwards, num_resamples=num_resamples, seed=seed)
    value = float(ratio_statistic(num_tokens.astype(np.float64), target_forwards.astype(np.float64)))
    return {
        "mean_accepted_length": value,
        "mean_accepted_length_low": low,
        "mean_accepted_length_high": high,
    }


def summarise_latency(latency: pd.DataFrame, *, num_resamples: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Computes median latency and paired speed-up of every method.

    Repeats of a prompt are reduced to their median first. The speed-up is the median over prompts of the paired ratio
    seconds of autoregressive / seconds of the method: methods ran interleaved, so that a prompt's two timings shared
    the machine's state, and the median ignores single hiccups of the machine. The interval resamples prompts, hence
    pairs.

    Args:
        latency: columns method_id, prompt_set, temperature, prompt_id, seconds (batch 1), one row per timed image.
        num_resamples: bootstrap resamples.
        seed: of the bootstrap.

    Returns:
        One row per method_id x prompt_set x temperature: latency_s (median over prompts), speedup, speedup_low,
            speedup_high,
        num_timed (prompts).

    Raises:
        ValueError: a missing column, a time that is not positive, no autoregressive rows, or a prompt without its
            partner.
    """
    _check_latency(latency)
    keys = ["prompt_set", "temperature"]
    per_prompt = latency.groupby([*keys, "method_id", "prompt_id"], sort=False)["seconds"].median().reset_index()
    rows = []
    for (prompt_set, temperature), group in per_prompt.groupby(keys, sort=False):
        baseline = group[group.method_id == BASELINE].set_index("prompt_id")["seconds"]
        if baseline.empty:
            raise ValueError(f"latency of {prompt_set} at temperature {temperature} has no rows of {BASELINE}")
        for method_id, seconds in group.groupby("method_id", sort=False):
            ratios = _paired_ratios(baseline, seconds.set_index("prompt_id")["seconds"], str(method_id))
            low, high = bootstrap_interval(median_statistic, ratios, num_resamples=num_resamples, seed=seed)
            rows.append(
                {
                    "method_id": method_id,
                    "prompt_set": prompt_set,
                    "temperature": temperature,
                    "latency_s": float(seconds["seconds"].median()),
                    "speedup": float(np.median(ratios)),
                    "speedup_low": low,
                    "speedup_high": high,
                    "num_timed": len(ratios),
                }
            )
    return pd.DataFrame(rows)


def _paired_ratios(baseline: pd.Series, seconds: pd.Series, method_id: str) -> np.ndarray:
    """Seconds of the baseline by seconds of the method, prompt by prompt: (prompts,)."""
    alone = sorted(set(baseline.index) ^ set(seconds.index))
    if alone:
        raise ValueError(
            f"prompt {alone[0]} was timed for only one of {BASELINE} and {method_id}; a speed-up is paired"
        )
    return (baseline.loc[seconds.index] / seconds).to_numpy()


def _check_latency(latency: pd.DataFrame) -> None:
    required = ["method_id", "prompt_set", "temperature", "prompt_id", "seconds"]
    missing = [name for name in required if name not in latency.columns]
    if missing:
        raise ValueError(f"the latency table lacks the column {missing[0]}; it has {list(latency.columns)}")
    if not (latency["seconds"] > 0).all():
        raise ValueError("the latency table holds a time that is not a positive number of seconds")
