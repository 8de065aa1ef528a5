"""Comparisons of methods with autoregressive decoding, with each other, and with published numbers.

Methods are compared prompt by prompt, with the same noise. The difference of two methods is therefore known much more
precisely than their two means.

Each conclusion uses a separate 95 % interval, without a correction for the number of comparisons. If there is no true
difference, about one interval in twenty still excludes 0.

`options` are the arguments num_resamples and seed of the bootstrap. A *length* is tokens per forward pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.intervals import LEVEL, bootstrap_interval, crossed_resamples, mean_statistic
from lantern_pipeline.measure.registry import HIGHER, IMAGES, LOWER, METRICS, NEITHER, Metric, metrics_over
from lantern_pipeline.measure.repeats import KEYS, POOLED, RUN_KEYS, repeat_groups, stack_prompts
from lantern_pipeline.measure.speed.speedups import BASELINE, summarise_latency
from lantern_pipeline.tables.summary import MetricsSection, preferred_rows

PUBLISHED_RESULTS = Path(__file__).with_name("published_results.csv")
OWN_MODEL = "own model"  # first words of the note of a published method that needs a model trained specially for it
INTERVAL = ("difference", "difference_low", "difference_high")
PAIRED_COLUMNS = (*KEYS, "metric", "num_prompts", *INTERVAL, "unit", "conclusion")
NUM_LENGTHS = 21  # number of lengths at which curves are compared
# Columns of published_results.csv that describe a measurement.
OF_A_SOURCE = ("source", "arxiv", "grade", "gpu", "model", "dataset", "temperature", "method", "parameters", "note")
# Which values of a metric are better -> words for a difference above 0 and for one below 0.
WORDS = {HIGHER: ("better", "worse"), LOWER: ("worse", "better"), NEITHER: ("higher", "lower")}

OF_IMAGES = {metric.column: metric for metric in metrics_over(IMAGES) if not metric.is_yes_no}
SPEEDUP = next(metric for metric in METRICS if metric.column == "speedup")


def build_paired(images: pd.DataFrame, latency: pd.DataFrame, *, settings: MetricsSection, seed: int) -> pd.DataFrame:
    """Return one row per metric and combination of KEYS, for all methods but autoregressive decoding.

    Column difference is the mean over prompts of the method minus autoregressive decoding. For the speed-up, which is a
    ratio, it is the speed-up minus 1.
    """
    options = {"num_resamples": settings["bootstrap_resamples"], "seed": seed}
    rows = [*_compare_images(images, options), *_compare_latency(latency, options)]
    return pd.DataFrame(rows, columns=list(PAIRED_COLUMNS))


def conclude(low: float, high: float, num_prompts: int, num_repeats: int = 1, *, metric: Metric) -> str:
    """Write what an interval of a difference shows, such as "better at n = 192". nan is no interval."""
    above, below, none = *WORDS[metric.better], "no detectable difference"
    if metric.column == "nll":  # more probable tokens are not better: greedy images are the most probable
        above, below = "worse", "lower (not a merit by itself)"
    if metric.is_distance:
        # A distance cannot be negative, so there is no word for below.
        above, below, none = "different images", "", "identical images"
    word = "no interval" if not np.isfinite(low) else above if low > 0 else below if high < 0 else none
    return f"{word} at n = {num_prompts}" + (f" in {num_repeats} repeats" if num_repeats > 1 else "")


def _compare_images(images: pd.DataFrame, options: dict[str, int]) -> Iterator[dict[str, object]]:
    # Real images and reconstructions were not decoded by a method.
    decoded = images[images["target_forwards"].notna()]
    groups = dict(repeat_groups(decoded))
    for key, group in groups.items():
        if key[0] == BASELINE:
            continue
        for name, metric in OF_IMAGES.items():
            if name not in group:  # the metric is switched off
                continue
            values = stack_prompts(group, name)
            if not metric.is_distance:
                # A distance is already a difference from the autoregressive image.
                values = values - stack_prompts(groups[BASELINE, *key[1:]], name)
            values = values[:, np.isfinite(values).all(axis=0)]  # prompts without known attributes have no accuracy
            if values.size:
                ends = bootstrap_interval(mean_statistic, values, **options)
                # The images differ if a single one does. Hence the conclusion about a distance, which is never
                # negative, rests on the largest distance of any image, not on the interval of the mean.
                largest = float(values.max())
                shown = (largest, largest) if metric.is_distance else ends
                yield _row(key, metric, values.shape, (float(values.mean()), *ends), shown)


def _compare_latency(latency: pd.DataFrame, options: dict[str, int]) -> Iterator[dict[str, object]]:
    repeats = latency.groupby(list(RUN_KEYS))["repeat"].nunique()
    for row in summarise_latency(latency, **options).to_dict("records"):
        if row["method_id"] == BASELINE:
            continue
        key = tuple(row[name] for name in KEYS)
        # Column num_timed counts a prompt once per repeat.
        num_repeats = repeats[key[:-1]] if row["repeat"] == POOLED else 1
        counts = (num_repeats, row["num_timed"] // num_repeats)
        interval = tuple(row[name] - 1 for name in with_ends("speedup"))
        yield {**_row(key, SPEEDUP, counts, interval, interval[1:]), "unit": f"{SPEEDUP.unit}, minus 1"}


def _row(
    key: tuple[str | float, ...],
    metric: Metric,
    counts: tuple[int, int],
    interval: tuple[float, float, float],
    shown: tuple[float, float],
) -> dict[str, object]:
    """Build a row of `build_paired`.

    `counts` is (repeats, prompts), `interval` (difference, low, high). The conclusion rests on `shown`, (low, high).
    """
    num_repeats, num_prompts = counts
    conclusion = conclude(*shown, num_prompts, num_repeats, metric=metric)
    row = {**dict(zip(KEYS, key, strict=True)), "metric": metric.column, "num_prompts": num_prompts}
    return {**row, **dict(zip(INTERVAL, interval, strict=True)), "unit": metric.unit, "conclusion": conclusion}


def compare_at_equal_length(
    first: pd.DataFrame, second: pd.DataFrame, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, float] | None:
    """Compare the NLL of two families of methods at equal length.

    The methods of a family differ in one parameter, such as delta. Each is one point (length, NLL), and the points of a
    family are joined to a piecewise linear curve. The curves are compared at the lengths that both reach.

    Args:
        first: one row per image of every method in the first family, of one repeat.
        second: the same for the second family, for the same prompts.

    Returns:
        The common lengths, the mean NLL of each curve over them in nats per token, and the difference with its interval
        over prompts. None if there is no common length.
    """
    curves = [_stack(rows) for rows in (first, second)]
    shortest, longest, *means = _read_off(curves, slice(None))
    if shortest > longest:
        return None
    differences = []
    # Both curves get the same prompts of one repeat. The range of lengths is found anew in every resample.
    for _, prompts in crossed_resamples(1, first["prompt_id"].nunique(), num_resamples, seed):
        resampled = [_read_off(curves, chosen) for chosen in prompts]
        # Resamples without a common length are left out.
        differences += [mean - other for least, most, mean, other in resampled if least <= most]
    low, high = (float(end) for end in np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    found = {"shortest": shortest, "longest": longest, "first": means[0], "second": means[1]}
    return {**found, "difference": means[0] - means[1], "low": low, "high": high}


def _stack(rows: pd.DataFrame) -> tuple[np.ndarray, ...]:
    """Return (num_tokens, target_forwards, nll) of several methods, each (methods, prompts)."""
    names = ["num_tokens", "target_forwards", "nll"]
    table = rows.pivot(index="method_id", columns="prompt_id", values=names)
    return tuple(table[name].to_numpy(float) for name in names)


def _read_off(
    curves: Sequence[tuple[np.ndarray, ...]], prompts: slice | np.ndarray
) -> tuple[float, float, float, float]:
    """Return shortest and longest common length, and each family's mean NLL over the lengths between them."""
    # (methods,) per family: total tokens / total forward passes, as in column tokens_per_forward.
    lengths = [tokens[:, prompts].sum(1) / forwards[:, prompts].sum(1) for tokens, forwards, _ in curves]
    shortest, longest = max(values.min() for values in lengths), min(values.max() for values in lengths)
    # `np.interp` needs points in the order of their lengths.
    common, nll = np.linspace(shortest, longest, NUM_LENGTHS), []
    for (_, _, nats), values in zip(curves, lengths, strict=True):
        order = values.argsort()
        nll.append(float(np.interp(common, values[order], nats[:, prompts].mean(1)[order]).mean()))
    return float(shortest), float(longest), *nll


