"""COOL-SD: acceptance with a weight for each position of a chain of drafts."""

from __future__ import annotations

import math

import torch

from lantern.acceptance.base import Acceptance, Readings
from lantern.methods import MethodSpec


class DraftWeights(Acceptance):
    """COOL-SD's acceptance, in which each position i of a chain of drafts has a weight omega_i.

    Let t be the target distribution and p the draft distribution. The draft x at position i is accepted with
    probability f(x) = min(1, omega_i t(x) / p(x)). With a weight above 1, more drafts are accepted than by exact
    rejection sampling, and the output distribution changes.

    The residual must be "matched", see `Rejection`. The total variation between the distribution of the emitted token
    and t is then the sum of max(0, p(x) f(x) - t(x)) over all codes x. It is 0 if omega_i <= 1, and otherwise at most
    1 - 1 / omega_i.

    Args:
        weights: omega_i of each position, first to last, (drafts,).

    Source: COOL-SD (arXiv 2601.09212), which has no public code. That the parameter omega is the mean of the weights is
    known from secondary sources only.
    """

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = weights

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> DraftWeights:
        """Make the acceptance of a method.

        Each position of the chain of drafts has a weight, by which the target's probability of the draft is multiplied
        before the test. The weights have the mean `omega`, and each is exp(-fall) times the previous one.

        Args:
            spec: the method, a chain with the parameters `omega` and `fall`.
            read: its embedding determines the device of the weights. Without an embedding they are on the CPU.
        """
        length = len(spec.static_choices)
        values = [math.exp(-spec["fall"] * index) for index in range(length)]
        weights = [spec["omega"] * length * value / sum(values) for value in values]
        device = None if read.embedding is None else read.embedding.device
        return cls(torch.tensor(weights, device=device))

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """Return omega_i t(x) for drafts x, where omega_i is the weight of the position and t the target distribution.

        For the arguments see `Acceptance.relaxed_prob`.

        Returns:
            (..., nodes, n). Entry i of the axis `nodes` is the node whose child is the draft at position i. If `at`
            returned this acceptance, the axis holds the nodes whose depths were given to `at`.
        """
        return self.weights[:, None] * probs.gather(-1, tokens)

    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """Return omega_i t(x) for every code x, with the weight omega_i of the position and the target distribution t.

        For the arguments see `Acceptance.relaxed_prob_of_all`.

        Returns:
            (..., nodes, vocab), with the same nodes as in the result of `relaxed_prob`.
        """
        return self.weights[:, None] * probs

    def at(self, depths: torch.Tensor) -> DraftWeights:
        """Return the acceptance for the drafts after some nodes of the chain, with the weights of their positions.

        Args:
            depths: depths of the nodes, int64 (nodes,). The root has depth 0, and the draft after it has the first
                weight.
        """
        return DraftWeights(self.weights[depths])
