"""Acceptances of codes near a draft, Lantern's own: `BudgetBound` of preset `bounded`, and `Proximity`."""

from __future__ import annotations

import torch
from typing_extensions import override

from lantern.acceptance.base import Choice, Verifier, token_of
from lantern.acceptance.relaxed_sets import RelaxedSets
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.step import Scores


class BudgetBound(RelaxedSets):
    """A bound: the masses of all children of a node add up to at most delta.

    Children that were drafted first use this budget first. With deterministic drafts, TV is therefore at most delta at
    every node. This does not hold at temperature 0, where the target emits one token with certainty and any other token
    has a TV of 1. There every draft has a separate budget.
    """

    delta: float
    renormalises = False
    leaves_filters = False

    @override
    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        return mass <= self.delta - spent


class Proximity(RelaxedSets):
    """Relaxed sets without a bound: a draft is accepted if the target samples it or a nearest code of it.

    The share of substitutions is an upper limit of TV.
    """

    renormalises = False
    leaves_filters = False

    @override
    def admits(self, mass: torch.Tensor, token_probs: torch.Tensor, spent: torch.Tensor | float) -> torch.Tensor:
        return torch.ones_like(mass, dtype=torch.bool)

    @override
    def make_verifier(self, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
        return ByProximity(self)


class ByProximity(Verifier):
    """The verifier of `Proximity`. A sibling that equals the target's sample takes precedence over one only near it."""

    def __init__(self, sets: RelaxedSets) -> None:
        self.sets = sets

    @override
    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        best, sampled = scores.keys.max(-1)
        # Filters set -inf. What they removed counts as missing, as `leaves_filters` is False.
        is_kept = scores.weights.gather(-1, children.clamp(min=0)) > -torch.inf
        children = children.masked_fill(~is_kept, -1)
        sampled_token = sampled[..., None]
        nearest_codes = self.sets.table[children.clamp(min=0)]  # (batch, n, m, k)
        is_near = (nearest_codes == sampled_token[..., None].to(nearest_codes.dtype)).any(-1) & (children >= 0)
        # The first of the largest scores wins: 2 for the sample, 1 for a draft near it, 1 for no draft (last).
        scores_of_drafts = 2 * (children == sampled_token) + is_near
        rank = torch.cat([scores_of_drafts, torch.ones_like(sampled_token)], dim=-1).argmax(-1)
        return Choice(token_of(rank, children, sampled), sampled, best)
