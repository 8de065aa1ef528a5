"""Statistics that compare counts with probabilities: a chi-square test, and an estimate of the total variation.

A *cell* is one of the outcomes that are counted, such as a sequence of tokens. A *group* is a set of cells whose
probabilities add up to 1, such as all sequences after one prompt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

FEWEST_EXPECTED = 5  # sequences that are expected less often are counted together in the chi-square test
NUM_RESAMPLES = 200  # number of bootstrap resamples
Z_95 = 1.959964  # half the width of a 95 % interval, in standard errors
TAIL = 0.025  # probability with which the upper end of a 95 % interval may be too low


@dataclass(frozen=True)
class ChiSquare:
    """The result of Pearson's chi-square test.

    Attributes:
        statistic: sum of (count - expected)^2 / expected. Infinite if a cell of probability 0 was counted.
        df: degrees of freedom.
    """

    statistic: float
    df: int

    @property
    def p_value(self) -> float:
        """Probability of a statistic that is at least as large, if the counts have the expected distribution."""
        return 0.0 if math.isinf(self.statistic) else upper_tail(self.statistic, self.df)


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> ChiSquare:
    """Test whether counts have given distributions, by Pearson's chi-square test.

    Shapes: cells = possible outcomes, such as sequences of tokens; groups = distributions over them, such as one per
    prompt. The test is inexact for rare cells. Within a group, all cells whose expected count is below FEWEST_EXPECTED
    are therefore added up to one cell.

    Args:
        counts: number of times that each cell occurred, (groups, cells).
        probs: probabilities of the cells, each row adding up to 1, (groups, cells).

    Raises:
        ValueError: a group has fewer than two cells after its rare cells are added up.
    """
    statistic, df = math.inf if counts[probs == 0].any() else 0.0, 0
    for row, expected in zip(counts.double(), probs.double() * counts.sum(1, keepdim=True), strict=True):
        found, wanted = _pool(row, expected)
        if len(found) < 2:
            raise ValueError(
                f"the chi-square test needs two cells with at least {FEWEST_EXPECTED} expected counts, got "
                f"{len(found)} of {int(row.sum())} counts; draw more samples"
            )
        statistic += float(((found - wanted).square() / wanted).sum())
        df += len(found) - 1
    return ChiSquare(statistic, df)


def _pool(counts: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up the cells of one group whose expected count is below FEWEST_EXPECTED.

    If the sum of their expected counts is still below this bound, the rarest of the other cells is added as well.

    Args:
        counts: number of times that each cell occurred, (cells,).
        expected: expected counts of the cells, (cells,).

    Returns:
        The counts and the expected counts of the cells. The sum comes first, if there is one. The other cells follow,
        rarest first.
    """
    order = expected.argsort()
    counts, expected = counts[order], expected[order]
    num_rare = int((expected < FEWEST_EXPECTED).sum())
    if num_rare and expected[:num_rare].sum() < FEWEST_EXPECTED:
        num_rare += 1
    if num_rare == 0:
        return counts, expected
    counts, expected = (torch.cat([part[:num_rare].sum()[None], part[num_rare:]]) for part in (counts, expected))
    return counts, expected


