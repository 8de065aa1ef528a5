"""Differences from autoregressive decoding, paired by prompt, and what can be said of each at this number of prompts.

Methods share their noise, so that two images of one prompt differ by the method alone; a paired difference is known
far better than the two means are.

Each verdict stands for itself: of true zeros, about one in twenty falls outside its 95 % interval. In a table of many
rows, expect that share of the verdicts "better" and "worse" to be chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lantern_pipeline.metrics.intervals import bootstrap_interval, mean_statistic, median_statistic
from lantern_pipeline.metrics.repeats import KEYS, repeat_groups, stack_prompts
from lantern_pipeline.metrics.speed import BASELINE, pair_latency

INTERVAL = ("difference", "difference_low", "difference_high")
PAIRED_COLUMNS = (*KEYS, "metric", "num_prompts", *INTERVAL, "unit", "verdict")


@dataclass(frozen=True)
class Comparison:
    """How a metric is compared with autoregressive decoding's.

    Attributes:
        unit: of the difference.
        above: what a difference above zero is called.
        below: what one below zero is called.
        none: what is said where the interval holds zero.
        is_distance: the column is a distance from the autoregressive image, thus a difference already.
    """

    unit: str
    above: str = "better"
    below: str = "worse"
    none: str = "no detectable difference"
    is_distance: bool = False


SPEEDUP = Comparison("times autoregressive decoding, minus 1")
OF_IMAGES = {
    # likelier tokens are not better ones: greedy images are the likeliest
    "nll": Comparison("nats per token", above="worse", below="lower (not a merit by itself)"),
    "clip_score": Comparison("cosine"),
    "hps": Comparison("cosine"),
    "prompt_accuracy": Comparison("share of attributes"),
    "pixel_mse": Comparison("squared intensity, of 1", "different images", "", "identical images", is_distance=True),
    "feature_distance": Comparison(
        "standard deviations of a feature", "different images", "", "identical images", is_distance=True
    ),
}


def build_paired(
    images: pd.DataFrame, latency: pd.DataFrame, *, settings: Mapping[str, Any], seed: int
) -> pd.DataFrame:
    """Compares every method with autoregressive decoding of the same prompts, noise and weights.

    Args:
        images: `Quality.images` of all prompt sets, temperatures and repeats; ceilings are left out.
        latency: as `pair_latency` takes it.
        settings: config section `metrics`: bootstrap_resamples.
        seed: of the bootstrap.

    Returns:
        PAIRED_COLUMNS, one row per KEYS x metric that was measured; pooled rows where there are several repeats.
            `difference` is a mean over prompts, that of the speed-up a median; with its 95 % interval over prompts and
            repeats. `num_prompts` counts prompts, in each repeat.

    Raises:
        ValueError: a method without autoregressive decoding beside it, or as `pair_latency` does.
    """
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
    rows = [*_compare_images(images, options), *_compare_latency(latency, options)]
    return pd.DataFrame(rows, columns=list(PAIRED_COLUMNS))


def judge(low: float, high: float, num_prompts: int, num_repeats: int = 1, *, comparison: Comparison) -> str:
    """Says what a 95 % interval of a difference tells, and at how many prompts."""
    place = f"at n = {num_prompts}" + (f" in {num_repeats} repeats" if num_repeats > 1 else "")
    if not np.isfinite(low):
        return f"no interval {place}"
    word = comparison.above if low > 0 else comparison.below if high < 0 else comparison.none
    return f"{word} {place}"


def _compare_images(images: pd.DataFrame, options: dict[str, int]) -> Iterator[dict[str, Any]]:
    decoded = images[images["target_forwards"].notna()]
    groups = dict(repeat_groups(decoded))
    for key, group in groups.items():
        if key[0] == BASELINE:
            continue
        if (BASELINE, *key[1:]) not in groups:
            raise ValueError(f"{key[0]} on {key[1]} at temperature {key[2]:g} has no {BASELINE} rows beside it")
        for metric, comparison in OF_IMAGES.items():
            if metric not in group:  # switched off
                continue
            values = stack_prompts(group, metric)
            if not comparison.is_distance:
                values = values - stack_prompts(groups[BASELINE, *key[1:]], metric)
            values = values[:, np.isfinite(values).all(axis=0)]  # prompts of free text have no accuracy
            if not values.size:
                continue
            low, high = bootstrap_interval(mean_statistic, values, **options)
            yield _row(key, metric, values, (float(values.mean()), low, high), comparison)


def _compare_latency(latency: pd.DataFrame, options: dict[str, int]) -> Iterator[dict[str, Any]]:
    for key, group in repeat_groups(pair_latency(latency)):
        if key[0] != BASELINE:
            ratios = stack_prompts(group, "ratio") - 1
            low, high = bootstrap_interval(median_statistic, ratios, **options)
            yield _row(key, "speedup", ratios, (float(np.median(ratios)), low, high), SPEEDUP)


def _row(
    key: tuple[str, ...], metric: str, values: np.ndarray, interval: tuple[float, float, float], comparison: Comparison
) -> dict[str, Any]:
    num_repeats, num_prompts = values.shape
    low, high = interval[1:]
    if comparison.is_distance:  # never negative: one image that differs is a difference, whatever the interval holds
        low = high = float(values.max())
    verdict = judge(low, high, num_prompts, num_repeats, comparison=comparison)
    row = {**dict(zip(KEYS, key, strict=True)), "metric": metric, "num_prompts": num_prompts}
    return {**row, **dict(zip(INTERVAL, interval, strict=True)), "unit": comparison.unit, "verdict": verdict}
