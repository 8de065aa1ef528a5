"""The table of results: one row per method x parameters x prompt set x temperature x repeat, with 95 % intervals.

Where the run was repeated with other seeds, the rows of all repeats together, `repeat` "pooled", stand first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
import pandas as pd
from scipy.stats import combine_pvalues

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
    with_ends,
)
from lantern_pipeline.measure.repeats import (
    KEYS,
    PLACE,
    POOLED,
    combine_repeats,
    repeat_groups,
    stack_prompts,
    training_seed,
)
from lantern_pipeline.measure.speed import BASELINE, mean_accepted_length, summarise_latency
from lantern_pipeline.tables.method_labels import PARTS, SYMBOLS, custom_parameters, label_rows

METHOD_PARTS = ("method", *PARTS, *SYMBOLS, "is_exact")
SAMPLING = ("cfg_scale", "dtype")
# What stands behind a metric and belongs to it.
_DETAILS = {
    "speedup": ("speedup_cpu", "busy_elsewhere", "machine", "num_timed", "stepping", *with_ends("speedup_eager")),
    "prompt_accuracy": with_ends("prompt_accuracy_change"),
    "tokens_equal_autoregressive": ("num_near_ties", "margin_at_difference"),
    "tv_mean": (*with_ends(*TV_INTERVALS[1:]), *TV_VALUES),
}
SUMMARY_COLUMNS = (
    *(*METHOD_PARTS, "temperature", *SAMPLING, "prompt_set", "repeat", "num_images", "num_repeats"),
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
    """The keys of config section `metrics` that tables and figures read."""

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
    """Assembles the table of results, SUMMARY_COLUMNS, pooled rows first; what was not measured has empty cells.

    `cross_entropy`: the target's on held-out images by training seed. `prompt_accuracy_change` is the paired difference
    from autoregressive decoding, whose accuracy is `target_prompt_accuracy`. `stepping` is how the timed steps ran;
    where they were captured, `speedup_eager` has eager steps on both sides. `margin_at_difference` is the median of the
    autoregressive decoder's margins, in nats, where images first differ.
    """
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
    images_of = dict(repeat_groups(images))
    summary = []
    for key, rows in repeat_groups(quality):
        values = {**dict(zip(KEYS, key, strict=True)), **_combine_quality(rows)}
        values |= _measure_images(images_of[key], options)
        if key[0] not in CEILINGS:
            values |= _measure_decoding(images_of[key], images_of[BASELINE, *key[1:]], options)
            entropies = [cross_entropy[training_seed(repeat)] for repeat in rows["repeat"]]
            values["target_cross_entropy"] = float(np.mean(entropies))
        summary.append(values)
    table = _keep_ceilings_once(pd.DataFrame(summary))
    parts = [summarise_latency(latency, **options), _combine_tv(total_variation)]
    is_eager, columns = latency["stepping"] == "eager", with_ends("speedup")
    if is_eager.nunique() > 1:  # eager steps over eager steps, beside captured ones
        eager = summarise_latency(latency[is_eager], **options)[[*KEYS, *columns]]
        parts.append(eager.rename(columns=dict(zip(columns, with_ends("speedup_eager"), strict=True))))
    for part in parts:
        table = table.merge(part, on=list(KEYS), how="left", validate="many_to_one")
    table = table.merge(_steppings(latency), on=list(PLACE), how="left", validate="many_to_one")
    return table.reindex(columns=[*SUMMARY_COLUMNS, *custom_parameters(table)])


def _steppings(latency: pd.DataFrame) -> pd.DataFrame:
    """How the steps of each method ran whose times count: PLACE and `stepping`."""
    modes = latency.groupby(list(PLACE))["stepping"]
    return modes.agg(lambda found: next((mode for mode in found if mode != "eager"), "eager")).reset_index()


def preferred_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """Selects one row per method, prompt set and temperature: the pooled one, or the only repeat's where none is."""
    is_pooled = summary["repeat"] == POOLED
    has_pooled = is_pooled.groupby([summary[name] for name in PLACE], dropna=False).transform("any")
    return summary[is_pooled | ~has_pooled]


def select_headline(summary: pd.DataFrame, settings: MetricsSection) -> pd.DataFrame:
    """Selects the preferred rows of config keys metrics.headline_*, ceilings left out, with a column `label`."""
    prompt_set, temperature = settings["headline_prompt_set"], settings["headline_temperature"]
    rows = preferred_rows(summary)
    rows = rows[(rows["prompt_set"] == prompt_set) & (rows["temperature"] == temperature)]
    rows = rows.reset_index(drop=True)
    return rows.assign(label=label_rows(rows))


