"""Table of results: one row per method, parameters, prompt set, temperature and repeat, with 95 % intervals.

If the run has several repeats, each method also has a pooled row, which comes first and has "pooled" in column repeat.
Rows of real images and of their reconstructions by the tokenizer, which no method generated, are called *ceilings*,
because no method can be expected to be better.

In this file, a *group* has one row per image: the images of one method, prompt set and temperature, in one repeat or in
all. The interval of column x is in x_low and x_high. `options` are the arguments num_resamples and seed of the
bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import pandas as pd

from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.intervals import (
    bootstrap_interval,
    mean_with_interval,
    ratio_statistic,
    share_interval,
)
from lantern_pipeline.measure.registry import (
    CEILINGS,
    IMAGES,
    METRICS,
    SETS,
    TV_COLUMNS,
    TV_INTERVALS,
    TV_VALUES,
    metrics_over,
)
from lantern_pipeline.measure.repeats import (
    KEYS,
    POOLED,
    RUN_KEYS,
    combine_repeats,
    repeat_groups,
    stack_prompts,
    training_seed,
)
from lantern_pipeline.measure.speed.speedups import BASELINE, summarise_latency, tokens_per_forward
from lantern_pipeline.tables.method_labels import PARTS, SYMBOLS, custom_parameters, label_rows

METHOD_PARTS = ("method", *PARTS, *SYMBOLS, "is_exact")
SAMPLING = ("cfg_scale", "dtype")
# Metric -> columns with its details, which follow its columns in the table.
_DETAILS = {
    # Stepping is "eager" or "graph" (CUDA graph). Column speedup_eager is the speed-up if both methods run eagerly, and
    # empty unless the timed steps ran as CUDA graphs.
    "speedup": ("speedup_cpu", "busy_elsewhere", "machine", "num_timed", "stepping", *with_ends("speedup_eager")),
    "clip_score": ("clip_num_cut",),  # images whose caption CLIP does not read to its end
    "hps": ("hps_num_cut",),
    "prompt_accuracy": with_ends("prompt_accuracy_change"),  # paired difference from autoregressive decoding
    # Nats between the two largest keys of autoregressive decoding at the first token that differs, median over images.
    "tokens_equal_autoregressive": ("num_near_ties", "margin_at_difference"),
    # [1:]: the columns of tv_mean itself are the metric's.
    "tv_mean": (*with_ends(*TV_INTERVALS[1:]), *TV_VALUES),
}
SUMMARY_COLUMNS = (
    *(*METHOD_PARTS, "temperature", *SAMPLING, "prompt_set", "repeat", "num_images", "num_repeats"),
    # The target's own quality. Its prompt accuracy is that of autoregressive decoding.
    *("target_cross_entropy", "target_prompt_accuracy"),
    *(
        column
        for metric in METRICS
        if not metric.is_distance
        for column in (*metric.columns, *_DETAILS.get(metric.column, ()))
    ),
    "method_id",
)


class MetricsSection(TypedDict):
    """The keys of config section `metrics` that tables and figures use. config.yaml explains them."""

    bootstrap_resamples: int
    headline_prompt_set: str
    headline_temperature: float
    sample_prompts: int
    sample_methods: Sequence[str] | None
    proximity_prompts: int


def build_summary(
    quality: pd.DataFrame,
    images: pd.DataFrame,
    latency: pd.DataFrame,
    total_variation: pd.DataFrame,
    cross_entropy: Mapping[int, float],
    *,
    settings: MetricsSection,
    seed: int,
) -> pd.DataFrame:
    """Build the table of results. Cells of values that were not measured are empty.

    Args:
        quality: one row per method or ceiling, and repeat, from `measure_quality`.
        images: one row per method and image, from `measure_quality`.
        latency: timings at batch 1, from `measure_latency`.
        total_variation: one row per method and repeat, from `measure_methods`.
        cross_entropy: training seed -> cross-entropy of the target on held-out images, in nats per token.

    Returns:
        The columns SUMMARY_COLUMNS, and those of custom parameters.
    """
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
    images_of = dict(repeat_groups(images))
    summary = []
    for key, rows in repeat_groups(quality):
        values = {**dict(zip(KEYS, key, strict=True)), **_combine_quality(rows)}
        values |= _measure_images(images_of[key], options)
        if key[0] not in CEILINGS:  # whose method ids are their names
            values |= _measure_decoding(images_of[key], images_of[BASELINE, *key[1:]], options)
            # Repeats share a target if they have the same training seed.
            entropies = [cross_entropy[training_seed(repeat)] for repeat in rows["repeat"]]
            values["target_cross_entropy"] = float(np.mean(entropies))
        summary.append(values)
    table = _keep_ceilings_once(pd.DataFrame(summary))
    parts = [summarise_latency(latency, **options), _combine_tv(total_variation)]
    is_eager, columns = latency["stepping"] == "eager", with_ends("speedup")
    if is_eager.nunique() > 1:  # a CUDA graph replaces a method's eager timings above
        eager = summarise_latency(latency[is_eager], **options)[[*KEYS, *columns]]
        parts.append(eager.rename(columns=dict(zip(columns, with_ends("speedup_eager"), strict=True))))
    for part in parts:
        # Left joins: the ceilings and untimed methods keep their rows.
        table = table.merge(part, on=list(KEYS), how="left", validate="many_to_one")
    table = table.merge(_steppings(latency), on=list(RUN_KEYS), how="left", validate="many_to_one")
    return table.reindex(columns=[*SUMMARY_COLUMNS, *custom_parameters(table)])


def _steppings(latency: pd.DataFrame) -> pd.DataFrame:
    """Return how the timed steps of each method ran, with columns RUN_KEYS and stepping."""
    modes = latency.groupby(list(RUN_KEYS))["stepping"]
    # If a method was timed in both ways, its speed-up is that of the graph.
    return modes.agg(lambda found: next((mode for mode in found if mode != "eager"), "eager")).reset_index()


def preferred_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """Select one row per method, prompt set and temperature: the pooled row, or the row of the only repeat."""
    is_pooled = summary["repeat"] == POOLED
    # `dropna=False`: ceilings have an empty temperature.
    has_pooled = is_pooled.groupby([summary[name] for name in RUN_KEYS], dropna=False).transform("any")
    return summary[is_pooled | ~has_pooled]


def select_headline(summary: pd.DataFrame, settings: MetricsSection) -> pd.DataFrame:
    """Select the run's main results, the *headline rows*, and add the column `label`.

    There is one row per method, at the prompt set and temperature that the config keys metrics.headline_* name, without
    ceilings.
    """
    prompt_set, temperature = settings["headline_prompt_set"], settings["headline_temperature"]
    rows = preferred_rows(summary)
    # Ceilings have no temperature, so they equal none.
    rows = rows[(rows["prompt_set"] == prompt_set) & (rows["temperature"] == temperature)]
    rows = rows.reset_index(drop=True)
    return rows.assign(label=label_rows(rows))


def select_ceilings(summary: pd.DataFrame, settings: MetricsSection) -> pd.DataFrame:
    """Select one row each for real images and reconstructions at the headline prompt set, with column `label`."""
    rows = preferred_rows(summary)
    rows = rows[rows["method"].isin(CEILINGS) & (rows["prompt_set"] == settings["headline_prompt_set"])]
    return rows.assign(label=label_rows(rows)).reset_index(drop=True)


def _combine_quality(rows: pd.DataFrame) -> dict[str, object]:
    """Combine the rows of a method's repeats in the quality table into one."""
    over_sets = [metric for metric in metrics_over(SETS) if metric.column in rows]
    # What describes the method is the same in all repeats.
    values = {name: rows[name].iloc[0] for name in (*METHOD_PARTS, *custom_parameters(rows), *SAMPLING) if name in rows}
    counts = [name for name in ("num_images", "clip_num_cut", "hps_num_cut") if name in rows]
    values |= {name: int(rows[name].sum()) for name in counts} | {"num_repeats": len(rows)}
    # A metric of a set, such as FID, exists once per repeat: the mean has no interval.
    values |= {metric.column: float(rows[metric.column].mean()) for metric in over_sets}
    return values