def upper_tail(statistic: float, df: int) -> float:
    """Return the probability that a chi-square variable exceeds a value."""
    half = torch.tensor([df / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def noncentral_upper_tail(value: float, df: int, noncentrality: float) -> float:
    """Return the probability that a noncentral chi-square variable exceeds a value.

    The distribution of the variable is a Poisson mixture of central chi-square distributions.
    """
    mean = noncentrality / 2
    most = int(mean + 12 * math.sqrt(mean)) + 30
    number = torch.arange(most, dtype=torch.float64)
    weights = torch.exp(torch.xlogy(number, torch.tensor(mean)) - mean - torch.lgamma(number + 1))
    tails = torch.special.gammaincc(df / 2 + number, torch.full_like(number, value / 2))
    return float((weights * tails).sum())


def detectable_noncentrality(df: int, level: float, power: float) -> float:
    """Return the smallest difference of distributions that a chi-square test finds with a given probability.

    The difference is expressed as the noncentrality of the test statistic: the number of samples times the sum of
    (difference of probabilities)^2 / probability over all outcomes.

    Args:
        df: degrees of freedom.
        level: p-value below which the test finds a difference.
        power: probability that the test finds the difference.
    """
    most = 10.0 * df + 1000
    critical = _root(lambda value: level - upper_tail(value, df), 0.0, most)
    return _root(lambda value: noncentral_upper_tail(critical, df, value) - power, 0.0, most)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the point between `low` and `high` at which an increasing function is 0, by bisection."""
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

    def __str__(self) -> str:
        """Return the estimate and, in brackets, both ends of the interval, with three decimals."""
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def total_variation(counts: torch.Tensor, probs: torch.Tensor) -> Interval:
    """Estimate the total variation between the distribution of samples and a given distribution, averaged over groups.

    Shapes: cells = possible outcomes, such as sequences of tokens; groups = distributions over them, such as one per
    prompt; folds = parts of the samples.

    The distance between observed frequencies and probabilities is above 0 even for exact samplers, since counts are
    random. This estimate corrects for that: its expectation is 0 for exact samplers, see `_held_out_excess`.

    Args:
        counts: number of times that each cell occurred, (folds, groups, cells). Each sample is in one fold.
        probs: probabilities of the cells, (groups, cells).

    Returns:
        The estimate, or 0 if it is negative, and its interval. The lower end is 1.96 standard errors below the
        estimate, of NUM_RESAMPLES bootstrap resamples. The upper end is `_largest_total_variation`, since the estimate
        is too low if there are few samples.
    """
    found, expected = counts.numpy(), probs.numpy()
    sizes = found.sum(-1)
    frequencies = np.broadcast_to(found.sum(0) / sizes.sum(0)[:, None], found.shape)
    generator = np.random.default_rng(0)
    resamples = [_held_out_excess(generator.multinomial(sizes, frequencies), expected) for _ in range(NUM_RESAMPLES)]
    value = _held_out_excess(found, expected)
    low = value - Z_95 * float(np.std(resamples))
    return Interval(max(0.0, value), max(0.0, low), max(value, _largest_total_variation(found.sum(0), expected)))


def _largest_total_variation(counts: np.ndarray, probs: np.ndarray) -> float:
    """Return the largest total variation whose samples would rarely be as close to the probabilities as these.

    The plain distance D = 1/2 sum |frequency - probability| changes by 1/n at most with each of n samples. With
    probability 1 - TAIL, it is therefore not lower than its mean minus sqrt(log(1 / TAIL) / 2n) (McDiarmid, 1989).

    Let d be the difference of a cell's probabilities and s the standard deviation of its frequency. The mean of
    |frequency - probability| is s g(|d| / s) with g(x) = E|x + Z|, Z standard normal. Since g is convex, the mean of D
    is at least S g(TV / S) with S = 1/2 sum s, and this is solved for TV.

    Args:
        counts: number of times that each cell occurred, (groups, cells).
        probs: probabilities of the cells, (groups, cells).
    """
    expected = counts.sum(1, keepdims=True) * probs
    num = counts.sum()
    most = float(np.abs(counts - expected).sum() / 2 + math.sqrt(-math.log(TAIL) * num / 2)) / num
    # the frequencies of rare cells are not normal; without their s the result is larger
    is_common = expected >= FEWEST_EXPECTED
    noise = float(np.sqrt(expected * (1 - probs))[is_common].sum() / 2 / num)
    if noise == 0:
        return min(1.0, most)

    def mean_distance(x: float) -> float:
        return x * math.erf(x / math.sqrt(2)) + math.sqrt(2 / math.pi) * math.exp(-x * x / 2)

    return min(1.0, noise * _root(lambda x: mean_distance(x) - most / noise, 0.0, most / noise))


def _held_out_excess(counts: np.ndarray, probs: np.ndarray) -> float:
    """Estimate the total variation from the cells that are too frequent.

    A *cell* is a possible outcome. It is too frequent if its frequency exceeds its probability, and the difference is
    its excess. The total variation is the sum of the excesses of these cells.

    Chance makes some cells too frequent even for an exact sampler. The cells are therefore chosen on other samples than
    those on which their excess is measured. A *fold* is a part of the samples. Each fold is held out once: the other
    folds choose the cells, and the held-out fold measures their excess.

    The expectation of the estimate is 0 for an exact sampler. It never exceeds the total variation. It is close to the
    total variation if there are enough samples to choose the cells that the sampler makes too frequent.

    Args:
        counts: number of times that each cell occurred, (folds, groups, cells).
        probs: probabilities of the cells, (groups, cells).
    """
    others = counts.sum(0) - counts
    is_chosen = others > probs * others.sum(-1, keepdims=True)
    sizes = counts.sum(-1)  # (folds, groups)
    excess = (counts * is_chosen).sum(-1) - sizes * (probs * is_chosen).sum(-1)
    return float(excess.sum() / sizes.sum())
