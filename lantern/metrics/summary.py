"""The table of results: one row per method x parameters x prompt set x temperature, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lantern.metrics.bootstrap import bootstrap_interval, mean_statistic
from lantern.metrics.speed import mean_accepted_length, summarise_latency

KEYS = ("method_id", "prompt_set", "temperature")
SUMMARY_COLUMNS = (
    "method",
    "tree",
    "drafts",
    "relaxation",
    "residual",
    "neighbours",
    "k",
    "delta",
    "lambda_",
    "temperature",
    "cfg_scale",
    "prompt_set",
    "num_images",
    "mean_accepted_length",
    "mean_accepted_length_low",
    "mean_accepted_length_high",
    "latency_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "num_timed",
    "substitutions",
    "nll",
    "nll_low",
    "nll_high",
    "fid",
    "kid",
    "precision",
    "recall",
    "clip_score",
    "clip_score_low",
    "clip_score_high",
    "prompt_accuracy",
    "prompt_accuracy_low",
    "prompt_accuracy_high",
    "prompt_accuracy_change",
    "prompt_accuracy_change_low",
    "prompt_accuracy_change_high",
    "all_correct",
    "tokens_equal_autoregressive",
    "num_near_ties",
    "method_id",
)
MEANS = ("nll", "clip_score", "prompt_accuracy")


def build_summary(
    quality: Sequence[pd.DataFrame],
    images: Sequence[pd.DataFrame],
    latency: pd.DataFrame,
    *,
    settings: Mapping[str, Any],
    seed: int,
) -> pd.DataFrame:
    """Assembles the table of results.

    Args:
        quality: tables of `measure_quality`, one row per method.
        images: its tables of one row per method x prompt.
        latency: method_id, prompt_set, temperature, prompt_id, seconds; prompt sets that were not timed have empty
            cells.
        settings: config section `metrics`: bootstrap_resamples.
        seed: of the bootstrap.

    Returns:
        SUMMARY_COLUMNS. `prompt_accuracy_change` is the paired difference from autoregressive decoding of the same
        noise. The ceilings, methods "real" and "reconstruction", appear once per prompt set, with an empty temperature.

    Raises:
        ValueError: a method lacks its table of images, or a column is missing.
    """
    rows = pd.concat(quality, ignore_index=True)
    per_image = pd.concat(images, ignore_index=True)
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
    groups = {key: group for key, group in per_image.groupby(list(KEYS), sort=False)}
    extra = []
    for key in rows[list(KEYS)].itertuples(index=False, name=None):
        if key not in groups:
            raise ValueError(f"there is no table of images for {key[0]} on {key[1]} at temperature {key[2]:g}")
        baseline = groups[("autoregressive", *key[1:])]
        extra.append({**dict(zip(KEYS, key, strict=True)), **_measure_group(groups[key], baseline, options)})
    # the point values of the quality tables are means over the same images; they come from the images alone
    summary = rows.drop(columns=[*MEANS]).merge(pd.DataFrame(extra), on=list(KEYS), how="left", validate="one_to_one")
    speed = summarise_latency(latency, **options)
    summary = summary.merge(speed, on=list(KEYS), how="left", validate="one_to_one")
    summary = _keep_ceilings_once(summary)
    missing = [name for name in SUMMARY_COLUMNS if name not in summary.columns]
    if missing:
        raise ValueError(f"the quality tables lack the column {missing[0]}; measure quality again")
    return summary[list(SUMMARY_COLUMNS)]


def _measure_group(group: pd.DataFrame, baseline: pd.DataFrame, options: dict[str, int]) -> dict[str, float]:
    """Means and intervals of one method on one prompt set at one temperature."""
    values: dict[str, float] = {}
    for name in MEANS:
        values |= _mean_with_interval(name, group[name].to_numpy(), options)
    if group["target_forwards"].isna().any():  # a ceiling: nothing was decoded
        return values
    paired = group.set_index("prompt_id")["prompt_accuracy"] - baseline.set_index("prompt_id")["prompt_accuracy"]
    values |= _mean_with_interval("prompt_accuracy_change", paired.to_numpy(), options)
    values |= mean_accepted_length(group["num_tokens"].to_numpy(int), group["target_forwards"].to_numpy(int), **options)
    values["substitutions"] = float(group["substitutions"].mean())
    return values


def _mean_with_interval(name: str, column: np.ndarray, options: dict[str, int]) -> dict[str, float]:
    """Mean over the prompts that have a value, and its interval; nan where none has."""
    known = column[np.isfinite(column)]
    if not len(known):
        return {name: np.nan, f"{name}_low": np.nan, f"{name}_high": np.nan}
    low, high = bootstrap_interval(mean_statistic, known, **options)
    return {name: float(known.mean()), f"{name}_low": low, f"{name}_high": high}


def _keep_ceilings_once(summary: pd.DataFrame) -> pd.DataFrame:
    """Ceilings do not depend on the temperature: keeps the first of each prompt set."""
    is_ceiling = summary["method"].isin(["real", "reconstruction"])
    repeated = is_ceiling & summary.duplicated(subset=["method", "prompt_set"])
    summary = summary[~repeated].copy()
    summary.loc[summary["method"].isin(["real", "reconstruction"]), "temperature"] = np.nan
    return summary.reset_index(drop=True)