def _combine_tv(rows: pd.DataFrame) -> pd.DataFrame:
    """Build one row per method and repeat, and the pooled rows, from the table of total variation."""
    from scipy.stats import combine_pvalues  # figures import this module, and need not wait half a second for it

    combined = []
    for key, group in repeat_groups(rows[rows["repeat"] != POOLED]):
        values: dict[str, object] = dict(zip(KEYS, key, strict=True))
        for name in TV_INTERVALS:
            columns = with_ends(name)
            # The table has no values per prompt for a bootstrap, so repeats are combined by their intervals.
            values |= dict(zip(columns, combine_repeats(*(group[column] for column in columns)), strict=True))
        values |= {name: group[name].max() if name == "tv_max" else group[name].mean() for name in TV_VALUES}
        p_values = group["law_p"].dropna()
        # Fisher's method, which takes the tests of the repeats as independent.
        values["law_p"] = combine_pvalues(p_values).pvalue if len(p_values) else np.nan
        combined.append(values)
    return pd.DataFrame(combined, columns=[*KEYS, *TV_COLUMNS])


def _measure_images(group: pd.DataFrame, options: dict[str, int]) -> dict[str, float]:
    """Return the mean of each metric of single images, or the share of images with yes, with intervals."""
    values: dict[str, float] = {}
    for metric in metrics_over(IMAGES):
        # Distances from the autoregressive image are in the table of comparisons.
        if metric.is_distance or metric.per_image not in group:  # if not measured, the summary has empty cells
            continue
        measured = stack_prompts(group, metric.per_image)
        if metric.is_yes_no:
            values |= _share_with_interval(metric.column, measured, np.isfinite(measured), options)
        else:
            values |= mean_with_interval(metric.column, measured, **options)
    return values


