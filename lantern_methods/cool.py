"""COOL-SD (arXiv 2601.09212): acceptance with a weight for each position of a chain of drafts."""

from __future__ import annotations

import math

import torch
from typing_extensions import override

from lantern.acceptance.base import Acceptance
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels


class DraftWeights(Acceptance):
    """COOL-SD's acceptance: the draft x at position i is accepted with probability f(x) = min(1, omega_i t(x) / p(x)).

    t is the target distribution and p the draft distribution. The residual must be "matched", see `Rejection`. The
    total variation between the distribution of the emitted token and t is then the sum of max(0, p(x) f(x) - t(x)) over
    all codes x. It is 0 if omega_i <= 1, and otherwise at most 1 - 1 / omega_i.

    Args:
        weights: omega_i, (drafts,).

    Source: COOL-SD, which has no public code. That the parameter omega is the mean of the weights is known from
    secondary sources only.
    """

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = weights

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> DraftWeights:
        length = len(spec.static_choices)  # one path per draft of the chain
        # omega_i falls by the factor exp(-fall) per position. The mean of all is omega.
        values = [math.exp(-spec["fall"] * index) for index in range(length)]
        weights = [spec["omega"] * length * value / sum(values) for value in values]
        return cls(torch.tensor(weights, device=models.target.device))

    @override
    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        # (nodes, 1) times (..., nodes, n). The nodes of a chain are in order: the child of inner node i is the draft at
        # position i. After `at`, the weights are those of its nodes.
        return self.weights[:, None] * probs.gather(-1, tokens)

    @override
    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        return self.weights[:, None] * probs

    @override
    def at(self, depths: torch.Tensor) -> DraftWeights:
        return DraftWeights(self.weights[depths])  # the draft after a node of depth d has position d, from 0
