"""Statistics that compare counts with probabilities: a chi-square test, and an estimate of the total variation.

A *cell* is one of the outcomes that are counted, such as a sequence of tokens. A *group* is a set of cells whose
probabilities add up to 1, such as all sequences after one prompt. A *fold* is a part of the samples. Counts of cells
are (groups, cells) or (folds, groups, cells), and probabilities are (groups, cells).

The plain distance D = 1/2 sum |frequency - probability| is above 0 even for exact samplers, since counts are random. A
cell's *excess* is its frequency minus its probability. With many samples, the total variation is the sum of the
positive excesses. The estimate chooses these cells on other samples than those on which it measures their excess.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from typing_extensions import override

FEWEST_EXPECTED = 5  # sequences that are expected less often are counted together in the chi-square test
NUM_RESAMPLES = 200  # of the bootstrap
Z_95 = 1.959964
TAIL = 0.025  # probability with which the upper end of a 95 % interval may be too low


@dataclass(frozen=True)
class ChiSquare:
    """The result of Pearson's chi-square test. `statistic` is infinite if a cell of probability 0 was counted."""

    statistic: float
    df: int

    @property
    def p_value(self) -> float:
        """Probability of a statistic that is at least as large, if the counts have the expected distribution."""
        return 0.0 if math.isinf(self.statistic) else upper_tail(self.statistic, self.df)


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> ChiSquare:
    """Test whether counts have given distributions. The statistic and the degrees of freedom add up over groups.

    Raises:
        ValueError: a group has fewer than two cells after its rare cells are added up.
    """
    statistic, df = math.inf if counts[probs == 0].any() else 0.0, 0
    for row, expected in zip(counts.double(), probs.double() * counts.sum(1, keepdim=True), strict=True):
        # The statistic has a chi-square distribution only if no cell is rare.
        found, wanted = _pool(row, expected)
        if len(found) < 2:
            raise ValueError(
                f"the chi-square test needs two cells with at least {FEWEST_EXPECTED} expected counts, got "
                f"{len(found)} of {int(row.sum())} counts; draw more samples"
            )
        statistic += float(((found - wanted).square() / wanted).sum())
        df += len(found) - 1  # the number of counts of a group is given
    return ChiSquare(statistic, df)


