"""Repeats of a run: one row per training seed and noise seed, and one of all of them together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lantern_pipeline.measure.intervals import NORMAL_QUANTILE, normal_interval

PLACE = ("method_id", "prompt_set", "temperature")
KEYS = (*PLACE, "repeat")
POOLED = "pooled"


def training_seed(repeat: str) -> int:
    """Reads the training seed off a repeat's name: 3 of "s3n0"."""
    return int(repeat.removeprefix("s").partition("n")[0])


def repeat_groups(table: pd.DataFrame) -> Iterator[tuple[tuple[str, str, float, str], pd.DataFrame]]:
    """Splits a table with the columns KEYS into the groups that get a row each, as (key, rows): first all repeats
    together, named POOLED, of each method, prompt set and temperature that has several; then every repeat alone.
    """
    for place, rows in table.groupby(list(PLACE), sort=False):
        if rows["repeat"].nunique() > 1:
            yield (*place, POOLED), rows
    yield from table.groupby(list(KEYS), sort=False)


def stack_prompts(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Arranges a column of one group, each prompt once a repeat, as (repeats, prompts) float64, both sorted by name."""
    return rows.pivot(index="repeat", columns="prompt_id", values=name).to_numpy(dtype=np.float64)


def combine_repeats(values: np.ndarray, lows: np.ndarray, highs: np.ndarray) -> tuple[float, float, float]:
    """Combines shares and their 95 % intervals, each (repeats,), where no per-prompt values are at hand: the mean over
    the repeats that have a value with its interval; that of the only one, unchanged; nan for none.

    The squared standard error is mean(se_i^2) / R + (variance between the repeats) / R. The spread between repeats
    contains that within them, so that the interval is conservative, except that two or three repeats tell little of
    their spread.
    """
    values, lows, highs = (np.asarray(column, dtype=np.float64) for column in (values, lows, highs))
    known = np.isfinite(values)
    values, lows, highs = values[known], lows[known], highs[known]
    if len(values) < 2:
        mean, low, high = (float(column[0]) if len(column) else float("nan") for column in (values, lows, highs))
        return mean, low, high
    # an end that was cut off at 0 or 1 would tell too small an error; the other one does not
    errors = np.maximum(values - lows, highs - values) / NORMAL_QUANTILE
    variance = (np.mean(errors**2) + np.var(values, ddof=1)) / len(values)
    mean = float(values.mean())
    return (mean, *normal_interval(mean, float(np.sqrt(variance))))
