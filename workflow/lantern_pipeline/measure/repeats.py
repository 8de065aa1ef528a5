"""Grouping of table rows by repeats: repetitions of the run with another training seed or noise seed.

The name of a repeat states both seeds, such as "s3n0". A summary has a row per method, prompt set, temperature and
repeat. If there are several repeats, it also has a *pooled* row of each method, prompt set and temperature.
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
    """Return the training seed of a repeat: 3 for "s3n0", whose noise seed is 0."""
    return int(repeat.removeprefix("s").partition("n")[0])


def repeat_groups(table: pd.DataFrame) -> Iterator[tuple[tuple[str, str, float, str], pd.DataFrame]]:
    """Yield (values of KEYS, rows of the table) for each row of a summary, pooled ones first."""
    # With a single repeat, the pooled row would be the same again.
    for key, rows in table.groupby(list(RUN_KEYS), sort=False):
        if rows["repeat"].nunique() > 1:
            yield (*key, POOLED), rows
    yield from table.groupby(list(KEYS), sort=False)


def stack_prompts(rows: pd.DataFrame, name: str, keys: Sequence[str] = ("repeat", "prompt_id")) -> np.ndarray:
    """Arrange a column as float64 with one axis per key, by default (repeats, prompts); nan where there is no row.

    `rows` are those of one method, prompt set and temperature. Axes are sorted by the values of their keys.
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
    """Average a share over repeats and combine its 95 % intervals, if values per prompt are not known.

    squared standard error = (mean(se_i^2) + variance between the repeats) / R, where se_i is the error of one of R
    repeats.

    All arguments are (repeats,). Repeats whose value is nan are left out. A single one keeps its interval.
    """
    values, lows, highs = (np.asarray(column, dtype=np.float64) for column in (values, lows, highs))
    known = np.isfinite(values)
    values, lows, highs = values[known], lows[known], highs[known]
    if len(values) < 2:
        mean, low, high = (float(column[0]) if len(column) else float("nan") for column in (values, lows, highs))
        return mean, low, high
    # an end that was clipped at 0 or 1 is too close to the value, so the error comes from the end farther away
    errors = np.maximum(values - lows, highs - values) / NORMAL_QUANTILE
    # Too wide, since the variance between repeats already includes the variance within them. The excess is kept, since
    # two or three repeats tell little about the variance between them.
    variance = (np.mean(errors**2) + np.var(values, ddof=1)) / len(values)
    mean = float(values.mean())  # of shares, hence the interval is clipped to [0, 1]
    return (mean, *normal_interval(mean, float(np.sqrt(variance))))
