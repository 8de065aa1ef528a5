"""Relaxations of others than LANTERN: they change the test of rejection, not the set A(x) of codes that stand in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

ANNEALING = 0.7  # nu


@dataclass(frozen=True)
class DraftWeights:
    """COOL-SD: the draft x at place i of a chain is accepted with probability min(1, omega_i t(x) / p(x)).

    With this probability as f(x), the output distribution departs from the target's by TV = sum max(0, p f - t) at a
    node, the least that f allows: 0 where omega_i <= 1, at most 1 - 1 / omega_i elsewhere. It needs the matched
    residual.

    Attributes:
        omega: mean of the weights; COOL-SD's delta.
        fall: an annealed weight is exp(-fall) times the one before.

    Source: COOL-SD (arXiv 2601.09212), which has no public code; that omega is the mean is second-hand.
    """

    omega: float
    fall: ClassVar[float] = 0.0

    def weights(self, length: int) -> list[float]:
        """omega_i of a chain of so many drafts, first to last."""
        values = [math.exp(-self.fall * place) for place in range(length)]
        return [self.omega * length * value / sum(values) for value in values]


class ConstantWeights(DraftWeights):
    """Every draft has the weight omega."""


class AnnealedWeights(DraftWeights):
    """The first draft has the largest weight."""

    fall = ANNEALING


class ReversedWeights(DraftWeights):
    """The last draft has the largest weight: the control."""

    fall = -ANNEALING
