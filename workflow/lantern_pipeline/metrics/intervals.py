"""Bootstrap over prompts and repeats, and an exact interval for shares.

The prompt is the unit that is resampled. Columns given together are resampled together, so a statistic of two columns
of the same prompts (a speed-up, a difference between methods that share their noise) is paired. Where a run was
repeated with other seeds, a repeat is a unit as well: an interval over prompts alone would speak for the seeds at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.special import betaincinv  # scipy.stats would add most of a second to every job

# Values times resamples held at once; bounds the memory of a resampled block to about 80 MB per column.
BLOCK_SIZE = 10_000_000
LEVEL = 0.95
NORMAL_QUANTILE = 1.959964  # of 97.5 %


def bootstrap_interval(
    statistic: Callable[..., np.ndarray],
    *columns: np.ndarray,
    num_resamples: int = 1000,
    level: float = LEVEL,
    seed: int = 0,
) -> tuple[float, float]:
    """Computes a percentile bootstrap interval of a statistic over prompts, or over repeats and prompts.

    With repeats, repeats and prompts are resampled independently and crossed: a resample holds every chosen prompt of
    every chosen repeat. That counts the noise of a single image more than once, which is conservative; but with two or
    three repeats their own spread is hardly known: where the seeds' spread is 0.4 of that of single images, a nominal
    95 % interval over 48 prompts holds the truth in 84 % of cases with two repeats and 91 % with three (simulated),
    against 66 % and 76 % of one over prompts alone.

    Args:
        statistic: maps resampled columns, each (resamples, values), to one value per resample, (resamples,).
        columns: one or more arrays of shape (prompts,) or (repeats, prompts), float or integer, all of the same prompts
            in the same order.
        num_resamples: resamples with replacement.
        level: share of the interval, in (0, 1).
        seed: of the resampling; the same seed gives the same interval on every machine.

    Returns:
        (low, high); (nan, nan) when there are fewer than two prompts, since nothing can then be said about their
        spread.

    Raises:
        ValueError: no column, columns of unequal shape, a value that is not finite, or a level or count out of bounds.

    Source:
        Efron and Tibshirani (1993), An Introduction to the Bootstrap, section 13.3; with repeats, Owen (2007), The
        pigeonhole bootstrap, Annals of Applied Statistics 1, 386-411.
    """
    values = _check_columns(columns, num_resamples, level)
    num_repeats, num_prompts = values[0].shape
    if num_prompts < 2:
        return float("nan"), float("nan")
    estimates = []
    for repeats, prompts in crossed_resamples(num_repeats, num_prompts, num_resamples, seed):
        # (resamples, repeats, prompts) places in a flattened column
        places = repeats[:, :, None] * num_prompts + prompts[:, None, :]
        places = places.reshape(len(places), num_repeats * num_prompts)
        estimates.append(statistic(*(column.reshape(-1)[places] for column in values)))
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(estimates), [tail, 1 - tail])
    return float(low), float(high)


def crossed_resamples(
    num_repeats: int, num_prompts: int, num_resamples: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Draws repeats and prompts with replacement, independently of each other, in blocks.

    The prompts drawn do not depend on the number of repeats, nor anything on the size of a block.

    Args:
        num_repeats: repeats to draw from, and to draw.
        num_prompts: prompts to draw from, and to draw.
        num_resamples: resamples over all blocks.
        seed: of the draws.

    Yields:
        (repeats, prompts): int64, (resamples of the block, num_repeats) and (resamples of the block, num_prompts).
    """
    of_prompts = np.random.Generator(np.random.PCG64(seed))
    of_repeats = np.random.Generator(np.random.PCG64([seed, 1]))
    size = max(1, BLOCK_SIZE // (num_repeats * num_prompts))
    for first in range(0, num_resamples, size):
        block = min(size, num_resamples - first)
        prompts = of_prompts.integers(0, num_prompts, size=(block, num_prompts))
        yield of_repeats.integers(0, num_repeats, size=(block, num_repeats)), prompts


def share_interval(num_hits: np.ndarray, num_trials: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Computes the exact (Clopper-Pearson) interval of shares of independent trials.

    Unlike a bootstrap, it does not pretend certainty where every trial, or none, is a hit.

    Args:
        num_hits: integer, any shape.
        num_trials: integer, of the same shape or one that broadcasts.
        level: share of the interval, in (0, 1).

    Returns:
        (low, high), float64 of that shape; nan where there are no trials.

    Source:
        Clopper and Pearson (1934), Biometrika 26, 404-413.
    """
    num_hits, num_trials = np.broadcast_arrays(
        np.asarray(num_hits, dtype=np.float64), np.asarray(num_trials, dtype=np.float64)
    )
    tail = (1 - level) / 2
    misses = num_trials - num_hits
    # at the edges beta's quantile is undefined; the bound there is the edge itself
    low = np.where(num_hits > 0, betaincinv(np.maximum(num_hits, 1), misses + 1, tail), 0.0)
    high = np.where(misses > 0, betaincinv(num_hits + 1, np.maximum(misses, 1), 1 - tail), 1.0)
    is_empty = num_trials == 0
    return np.where(is_empty, np.nan, low), np.where(is_empty, np.nan, high)


def normal_interval(value: float, error: float, *, is_share: bool = False) -> tuple[float, float]:
    """Computes the 95 % interval of an estimate with a known standard error: 1.96 standard errors either way.

    Args:
        value: the estimate.
        error: its standard error; nan gives an interval of nan.
        is_share: cut the interval to [0, 1].

    Returns:
        (low, high).
    """
    low, high = value - NORMAL_QUANTILE * error, value + NORMAL_QUANTILE * error
    return (float(np.clip(low, 0, 1)), float(np.clip(high, 0, 1))) if is_share else (low, high)


def mean_with_interval(name: str, column: np.ndarray, **options: int) -> dict[str, float]:
    """Computes a mean with its 95 % interval over the prompts that have a value.

    Args:
        name: of the quantity.
        column: (prompts,) or (repeats, prompts); prompts with a value that is not finite are left out.
        **options: num_resamples and seed.

    Returns:
        {name, name_low, name_high}; nan where no prompt has a value.
    """
    column = np.atleast_2d(column)
    known = column[:, np.isfinite(column).all(axis=0)]
    if not known.size:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), float("nan"))
    low, high = bootstrap_interval(mean_statistic, known, **options)
    return {name: float(known.mean()), f"{name}_low": low, f"{name}_high": high}


def mean_statistic(values: np.ndarray) -> np.ndarray:
    """Mean over prompts: (..., prompts) -> (...)."""
    return values.mean(axis=-1)


def ratio_statistic(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Ratio of sums over prompts: two (..., prompts) -> (...)."""
    return numerator.sum(axis=-1) / denominator.sum(axis=-1)


def median_statistic(values: np.ndarray) -> np.ndarray:
    """Median over prompts: (..., prompts) -> (...)."""
    return np.median(values, axis=-1)


def _check_columns(columns: tuple[np.ndarray, ...], num_resamples: int, level: float) -> list[np.ndarray]:
    if not columns:
        raise ValueError("bootstrap_interval needs at least one column of values")
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be >= 1, got {num_resamples}")
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), got {level}")
    values = [np.asarray(column, dtype=np.float64) for column in columns]
    for column in values:
        if column.shape != values[0].shape or column.ndim not in (1, 2):
            raise ValueError(
                "columns must be of equal length and shape, (prompts,) or (repeats, prompts), got "
                f"{[v.shape for v in values]}"
            )
        if not np.isfinite(column).all():
            raise ValueError("a column holds a value that is not finite; drop the prompts without a value first")
    return [np.atleast_2d(column) for column in values]
