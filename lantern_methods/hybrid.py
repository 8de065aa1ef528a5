"""Hybrid drafts: those of the Jacobi pool and those of a draft model, in two trees below one root or in one tree.

The method is Lantern's own. The two sources complement each other. The pool was computed before the last tokens were
emitted, but also covers distant positions. The draft model has seen the last tokens, but its predictions become worse
with each depth. It samples with the target's noise.

In one tree, the best codes of the draft model are, near the root, one more result in the mixture of
`lantern_methods.jacobi_tree`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from typing_extensions import override

from lantern.draft_tree import DraftTree, static_structure, static_tree
from lantern.drafters.base import Drafter
from lantern.drafters.eagle import EagleDrafter
from lantern.drafters.jacobi import JacobiDrafter
from lantern.methods import MethodSpec
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal
from lantern.tree_shapes import JointTree
from lantern_methods.jacobi_tree import DRAFTED, JacobiTreeDrafter, Results, result_codes

NUM_DEPTHS = 3  # number of depths whose drafts are also ranked by the draft model


def join_trees(first: DraftTree, second: DraftTree) -> DraftTree:
    """Join two static trees at their roots. The second one's nodes are numbered after those of the first."""
    shift = first.num_nodes - 1  # node 1 of the second becomes `first.num_nodes`; both roots are node 0
    shifted = [parent + shift if parent else 0 for parent in second.parents[0, 1:].tolist()]
    return static_structure(first.parents[0].tolist() + shifted, first.parents.device)


@dataclass
class HybridState:
    """The states of the drafters of the same names."""

    jacobi: Any
    learned: Any


class HybridDrafter(Drafter[HybridState]):
    """The drafter of two trees below one root: one with Jacobi drafts, one with drafts of a trained model.

    Args:
        jacobi: fills the first tree.
        learned: fills the second tree.
        tree: both trees, joined by `join_trees`. The longer of their accepted paths is emitted.
    """

    tree: DraftTree

    def __init__(self, jacobi: Drafter[Any], learned: Drafter[Any], tree: DraftTree) -> None:
        self.jacobi = jacobi
        self.learned = learned
        self.tree = tree
        self.max_depth = tree.max_depth
        self.noise_streams = learned.noise_streams

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> HybridDrafter:
        target = models.target
        shape = spec.tree_shape
        if not isinstance(shape, JointTree):
            raise ValueError(f"method {spec.label} needs two trees, got {spec.tree}; use chain9+chain3")
        jacobi_tree = static_tree(shape.jacobi, target.device)
        eagle_tree = static_tree(shape.drafter, target.device)
        # After a long Jacobi path, the draft model must catch up on as many tokens and the bonus token.
        most_pending = max(jacobi_tree.max_depth, eagle_tree.max_depth) + 1
        draft = models.require_draft(spec.label)
        return cls(
            JacobiDrafter(jacobi_tree, target.config),
            EagleDrafter(draft, target, "coupled", eagle_tree, sampling, most_pending),
            join_trees(jacobi_tree, eagle_tree),
        )

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> HybridState:
        return HybridState(self.jacobi.allocate(num_rows, noise), self.learned.allocate(num_rows, noise))

    @override
    def fill(self, state: HybridState, rows: torch.Tensor, prefill: Prefill) -> None:
        self.jacobi.fill(state.jacobi, rows, prefill)
        self.learned.fill(state.learned, rows, prefill)

    @override
    def propose(self, state: HybridState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        first = self.jacobi.propose(state.jacobi, root, lengths)
        second = self.learned.propose(state.learned, root, lengths)
        # Both trees begin with the same root. Only the draft model has logits of its own to check.
        return Proposal(torch.cat([first.tokens, second.tokens[:, 1:]], dim=1), self.tree, is_finite=second.is_finite)

    @override
    def observe(self, state: HybridState, outcome: Outcome, lengths: torch.Tensor) -> None:
        self.jacobi.observe(state.jacobi, outcome, lengths)
        self.learned.observe(state.learned, outcome, lengths)


class HybridTreeDrafter(HybridDrafter):
    """Hybrid drafts of one tree. For a joint tree, `make` returns a `HybridDrafter` instead.

    Args:
        jacobi: keeps the pool, and drafts the nodes deeper than `learned` does.
        learned: drafts the first depths of `tree`, with the mixture of both sources.
    """

    jacobi: JacobiTreeDrafter
    learned: Any  # its `propose` takes a function that chooses drafts, see `lantern.drafters.eagle.Choose`

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> HybridDrafter:
        # Two trees, such as chain9+chain3, are filled separately.
        if isinstance(spec.tree_shape, JointTree):
            return HybridDrafter.make(models, spec, sampling)
        target = models.target
        choices = spec.static_choices
        tree = static_tree(choices, target.device)
        first = static_tree([path for path in choices if len(path) <= NUM_DEPTHS], target.device)
        draft = models.require_draft(spec.label)
        # A step may emit the longest path of the whole tree, which may be longer than the draft model's part.
        eagle = EagleDrafter(draft, target, "coupled", first, sampling, tree.max_depth + 1)
        return cls(JacobiTreeDrafter(tree, target.config, num_given=first.max_depth), eagle, tree)

    @override
    def propose(self, state: HybridState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        # Depths near the root are drafted one after the other, given the drafts above, and the others at once.
        results = self.jacobi.recall(state.jacobi, lengths)

        def choose(depth: int, parents: torch.Tensor, keys: torch.Tensor, num_siblings: int) -> torch.Tensor:
            return self._children(results.at(depth, parents.shape[1]), parents, keys, num_siblings)

        given = self.learned.propose(state.learned, root, lengths, choose)
        return replace(self.jacobi.extend(results, given.tokens, lengths), is_finite=given.is_finite)

    def _children(self, results: Results, parents: torch.Tensor, keys: torch.Tensor, num_siblings: int) -> torch.Tensor:
        # Returns int64 (batch, parents, num_siblings).
        # keys: the draft model's log-probabilities plus noise after each parent, (batch, parents, vocab). From `kinds`
        # on the axis of depths holds the parents, with one parent each, so that every parent has its own mixture.
        drafted_codes, drafted_keys = result_codes(keys, self.jacobi.num_codes)
        kinds = results.kinds(parents[..., None])
        kinds = torch.cat([kinds, torch.full_like(kinds[..., :1], DRAFTED)], dim=3)
        codes = torch.cat([results.codes, drafted_codes[:, :, None]], dim=2)
        keys = torch.cat([results.keys, drafted_keys[:, :, None]], dim=2)
        return self.jacobi.choose(*self.jacobi.mix(kinds, codes, keys), num_siblings).squeeze(2)