def _measure_decoding(group: pd.DataFrame, baseline: pd.DataFrame, options: dict[str, int]) -> dict[str, float]:
    """Measure tokens per forward pass, substitutions and equal tokens, and the paired change of prompt accuracy."""
    values: dict[str, float] = {}
    if "prompt_accuracy" in group:  # the config may switch it off
        accuracy, reference = (stack_prompts(rows, "prompt_accuracy") for rows in (group, baseline))
        values |= mean_with_interval("prompt_accuracy_change", accuracy - reference, **options)
        # Only the mean: the ends of the interval have other keys.
        values["target_prompt_accuracy"] = mean_with_interval("", reference, **options)[""]
    names = ("num_tokens", "target_forwards", "substitutions", "is_equal", "is_near_tie")
    tokens, forwards, substitutions, is_equal, is_near_tie = (stack_prompts(group, name) for name in names)
    values |= tokens_per_forward(tokens, forwards, **options)
    values |= mean_with_interval("substitutions", substitutions, **options)
    # Images that differ at a near-tie are left out: rounding decided, not the method.
    values |= _share_with_interval("tokens_equal_autoregressive", is_equal, is_near_tie == 0, options)
    near_ties, margin = int(is_near_tie.sum()), group["margin_at_difference"].median()
    return {**values, "num_near_ties": near_ties, "margin_at_difference": margin}


def _share_with_interval(
    name: str, is_hit: np.ndarray, is_counted: np.ndarray, options: dict[str, int]
) -> dict[str, float]:
    """Compute the share of counted images with a property, and its 95 % interval.

    Both arrays are (repeats, prompts). All results are nan if no image is counted.
    """
    if not is_counted.any():
        return dict.fromkeys(with_ends(name), np.nan)
    hits = np.where(is_counted, is_hit, 0.0)
    low, high = (float(end) for end in share_interval(hits.sum(), is_counted.sum()))  # for independent images
    if len(hits) > 1:  # images of one repeat depend on each other, and so do images of one prompt
        ends = bootstrap_interval(ratio_statistic, hits, is_counted, **options)
        # The wider of both, since the bootstrap has no width if all images are hits.
        low, high = min(low, ends[0]), max(high, ends[1])
    return {name: float(hits.sum() / is_counted.sum()), f"{name}_low": low, f"{name}_high": high}


def _keep_ceilings_once(summary: pd.DataFrame) -> pd.DataFrame:
    """Keep one row per ceiling, prompt set and repeat, without temperature."""
    # The quality table repeats ceilings for every temperature, although their images do not depend on it.
    is_ceiling = summary["method"].isin(CEILINGS)
    summary = summary[~(is_ceiling & summary.duplicated(subset=["method", "prompt_set", "repeat"]))].copy()
    summary.loc[summary["method"].isin(CEILINGS), "temperature"] = np.nan
    return summary.reset_index(drop=True)