def _pool(counts: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up the rare cells of a group, whose expected count is below FEWEST_EXPECTED. The sum comes first."""
    order = expected.argsort()
    counts, expected = counts[order], expected[order]
    num_rare = int((expected < FEWEST_EXPECTED).sum())
    if num_rare and expected[:num_rare].sum() < FEWEST_EXPECTED:
        # All rare cells together are rare: one more is added.
        num_rare += 1
    if num_rare == 0:
        return counts, expected
    counts, expected = (torch.cat([part[:num_rare].sum()[None], part[num_rare:]]) for part in (counts, expected))
    return counts, expected


def upper_tail(statistic: float, df: int) -> float:
    """Return the probability that a chi-square variable exceeds a value."""
    half = torch.tensor([df / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))  # the regularised upper incomplete gamma function


def noncentral_upper_tail(value: float, df: int, noncentrality: float) -> float:
    """Return the probability that a noncentral chi-square variable exceeds a value.

    The variable is a Poisson mixture of central ones: P = sum_j Poisson(j; noncentrality / 2) P(chi2 with df + 2 j >
    value).
    """
    mean = noncentrality / 2
    # Terms beyond 12 standard deviations of the Poisson distribution are negligible. 30 more serve small means.
    most = int(mean + 12 * math.sqrt(mean)) + 30
    number = torch.arange(most, dtype=torch.float64)
    # xlogy is 0 for number = mean = 0, where number * log(mean) is nan.
    weights = torch.exp(torch.xlogy(number, torch.full_like(number, mean)) - mean - torch.lgamma(number + 1))
    tails = torch.special.gammaincc(df / 2 + number, torch.full_like(number, value / 2))
    return float((weights * tails).sum())


def detectable_noncentrality(df: int, level: float, power: float) -> float:
    """Return the smallest difference of distributions that a chi-square test finds with probability `power`.

    The difference is expressed as the noncentrality of the statistic: n sum (difference of probabilities)^2 /
    probability with n samples. The test finds it if the p-value is below `level`.
    """
    # Above both roots for the levels and powers in use.
    most = 10.0 * df + 1000
    # Both functions increase, since an upper tail falls with the value and grows with the noncentrality.
    critical = _root(lambda value: level - upper_tail(value, df), 0.0, most)
    return _root(lambda value: noncentral_upper_tail(critical, df, value) - power, 0.0, most)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function becomes positive between `low` and `high`, by bisection."""
    # After 60 halvings the interval is below the rounding of a float.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return (low + high) / 2


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    @override
    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def total_variation(counts: torch.Tensor, probs: torch.Tensor) -> Interval:
    """Estimate the total variation between the distribution of samples and a given distribution, averaged over groups.

    The estimate is the held-out excess, or 0 if that is negative. The expectation of the excess is 0 for an exact
    sampler, is never above the total variation, and is close to it if there are enough samples to choose the cells.

    The lower end of the interval is 1.96 standard errors, from NUM_RESAMPLES bootstrap resamples, below the estimate.
    The upper end is another bound, since the estimate is too low if there are few samples: the largest total variation
    whose samples would rarely have a D as small as the one found.

    `counts` are (folds, groups, cells).
    """
    found, expected = counts.numpy(), probs.numpy()
    sizes = found.sum(-1)
    # equal in all folds
    frequencies = np.broadcast_to(found.sum(0) / sizes.sum(0)[:, None], found.shape)
    generator = np.random.default_rng(0)  # a fixed seed: the same counts give the same interval
    # A resample keeps the number of samples of each fold and group.
    resamples = [_held_out_excess(generator.multinomial(sizes, frequencies), expected) for _ in range(NUM_RESAMPLES)]
    value = _held_out_excess(found, expected)
    low = value - Z_95 * float(np.std(resamples))
    return Interval(max(0.0, value), max(0.0, low), max(value, _largest_total_variation(found.sum(0), expected)))


def _largest_total_variation(counts: np.ndarray, probs: np.ndarray) -> float:
    """Return the upper end of `total_variation`'s interval. `counts` are (groups, cells)."""
    expected = counts.sum(1, keepdims=True) * probs
    num = counts.sum()
    # Each of n samples changes D by 1/n at most. With probability 1 - TAIL, D is therefore not lower than its mean
    # minus sqrt(log(1 / TAIL) / (2 n)) (McDiarmid, 1989). This bounds the mean of D from above.
    most = float(np.abs(counts - expected).sum() / 2 + math.sqrt(-math.log(TAIL) * num / 2)) / num
    # Frequencies of rare cells are not normal. Without their s, S is smaller and the result larger.
    is_common = expected >= FEWEST_EXPECTED
    # Let d be the difference of a cell's probabilities and s the standard deviation of its frequency, taken as that of
    # an exact sampler. The mean of |frequency - probability| is s g(|d| / s) with g(x) = E|x + Z|, Z standard normal.
    # Since g is convex, the mean of D is at least S g(TV / S) with S = 1/2 sum s. This is solved for TV.
    noise = float(np.sqrt(expected * (1 - probs))[is_common].sum() / 2 / num)
    if noise == 0:
        return min(1.0, most)  # the mean of D is at least TV

    def mean_distance(x: float) -> float:
        return x * math.erf(x / math.sqrt(2)) + math.sqrt(2 / math.pi) * math.exp(-x * x / 2)  # g(x)

    # g(x) >= x, hence the root is at most most / noise. If that is below g(0), the result is 0.
    return min(1.0, noise * _root(lambda x: mean_distance(x) - most / noise, 0.0, most / noise))


def _held_out_excess(counts: np.ndarray, probs: np.ndarray) -> float:
    """Measure in each fold the excess of the cells that the other folds chose."""
    others = counts.sum(0) - counts
    # On the same samples, chance would choose cells and count as their excess.
    is_chosen = others > probs * others.sum(-1, keepdims=True)
    sizes = counts.sum(-1)  # (folds, groups)
    excess = (counts * is_chosen).sum(-1) - sizes * (probs * is_chosen).sum(-1)
    return float(excess.sum() / sizes.sum())
