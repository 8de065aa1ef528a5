"""Repeats of a run: one row per training seed and noise seed, and one pooled row of all repeats."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from lantern_pipeline.measure.intervals import NORMAL_QUANTILE, normal_interval

# Columns that identify the row of a run without repeats.
RUN_KEYS = ("method_id", "prompt_set", "temperature")
KEYS = (*RUN_KEYS, "repeat")
POOLED = "pooled"


def training_seed(repeat: str) -> int:
    """Return the training seed in a repeat's name: 3 for "s3n0"."""
    return int(repeat.removeprefix("s").partition("n")[0])


def repeat_groups(table: pd.DataFrame) -> Iterator[tuple[tuple[str, str, float, str], pd.DataFrame]]:
    """Split a table with the columns KEYS into the groups that get a row each.

    Yields:
        (key, rows). First, for each method, prompt set and temperature with several repeats, all repeats together,
        named POOLED. Then each single repeat.
    """
    for key, rows in table.groupby(list(RUN_KEYS), sort=False):
        if rows["repeat"].nunique() > 1:
            yield (*key, POOLED), rows
    yield from table.groupby(list(KEYS), sort=False)


def stack_prompts(rows: pd.DataFrame, name: str) -> np.ndarray:
    """Arrange a column of one group as float64 (repeats, prompts), both sorted by name.

    Each prompt occurs once per repeat.
    """
    return rows.pivot(index="repeat", columns="prompt_id", values=name).to_numpy(dtype=np.float64)


def combine_repeats(values: np.ndarray, lows: np.ndarray, highs: np.ndarray) -> tuple[float, float, float]:
    """Combine shares and their 95 % intervals over repeats, if there are no values per prompt.

    The squared standard error is mean(se_i^2) / R + (variance between the repeats) / R for R repeats. The spread
    between repeats includes the spread within them, so the interval is conservative. But two or three repeats tell
    little about their spread.

    Args:
        values: shares, (repeats,); nan for repeats without a value.
        lows: lower ends, (repeats,).
        highs: upper ends, (repeats,).

    Returns:
        (mean, low, high) over the repeats with a value. A single value is unchanged, and no value gives nan.
    """
    values, lows, highs = (np.asarray(column, dtype=np.float64) for column in (values, lows, highs))
    known = np.isfinite(values)
    values, lows, highs = values[known], lows[known], highs[known]
    if len(values) < 2:
        mean, low, high = (float(column[0]) if len(column) else float("nan") for column in (values, lows, highs))
        return mean, low, high
    # an end that was clipped at 0 or 1 would give too small an error; the other end does not
    errors = np.maximum(values - lows, highs - values) / NORMAL_QUANTILE
    variance = (np.mean(errors**2) + np.var(values, ddof=1)) / len(values)
    mean = float(values.mean())
    return (mean, *normal_interval(mean, float(np.sqrt(variance))))
