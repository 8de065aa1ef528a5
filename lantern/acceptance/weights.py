"""COOL-SD: drafts weighted by their place in a chain."""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from lantern.acceptance.base import Acceptance, Readings
from lantern.methods import MethodSpec


class DraftWeights(Acceptance):
    """The draft x at place i of a chain is accepted with probability min(1, omega_i t(x) / p(x)).

    With this probability as f(x), the output distribution departs from the target's by TV = sum max(0, p f - t) at a
    node, the least that f allows: 0 where omega_i <= 1, at most 1 - 1 / omega_i elsewhere. It needs the matched
    residual.

    Args:
        weights: omega_i, (drafts,), first to last.

    Source: COOL-SD (arXiv 2601.09212), which has no public code; that omega is the mean is second-hand.
    """

    needs_rejection: ClassVar[bool] = True

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__(weights=weights)

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> DraftWeights:
        """Weights of mean omega, each exp(-fall) times the one before."""
        length = len(spec.tree_shape)
        values = [math.exp(-spec.fall * place) for place in range(length)]
        weights = [spec.omega * length * value / sum(values) for value in values]
        return cls(torch.tensor(weights, device=None if read.embedding is None else read.embedding.device))

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """omega_i t(x); nodes are those of the chain in their order, (..., nodes, n), or those of `at`."""
        return self.weights[:, None] * probs.gather(-1, tokens)

    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """omega_i t(x), (..., nodes, vocab)."""
        return self.weights[:, None] * probs

    def at(self, depths: torch.Tensor) -> DraftWeights:
        """The weights of nodes of these depths, int64 (nodes,)."""
        return DraftWeights(self.weights[depths])
