"""Grouping of table rows by repeats: repetitions of the run with other seeds.

A repeat has one training seed and one noise seed. Its name states both, such as "s3n0". A summary has one row per
repeat, and one *pooled* row that combines all repeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from lantern_pipeline.measure.intervals import NORMAL_QUANTILE, normal_interval

# Columns that identify a row if the run has a single repeat.
RUN_KEYS = ("method_id", "prompt_set", "temperature")
KEYS = (*RUN_KEYS, "repeat")
POOLED = "pooled"


def training_seed(repeat: str) -> int:
    """Return the training seed that the name of a repeat states: 3 for "s3n0", training seed 3 and noise seed 0."""
    return int(repeat.removeprefix("s").partition("n")[0])


def repeat_groups(table: pd.DataFrame) -> Iterator[tuple[tuple[str, str, float, str], pd.DataFrame]]:
    """Split a table into groups of rows, so that one row of a summary can be computed from each group.

    A group has the rows of one method, prompt set, temperature and repeat (run with other seeds). If there are several
    repeats, a group with the rows of all repeats comes before these groups.

    Args:
        table: a table with the columns that KEYS lists.

    Yields:
        (values of KEYS (method, prompt set, temperature, repeat), rows of the group). In a group with all repeats, the
        value of key "repeat" is POOLED.
    """
    for key, rows in table.groupby(list(RUN_KEYS), sort=False):
        if rows["repeat"].nunique() > 1:
            yield (*key, POOLED), rows
    yield from table.groupby(list(KEYS), sort=False)


def stack_prompts(rows: pd.DataFrame, name: str, keys: Sequence[str] = ("repeat", "prompt_id")) -> np.ndarray:
    """Arrange a column as an array with one axis per key: by default, repeats (runs with other seeds) and prompts.

    Args:
        rows: rows of one method, prompt set and temperature, at most one per combination of the keys' values.
        name: name of the column.
        keys: columns of the axes.

    Returns:
        float64, in each axis sorted by the values of its key; nan where the rows lack a combination.

    Raises:
        ValueError: two rows have the same values of the keys.
    """
    sizes, places = [], []
    for key in keys:  # faster than DataFrame.pivot
        values, found = np.unique(rows[key], return_inverse=True)
        sizes.append(len(values))
        places.append(found)
    if len(set(zip(*places, strict=True))) < len(rows):
        raise ValueError(f"{name}: rows must differ in {', '.join(keys)}, found two with the same values; remove one")
    stacked = np.full(sizes, np.nan)
    stacked[tuple(places)] = rows[name]
    return stacked


def combine_repeats(values: np.ndarray, lows: np.ndarray, highs: np.ndarray) -> tuple[float, float, float]:
    """Average a share, a number in [0, 1], over repeats (runs with other seeds), and combine its 95 % intervals.

    Use this function if values per prompt, which could be bootstrapped, are not known.

    The squared standard error is mean(se_i^2) / R + (variance between the repeats) / R for R repeats, where se_i is the
    standard error of repeat i. This interval is too wide, since the variance between repeats already includes the
    variance within them. The excess is kept, since two or three repeats tell little about the variance between them.

    Args:
        values: shares, (repeats,). nan for repeats without a value.
        lows: lower ends of the intervals, (repeats,).
        highs: upper ends of the intervals, (repeats,).

    Returns:
        (mean, low, high) over the repeats with a value. With a single such repeat, its share and interval. nan if there
        is none.
    """
    values, lows, highs = (np.asarray(column, dtype=np.float64) for column in (values, lows, highs))
    known = np.isfinite(values)
    values, lows, highs = values[known], lows[known], highs[known]
    if len(values) < 2:
        mean, low, high = (float(column[0]) if len(column) else float("nan") for column in (values, lows, highs))
        return mean, low, high
    # an end that was clipped at 0 or 1 is too close to the value, so the error comes from the end farther away
    errors = np.maximum(values - lows, highs - values) / NORMAL_QUANTILE
    variance = (np.mean(errors**2) + np.var(values, ddof=1)) / len(values)
    mean = float(values.mean())
    return (mean, *normal_interval(mean, float(np.sqrt(variance))))