def read_published() -> pd.DataFrame:
    """Read published_results.csv: one row per measurement in a source. What the source does not state is empty."""
    return read_table(PUBLISHED_RESULTS, text_columns=["arxiv"])


def select_published(published: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Select published values of a column for methods other than the baseline that decode an unchanged target."""
    is_other_model = published["note"].str.startswith(OWN_MODEL, na=False)
    return published[published[measure].notna() & (published["method"] != BASELINE) & ~is_other_model]


def compare_with_published(
    published: pd.DataFrame, summary: pd.DataFrame, settings: MetricsSection, model: str | None
) -> pd.DataFrame:
    """Build a table that has results of this run next to published results of the same methods.

    A row of the run matches a published row if it has the same method, temperature and parameters. A published row
    without a match has one row with empty cells. Numbers are comparable only if column is_same_model is true: `model`
    is the name of this run's model in column model of `published`, or None if it has none there.
    """
    measures = {metric.column: metric.columns for metric in METRICS if metric.column in published}
    rows = preferred_rows(summary)
    rows = rows[rows["prompt_set"] == settings["headline_prompt_set"]]
    own = [name for columns in measures.values() for name in columns if name in rows]
    lines = []
    for _, line in published.iterrows():
        found = _matching(rows, line, settings["headline_temperature"])
        head = {name: line[name] for name in OF_A_SOURCE} | {f"{name}_published": line[name] for name in measures}
        head["is_same_model"] = model is not None and line["model"] == model
        # `or [{}]`: a published row without a match stays in the table.
        lines += [head | values for values in found[["method_id", *own]].to_dict("records") or [{}]]
    order = [*OF_A_SOURCE, "is_same_model", "method_id"]
    order += [column for name, columns in measures.items() for column in (f"{name}_published", *columns)]
    return pd.DataFrame(lines).reindex(columns=order)


def _matching(rows: pd.DataFrame, line: pd.Series, default_temperature: float) -> pd.DataFrame:
    # What the source does not state is no condition. For a missing temperature, the run's headline temperature counts.
    temperature = default_temperature if pd.isna(line["temperature"]) else line["temperature"]
    found = rows[(rows["method"] == line["method"]) & (rows["temperature"] == temperature)]
    # Parameters are written as in "delta 0.2".
    for name, value in re.findall(r"(\w+) ([\d.]+)", "" if pd.isna(line["parameters"]) else line["parameters"]):
        found = found[np.isclose(found[name].astype(float), float(value))]
    return found
