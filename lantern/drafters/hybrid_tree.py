"""Hybrid drafts in one static tree: Jacobi drafts, which a draft model improves near the root.

`lantern.drafters.jacobi_tree` ranks drafts by a *pool*. It holds the target's best codes for each position, computed in
earlier steps. Near the root, the ranking also uses the best codes of a draft model, given the drafts on the path from
the root. The draft model uses the target's noise.

The two sources complement each other. The pool was computed before the last tokens were emitted, but also covers
distant positions. The draft model has seen the last tokens, but its predictions become worse with each depth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from lantern.decoding_state import DecodingModels
from lantern.draft_tree import static_tree
from lantern.drafters.eagle import EagleDrafter
from lantern.drafters.jacobi import HybridDrafter, HybridState
from lantern.drafters.jacobi_tree import DRAFTED, JacobiTreeDrafter, Results, result_codes
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.step import Proposal
from lantern.tree_shapes import JointTree

NUM_DEPTHS = 3  # number of depths whose drafts are also ranked by the draft model


class HybridTreeDrafter(HybridDrafter):
    """The drafter that ranks drafts near the root by a draft model and the pool, and all other drafts by the pool.

    The pool holds the target's best codes for each position, computed in earlier steps, see
    `lantern.drafters.jacobi_tree`.

    Args:
        jacobi: keeps the pool, and drafts the nodes below depth `NUM_DEPTHS`.
        learned: runs the draft model over the first `NUM_DEPTHS` depths of the same tree.
        tree: the tree.
    """

    jacobi: JacobiTreeDrafter
    learned: Any  # its `propose` takes a function that chooses drafts, see `lantern.drafters.eagle.Choose`

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> HybridDrafter:
        """Make the drafter of a method, see `Drafter.make`.

        If the method has two trees, such as "chain9+chain3", the result is a `HybridDrafter`, which fills them
        separately.
        """
        if isinstance(spec.tree_shape, JointTree):
            return HybridDrafter.make(models, spec, sampling)
        target = models.target
        choices = spec.static_choices
        tree = static_tree(choices, target.device)
        first = static_tree([path for path in choices if len(path) <= NUM_DEPTHS], target.device)
        draft = models.require_draft(spec.label)
        eagle = EagleDrafter(draft, target, "coupled", first, sampling, tree.max_depth + 1)
        return cls(JacobiTreeDrafter(tree, target.config, num_given=first.max_depth), eagle, tree)

    def propose(self, state: HybridState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return the tree filled with drafts, see `Drafter.propose`.

        The first `NUM_DEPTHS` depths are drafted one after the other, by the draft model and the pool. The pool holds
        the target's best codes of earlier steps. The nodes of all later depths are drafted at once, by the pool only.
        """
        results = self.jacobi.recall(state.jacobi, lengths)

        def choose(depth: int, parents: torch.Tensor, keys: torch.Tensor, num_siblings: int) -> torch.Tensor:
            return self._children(results.at(depth, parents.shape[1]), parents, keys, num_siblings)

        given = self.learned.propose(state.learned, root, lengths, choose)
        return replace(self.jacobi.extend(results, given.tokens, lengths), is_finite=given.is_finite)

    def _children(self, results: Results, parents: torch.Tensor, keys: torch.Tensor, num_siblings: int) -> torch.Tensor:
        """Return the drafts below the parents of one depth, int64 (batch, parents, num_siblings).

        They are the most probable codes of a mixture of distributions. One is the draft model's. The others come from
        the pool, one per *result*: a preceding token and the target's best codes after it, from an earlier step.

        Args:
            results: the pool's results of the children's position, repeated for every parent, see `Results.at`.
            parents: tokens of the parents, int64 (batch, parents).
            keys: the draft model's log-probabilities after each parent, plus noise, (batch, parents, vocab).
            num_siblings: number of children of a parent.
        """
        drafted_codes, drafted_keys = result_codes(keys, self.jacobi.num_codes)
        kinds = results.kinds(parents[..., None])
        kinds = torch.cat([kinds, torch.full_like(kinds[..., :1], DRAFTED)], dim=3)
        codes = torch.cat([results.codes, drafted_codes[:, :, None]], dim=2)
        keys = torch.cat([results.keys, drafted_keys[:, :, None]], dim=2)
        return self.jacobi.choose(*self.jacobi.mix(kinds, codes, keys), num_siblings).squeeze(2)
