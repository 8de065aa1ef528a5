"""Percentile bootstrap over prompts.

The prompt is the unit that is resampled. Columns given together are resampled together, so a statistic of two columns
of the same prompts (a speed-up, a difference between methods that share their noise) is paired.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# Prompts times resamples held at once; bounds the memory of a resampled block to about 80 MB per column.
BLOCK_SIZE = 10_000_000


def bootstrap_interval(
    statistic: Callable[..., np.ndarray],
    *columns: np.ndarray,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Computes a percentile bootstrap interval of a statistic over prompts.

    Args:
        statistic: maps resampled columns, each (resamples, prompts), to one value per resample, (resamples,).
        columns: one or more arrays of shape (prompts,), float or integer, all of the same prompts in the same order.
        num_resamples: resamples with replacement.
        level: share of the interval, in (0, 1).
        seed: of the resampling; the same seed gives the same interval on every machine.

    Returns:
        (low, high); (nan, nan) when there are fewer than two prompts, since nothing can then be said about their
        spread.

    Raises:
        ValueError: no column, columns of unequal length, a value that is not finite, or a level or count out of bounds.

    Source:
        Efron and Tibshirani (1993), An Introduction to the Bootstrap, section 13.3.
    """
    values = _check_columns(columns, num_resamples, level)
    num_prompts = len(values[0])
    if num_prompts < 2:
        return float("nan"), float("nan")
    generator = np.random.Generator(np.random.PCG64(seed))
    rows = max(1, BLOCK_SIZE // num_prompts)
    estimates = []
    for first in range(0, num_resamples, rows):
        shape = (min(rows, num_resamples - first), num_prompts)
        chosen = generator.integers(0, num_prompts, size=shape)
        estimates.append(statistic(*(column[chosen] for column in values)))
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(estimates), [tail, 1 - tail])
    return float(low), float(high)


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
        if column.shape != (len(values[0]),):
            raise ValueError(f"columns must be 1-dimensional of equal length, got {[v.shape for v in values]}")
        if not np.isfinite(column).all():
            raise ValueError("a column holds a value that is not finite; drop the prompts without a value first")
    return values
