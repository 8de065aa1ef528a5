"""Comparison at equal accepted length: what do two ways to relax cost where they are equally fast?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lantern_pipeline.metrics.intervals import LEVEL, crossed_resamples

NUM_LENGTHS = 21  # lengths at which curves are read off


class NoCommonLengthError(ValueError):
    """Two curves share no accepted length at which to compare them."""


@dataclass(frozen=True)
class EqualLength:
    """Two curves of negative log-likelihood over accepted length, compared over the lengths that both reach.

    Attributes:
        shortest: tokens per target forward, where the common range begins.
        longest: where it ends.
        first: nats per token of the first curve, mean over the range.
        second: of the second curve.
        low: end of the 95 % interval of first - second, over prompts.
        high: the other end.
    """

    shortest: float
    longest: float
    first: float
    second: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """First minus second, nats per token."""
        return self.first - self.second


def compare_at_equal_length(
    first: pd.DataFrame, second: pd.DataFrame, *, num_resamples: int = 1000, seed: int = 0
) -> EqualLength:
    """Compares two curves over the accepted lengths that both reach.

    A curve is piecewise linear through its methods' points, mean negative log-likelihood over tokens per forward.
    Prompts are resampled for all points together, since methods draw the same prompts; each resample is read off at its
    own length.

    Args:
        first: per-image table of an ablation, rows of one curve: method_id, prompt_id, num_tokens, target_forwards,
            nll.
        second: the same for the other curve, on the same prompts.
        num_resamples: bootstrap resamples.
        seed: of the bootstrap.

    Raises:
        NoCommonLengthError: the curves have no length in common.
        ValueError: they are of different prompts.
    """
    curves = [_stack(rows) for rows in (first, second)]
    if not np.array_equal(curves[0][0], curves[1][0]):
        raise ValueError("two curves are compared on the same prompts only; run both in one ablation")
    lengths = [_lengths(curve, slice(None)) for curve in curves]
    if max(values.min() for values in lengths) > min(values.max() for values in lengths):
        spans = " and ".join(f"{values.min():.2f} to {values.max():.2f}" for values in lengths)
        raise NoCommonLengthError(f"the curves have no accepted length in common ({spans}); widen the ablation's grid")
    estimate = _read_off(curves, slice(None))
    num_prompts, resampled = len(curves[0][0]), []
    for _, prompts in crossed_resamples(1, num_prompts, num_resamples, seed):
        resampled += [_read_off(curves, chosen) for chosen in prompts]
    differences = [first - second for _, _, first, second in resampled]
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return EqualLength(*estimate, float(low), float(high))


Curve = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _stack(rows: pd.DataFrame) -> Curve:
    """(prompt ids, then num_tokens, target_forwards and nll, each (methods, prompts))."""
    columns = [
        rows.pivot(index="method_id", columns="prompt_id", values=name)
        for name in ("num_tokens", "target_forwards", "nll")
    ]
    return columns[0].columns.to_numpy(), *(column.to_numpy(float) for column in columns)


def _lengths(curve: Curve, prompts: slice | np.ndarray) -> np.ndarray:
    return curve[1][:, prompts].sum(1) / curve[2][:, prompts].sum(1)


def _read_off(curves: Sequence[Curve], prompts: slice | np.ndarray) -> tuple[float, float, float, float]:
    """(begin and end of the common lengths, mean nats of the first curve there, mean nats of the second)."""
    lengths = [_lengths(curve, prompts) for curve in curves]
    shortest, longest = max(values.min() for values in lengths), min(values.max() for values in lengths)
    common, nll = np.linspace(shortest, longest, NUM_LENGTHS), []
    for curve, values in zip(curves, lengths, strict=True):
        order = values.argsort()
        nll.append(float(np.interp(common, values[order], curve[3][:, prompts].mean(1)[order]).mean()))
    return float(shortest), float(longest), *nll
