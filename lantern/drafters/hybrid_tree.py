"""Hybrid drafts in one static tree: Jacobi drafts, and near the root a draft model's as well.

`lantern.drafters.jacobi_tree` mixes the results of a position, which the target sampled in earlier steps. At the first
depths of the tree, the mixture has one more result: the best codes of a draft model with the target's noise, after the
drafts above. The draft model knows the last emitted tokens, and the pool knows the positions further on, so they err in
different places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lantern.decoding_state import DecodingModels
from lantern.draft_tree import StaticTree, static_tree
from lantern.drafters.base import Drafter
from lantern.drafters.eagle import EagleDrafter, EagleState
from lantern.drafters.jacobi import HybridDrafter
from lantern.drafters.jacobi_tree import DRAFTED, JacobiTreeDrafter, JacobiTreeState, Results, result_codes
from lantern.methods import MethodSpec
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal
from lantern.tree_shapes import JointTree

NUM_DEPTHS = 3  # depths of the tree whose drafts know the draft model's


@dataclass
class HybridTreeState:
    """The states of the pool and of the draft model."""

    jacobi: JacobiTreeState
    eagle: EagleState


class HybridTreeDrafter(Drafter[HybridTreeState]):
    """Drafts the codes that the target's samples of earlier steps and a draft model make most likely.

    Args:
        jacobi: keeps the pool, and drafts the whole tree.
        eagle: runs the draft model over the first depths of the same tree.
    """

    tree: StaticTree

    def __init__(self, jacobi: JacobiTreeDrafter, eagle: EagleDrafter) -> None:
        self.jacobi = jacobi
        self.eagle = eagle
        self.tree = jacobi.tree
        self.max_depth = jacobi.max_depth
        self.noise_streams = eagle.noise_streams

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter[Any]:
        """Make the drafter, or the drafter of two trees if the method has two."""
        if isinstance(spec.tree_shape, JointTree):
            return HybridDrafter.make(models, spec, sampling)
        target = models.target
        choices = spec.static_choices
        tree = static_tree(choices, target.device)
        first = static_tree([path for path in choices if len(path) <= NUM_DEPTHS], target.device)
        draft = models.require_draft(spec.label)
        eagle = EagleDrafter(draft, target, "coupled", first, sampling, tree.max_depth + 1)
        return cls(JacobiTreeDrafter(tree, target.config, num_given=first.max_depth), eagle)

    def allocate(self, num_rows: int, noise: NoiseField) -> HybridTreeState:
        """See `Drafter`."""
        return HybridTreeState(self.jacobi.allocate(num_rows, noise), self.eagle.allocate(num_rows, noise))

    def fill(self, state: HybridTreeState, rows: torch.Tensor, prefill: Prefill) -> None:
        """See `Drafter`."""
        self.jacobi.fill(state.jacobi, rows, prefill)
        self.eagle.fill(state.eagle, rows, prefill)

    def propose(self, state: HybridTreeState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Draft the first depths one after the other, and the others from the pool alone."""
        results = self.jacobi.recall(state.jacobi, lengths)

        def choose(depth: int, parents: torch.Tensor, keys: torch.Tensor, num_siblings: int) -> torch.Tensor:
            return self._children(results.at(depth, parents.shape[1]), parents, keys, num_siblings)

        given = self.eagle.propose(state.eagle, root, lengths, choose).tokens
        return self.jacobi.extend(results, given, lengths)

    def _children(self, results: Results, parents: torch.Tensor, keys: torch.Tensor, num_siblings: int) -> torch.Tensor:
        """Return the children of the parents of one depth, int64 (batch, parents, num_siblings).

        Args:
            results: results of the children's position, once for every parent.
            parents: tokens of the parents, int64 (batch, parents).
            keys: the draft model's log-probabilities after each parent plus noise, (batch, parents, vocab).
            num_siblings: number of children of a parent.
        """
        drafted_codes, drafted_keys = result_codes(keys, self.jacobi.num_codes)
        kinds = results.kinds(parents[..., None])
        kinds = torch.cat([kinds, torch.full_like(kinds[..., :1], DRAFTED)], dim=3)
        codes = torch.cat([results.codes, drafted_codes[:, :, None]], dim=2)
        keys = torch.cat([results.keys, drafted_keys[:, :, None]], dim=2)
        return self.jacobi.choose(*self.jacobi.mix(kinds, codes, keys), num_siblings).squeeze(2)

    def observe(self, state: HybridTreeState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """See `Drafter`."""
        self.jacobi.observe(state.jacobi, outcome, lengths)
        self.eagle.observe(state.eagle, outcome, lengths)