def select_ceilings(summary: pd.DataFrame, settings: MetricsSection) -> pd.DataFrame:
    """Selects the preferred ceilings of the headline's prompt set, with a column `label`."""
    rows = preferred_rows(summary)
    rows = rows[rows["method"].isin(CEILINGS) & (rows["prompt_set"] == settings["headline_prompt_set"])]
    return rows.assign(label=label_rows(rows)).reset_index(drop=True)


def _combine_quality(rows: pd.DataFrame) -> dict[str, object]:
    """The method's parts and its metrics of whole sets of images, over one or more repeats."""
    over_sets = [metric for metric in metrics_over(SETS) if metric.column in rows]
    values = {name: rows[name].iloc[0] for name in (*METHOD_PARTS, *custom_parameters(rows), *SAMPLING) if name in rows}
    values |= {"num_images": int(rows["num_images"].sum()), "num_repeats": len(rows)}
    values |= {metric.column: float(rows[metric.column].mean()) for metric in over_sets}
    return values


def _combine_tv(rows: pd.DataFrame) -> pd.DataFrame:
    """Total variations over all repeats: means, but the largest of tv_max, and p-values combined by Fisher's method."""
    combined = []
    for key, group in repeat_groups(rows[rows["repeat"] != POOLED]):
        values: dict[str, object] = dict(zip(KEYS, key, strict=True))
        for name in TV_INTERVALS:
            columns = with_ends(name)
            values |= dict(zip(columns, combine_repeats(*(group[column] for column in columns)), strict=True))
        values |= {name: group[name].max() if name == "tv_max" else group[name].mean() for name in TV_VALUES}
        p_values = group["law_p"].dropna()
        values["law_p"] = combine_pvalues(p_values).pvalue if len(p_values) else np.nan
        combined.append(values)
    return pd.DataFrame(combined, columns=[*KEYS, *TV_COLUMNS])


def _measure_images(group: pd.DataFrame, options: dict[str, int]) -> dict[str, float]:
    """Means or shares, and intervals, of what was measured on each image."""
    values: dict[str, float] = {}
    for metric in metrics_over(IMAGES):
        if metric.is_distance or metric.per_image not in group:  # not measured: the summary has empty cells
            continue
        measured = stack_prompts(group, metric.per_image)
        if metric.is_yes_no:
            values |= _share_with_interval(metric.column, measured, np.isfinite(measured), options)
        else:
            values |= mean_with_interval(metric.column, measured, **options)
    return values


def _measure_decoding(group: pd.DataFrame, baseline: pd.DataFrame, options: dict[str, int]) -> dict[str, float]:
    """Means and intervals of how the images were decoded and what changed against autoregressive decoding."""
    values: dict[str, float] = {}
    if "prompt_accuracy" in group:
        accuracy, reference = (stack_prompts(rows, "prompt_accuracy") for rows in (group, baseline))
        values |= mean_with_interval("prompt_accuracy_change", accuracy - reference, **options)
        values["target_prompt_accuracy"] = mean_with_interval("", reference, **options)[""]
    names = ("num_tokens", "target_forwards", "substitutions", "is_equal", "is_near_tie")
    tokens, forwards, substitutions, is_equal, is_near_tie = (stack_prompts(group, name) for name in names)
    values |= mean_accepted_length(tokens, forwards, **options)
    values |= mean_with_interval("substitutions", substitutions, **options)
    values |= _share_with_interval("tokens_equal_autoregressive", is_equal, is_near_tie == 0, options)
    near_ties, margin = int(is_near_tie.sum()), group["margin_at_difference"].median()
    return {**values, "num_near_ties": near_ties, "margin_at_difference": margin}


def _share_with_interval(
    name: str, is_hit: np.ndarray, is_counted: np.ndarray, options: dict[str, int]
) -> dict[str, float]:
    """Share of hits among the counted images (repeats, prompts), its exact interval, or the bootstrap's if wider."""
    if not is_counted.any():
        return dict.fromkeys(with_ends(name), np.nan)
    hits = np.where(is_counted, is_hit, 0.0)
    low, high = (float(end) for end in share_interval(hits.sum(), is_counted.sum()))
    if len(hits) > 1:  # images of one repeat are not independent; neither are those of one prompt
        ends = bootstrap_interval(ratio_statistic, hits, is_counted, **options)
        low, high = min(low, ends[0]), max(high, ends[1])
    return {name: float(hits.sum() / is_counted.sum()), f"{name}_low": low, f"{name}_high": high}


def _keep_ceilings_once(summary: pd.DataFrame) -> pd.DataFrame:
    """Ceilings do not depend on the temperature: keeps the first of each prompt set and repeat."""
    is_ceiling = summary["method"].isin(CEILINGS)
    summary = summary[~(is_ceiling & summary.duplicated(subset=["method", "prompt_set", "repeat"]))].copy()
    summary.loc[summary["method"].isin(CEILINGS), "temperature"] = np.nan
    return summary.reset_index(drop=True)
