"""COOL-SD: acceptance with a weight per position in a chain."""

from __future__ import annotations

import math

import torch

from lantern.acceptance.base import Acceptance, Readings
from lantern.methods import MethodSpec


class DraftWeights(Acceptance):
    """COOL-SD's acceptance, in which each position i of a chain has a weight omega_i.

    The draft x at position i is accepted with probability f(x) = min(1, omega_i t(x) / p(x)). The distance of the
    output distribution from the target's at a node is TV = sum max(0, p f - t), the least that f allows. It is 0 if
    omega_i <= 1, and at most 1 - 1 / omega_i otherwise. The residual must be "matched".

    Args:
        weights: omega_i, (drafts,), first to last.

    Source: COOL-SD (arXiv 2601.09212), which has no public code. It is second-hand knowledge that omega is the mean.
    """

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = weights

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> DraftWeights:
        """Make weights of mean omega. Each weight is exp(-fall) times the previous one."""
        length = len(spec.static_choices)
        values = [math.exp(-spec["fall"] * index) for index in range(length)]
        weights = [spec["omega"] * length * value / sum(values) for value in values]
        device = None if read.embedding is None else read.embedding.device
        return cls(torch.tensor(weights, device=device))

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """Return omega_i t(x), (..., nodes, n).

        The nodes are the nodes of the chain in order, or the nodes that were passed to `at`.
        """
        return self.weights[:, None] * probs.gather(-1, tokens)

    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """Return omega_i t(x) of every code, (..., nodes, vocab)."""
        return self.weights[:, None] * probs

    def at(self, depths: torch.Tensor) -> DraftWeights:
        """Return the weights at nodes of given depths, int64 (nodes,)."""
        return DraftWeights(self.weights[depths])
