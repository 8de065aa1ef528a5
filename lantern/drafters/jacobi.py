"""Jacobi drafts: tokens that the target sampled for the next positions in earlier steps.

The noise of an image is fixed. Each token is therefore a function of the tokens before it, and the image is a fixed
point of these functions. Every step evaluates them for a window of the next positions, given drafts of the tokens
before each position. The tokens found are the drafts of later steps. A draft is accepted if it equals the token that
the target now samples at its position. The image therefore equals the image of autoregressive decoding, token for
token, at any temperature. No draft model is needed.

After a rejection, the drafts that follow were sampled after a wrong token. The *pool* therefore keeps the last results
of every position. A *result* is the preceding token and the target's best tokens after it, in one earlier step. The
best token is the one that was sampled; trees of drafts also use the next best. For example, without the next best
tokens, position 12 may have the results 5 -> 8 (newest) and 3 -> 9. If the token at position 11 is now 3, the draft of
position 12 is 9. If the token at position 11 is neither 5 nor 3, the draft comes from the newest result and is 8.

Sources: predictive sampling (Wiggers and Hoogeboom, ICML 2020, arXiv 2002.09928) fixes the noise of a sample first.
Sampling is then a deterministic function, which is iterated on forecasts, and the image is its fixed point. Speculative
Jacobi decoding (arXiv 2410.01699) iterates drafts of an image model, and MC-SJD (arXiv 2510.24211) couples the samples
of consecutive steps. Both verify by rejection. Lookahead decoding (arXiv 2402.02057) has a pool of n-grams. Lantern
adds the pool that is searched by position and preceding token, and trees of drafts from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lantern.decoding_state import DecodingModels
from lantern.draft_tree import DraftTree, StaticTree, join_trees, static_tree
from lantern.drafters.base import Drafter, best_codes
from lantern.drafters.eagle import EagleDrafter
from lantern.methods import MethodSpec
from lantern.models.config import TargetConfig
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal, pick_rows
from lantern.tree_shapes import JointTree

NUM_KEPT = 6  # results per position in the pool
EMPTY = -2  # preceding token of an empty result, which matches no token


@dataclass
class JacobiState:
    """The state of a Jacobi drafter: the pool of results of earlier steps.

    A *result* of a position comes from one step. It is the token that preceded the position in that step, and the
    target's best codes after this token. The best code is the target's sample.

    Attributes:
        pool: the last results of every position, newest first, int64 (batch, 1 + siblings, tokens + window, kept). The
            second axis holds the parts of a result: first the preceding token, then the best codes after it, best
            first. -1 marks a missing code. An empty result has the preceding token -2, which matches no token. All its
            codes are the first draft of the position. Positions that are already emitted are not read.
        probs: the target's distribution of the code in each result, (batch, tokens + window, kept, vocab). 0 for empty
            results. None unless `keeps_probs` of the drafter is set.
    """

    pool: torch.Tensor
    probs: torch.Tensor | None = None


class JacobiDrafter(Drafter[JacobiState]):
    """The drafter whose drafts are the target's samples of earlier steps, which are kept in a pool.

    The pool has several results for every position. A *result* is a preceding token and the target's best codes after
    it, from one earlier step. All children of a node come from one result of their position. It is the newest result
    whose preceding token equals the newest draft of the node's position. If there is no match, it is the newest result.
    The child of rank r is the r-th best code of the result.

    Args:
        tree: the static tree. Its depth is the window, the number of positions that are drafted in a step.
        config: sizes of the target.
        num_kept: number of results per position in the pool. With 1, drafts come from the previous step only.

    Attributes:
        keeps_first: whether positions that the tree has not reached yet keep their first drafts, which `fill` stored.
            If False, every step replaces them by the target's best codes for the last position that the tree reaches.
    """

    tree: StaticTree
    keeps_first = False

    def __init__(self, tree: StaticTree, config: TargetConfig, num_kept: int = NUM_KEPT) -> None:
        self.tree = tree
        self.max_depth = tree.max_depth
        self.config = config
        self.num_kept = num_kept
        device = tree.parents.device
        depths = tree.depths[0, 1:]
        ranks = tree.ranks[0, 1:]
        self.num_siblings = int(ranks.max()) + 1
        self._shape = (1 + self.num_siblings, config.num_image_tokens + 2 * self.max_depth + 1, num_kept)
        index = torch.arange(math.prod(self._shape), device=device).view(self._shape)  # indices into one image's pool
        self._read = torch.stack([index[0, depths - 1], index[1 + ranks, depths - 1]])  # (2, nodes - 1, kept)
        self._written = index[:, : 2 * self.max_depth + 1].flatten()
        self._renewed = _renewed_rows(tree, self.num_siblings, num_kept, self.keeps_first).to(device)
        self._ages, self._ages_of_others = torch.arange(2 * num_kept, device=device).chunk(2)
        self._parents = tree.parents[0, 1:]
        self._line_end = torch.where(ranks == 0, config.num_codes, -1)
        self._first_children = tree.children[0, :, 0] - 1  # first child of each inner node, as an index into the drafts

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> JacobiDrafter:
        """Make the drafter of a method with one static tree, see `Drafter.make`."""
        return cls(static_tree(spec.static_choices, models.target.device), models.target.config)

    def allocate(self, num_rows: int, noise: NoiseField) -> JacobiState:
        """Make an empty pool of results for `num_rows` images, see `Drafter.allocate`."""
        device = self.tree.parents.device
        pool = torch.zeros(num_rows, *self._shape, dtype=torch.int64, device=device)
        if not self.keeps_probs:
            return JacobiState(pool)
        _, num_positions, num_kept = self._shape
        probs = torch.zeros(num_rows, num_positions, num_kept, self.config.vocab_size, device=device)
        return JacobiState(pool, probs)

    def fill(self, state: JacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Fill the pool of new prompts with a first draft for every position, see `Drafter.fill`."""
        pool = self._first_drafts(prefill)[:, None, :, None].repeat(1, self._shape[0], 1, self.num_kept)
        pool[:, 0] = EMPTY
        state.pool.index_copy_(0, rows, pool)
        if state.probs is not None:
            state.probs.index_fill_(0, rows, 0.0)

    def _first_drafts(self, prefill: Prefill) -> torch.Tensor:
        """Return the first image token as the first draft of every position, int64 (prompts, tokens + window)."""
        return prefill.first.expand(-1, self._shape[1])

    def propose(self, state: JacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return drafts from the pool for the positions after the root, see `Drafter.propose`.

        The pool holds several results per position, each a preceding token and the target's best codes after it. A
        node's draft should come from a result whose preceding token is the draft of the node's parent. However, all
        drafts are chosen at once, so that the parent's draft is not known yet. The code of the newest result of the
        parent's position is used in its place.
        """
        index = lengths[:, None] * self.num_kept + self._read.flatten()
        left, drafts = state.pool.flatten(1).gather(1, index).view(-1, *self._read.shape).unbind(1)
        parents = torch.cat([root, drafts[..., 0]], dim=1).index_select(1, self._parents)
        ages = torch.where(left == parents[..., None], self._ages, self._ages_of_others)  # no two are equal
        newest = ages.argmin(-1, keepdim=True)
        tokens = drafts.gather(2, newest).squeeze(2)
        if self.config.line_end is not None:  # only one token is possible at the end of a line
            is_end = self.config.ends_line(lengths[:, None] + self.tree.depths[:, 1:] - 1)
            tokens = torch.where(is_end, self._line_end, tokens)
        draft_probs = None if state.probs is None else self._draft_probs(state.probs, newest, lengths)
        return Proposal(torch.cat([root, tokens], dim=1), self.tree, draft_probs)

    def _draft_probs(self, probs: torch.Tensor, newest: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the distributions that the children of inner nodes were sampled from, (batch, inner, vocab).

        Inner nodes are nodes that have children. All siblings come from one distribution: the target's at their
        position in an earlier step.

        Args:
            probs: `JacobiState.probs`.
            newest: for each draft, the index on the axis `kept` of the distribution that it was sampled from, int64
                (batch, drafts, 1).
            lengths: number of emitted tokens of each image, int64 (batch,).
        """
        ahead = self.tree.depths[:, 1:].index_select(1, self._first_children) - 1
        rows = newest.squeeze(2).index_select(1, self._first_children)
        return pick_rows(probs.flatten(1, 2), (lengths[:, None] + ahead) * self.num_kept + rows)

    def observe(self, state: JacobiState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Put the target's best codes after each node into the pool as later drafts, see `Drafter.observe`.

        A node's token and the best codes after it are a *result*, which belongs to the position after the node.
        Positions further from the root have no node before them. Unless `keeps_first` is True, the codes after the
        first of the deepest nodes replace the newest drafts of these positions, for lack of a better guess.
        """
        num_nodes = self.tree.num_nodes  # a hybrid tree has more nodes
        tokens = outcome.proposal.tokens[:, :num_nodes, None]
        best = best_codes(outcome.scores.keys[:, :num_nodes], self.num_siblings)
        rows = torch.cat([tokens, best], dim=2).transpose(1, 2)
        written = lengths[:, None] * self.num_kept + self._written
        pool = state.pool.flatten(1)
        old = pool.gather(1, written).view(*rows.shape[:2], -1)
        rows = torch.cat([rows, old], dim=2)
        pool.scatter_(1, written, rows.flatten(1).index_select(1, self._renewed))
        if state.probs is not None:
            self._keep_probs(state.probs, outcome.scores.weights[:, :num_nodes].softmax(-1), written)

    def _keep_probs(self, kept: torch.Tensor, probs: torch.Tensor, written: torch.Tensor) -> None:
        """Store the target's distribution after each node, from which later drafts count as sampled.

        The pool keeps the best codes after each node as a *result*. The distribution is stored at the index of the
        result.

        Args:
            kept: `JacobiState.probs`, changed in place.
            probs: the target's distributions after the nodes, (batch, nodes, vocab).
            written: indices into one image's flattened `JacobiState.pool` that `observe` overwrites, int64 (batch, n).
                The indices of preceding tokens come first. Only these are used, since they also index `kept`.
        """
        num_written = (2 * self.max_depth + 1) * self.num_kept
        kept = kept.flatten(1, 2)
        written = written[:, :num_written]
        rows = torch.cat([probs, pick_rows(kept, written)], dim=1).index_select(1, self._renewed[:num_written])
        kept.scatter_(1, written[..., None].expand_as(rows), rows)


class SourceJacobiDrafter(JacobiDrafter):
    """The Jacobi drafter for models that edit a source picture, whose codes are the first drafts.

    Each position begins with the source picture's code at the same place, since an edited image may repeat much of its
    source. As soon as the target has sampled tokens for a position, they are its drafts.
    """

    keeps_first = True

    def _first_drafts(self, prefill: Prefill) -> torch.Tensor:
        """Return the first draft of every position of an edited image, int64 (prompts, tokens + window).

        It is the code of the picture to edit at the same place, and 0 at positions after the last token of the image.

        Raises:
            ValueError: the prompts have no source pictures.
        """
        if prefill.source is None:
            raise ValueError(
                "drafts jacobi_source need a source picture, got a prompt of text alone; pass images, or use drafts "
                "jacobi"
            )
        return F.pad(prefill.source, (0, self._shape[1] - prefill.source.shape[1]))


def _renewed_rows(tree: StaticTree, num_siblings: int, num_kept: int, keeps_first: bool) -> torch.Tensor:
    """Return the indices by which `observe` updates the pool of one image after a step, int64 (n,).

    A *result* of a position is a preceding token and the target's best codes after it, from one step. A step changes
    the results of 2 * depth + 1 positions: depth + 1 that follow nodes of the tree, and depth positions after these.
    Let a list hold the results after all nodes, then the old results of these positions. The returned indices select
    the new results of the positions from the list.

    - A position directly after nodes of the tree gets the results of these nodes, then its newest old results.
    - A later position keeps its results. Unless `keeps_first` is True, the codes of its newest result are replaced by
      the codes after the first node of the deepest level.

    For example, let the tree be a chain of two drafts, with three results per position. The next position then gets the
    result of the root and its two newest old results.

    Args:
        tree: the static tree.
        num_siblings: number of codes of a result.
        num_kept: number of results per position in the pool.
        keeps_first: whether positions beyond the tree keep their first drafts, see `JacobiDrafter`.
    """
    depths = tree.depths[0].tolist()
    num_positions = 2 * tree.max_depth + 1
    left = []
    codes = []
    for ahead in range(num_positions):
        old = [len(depths) + ahead * num_kept + age for age in range(num_kept)]
        if ahead <= tree.max_depth:
            new = [node for node, depth in enumerate(depths) if depth == ahead]
            left.append([*new, *old][:num_kept])
            codes.append(left[-1])
        else:
            left.append(old)
            codes.append(old if keeps_first else [depths.index(tree.max_depth), *old[1:]])
    columns = torch.tensor([left, *[codes] * num_siblings]).flatten(1)
    return (columns + torch.arange(len(columns))[:, None] * (len(depths) + num_positions * num_kept)).flatten()


@dataclass
class HybridState:
    """The state of a `HybridDrafter`, which consists of the states of its two drafters.

    Attributes:
        jacobi: state of its Jacobi drafter.
        learned: state of its drafter with a trained model.
    """

    jacobi: Any
    learned: Any


class HybridDrafter(Drafter[HybridState]):
    """The drafter of two trees below one root: one with Jacobi drafts, one with drafts of a trained model.

    In each step, the longer of the two trees' accepted paths is emitted.

    Args:
        jacobi: fills the nodes of the first tree.
        learned: fills the nodes of the second tree, with drafts of a trained model. The `most_pending` of an EAGLE
            drafter must be at least 1 plus the depth of the deeper tree, since a step may emit this number of tokens.
        tree: both trees below one root.
    """

    tree: DraftTree

    def __init__(self, jacobi: Drafter[Any], learned: Drafter[Any], tree: DraftTree) -> None:
        self.jacobi = jacobi
        self.learned = learned
        self.tree = tree
        self.max_depth = tree.max_depth
        self.noise_streams = learned.noise_streams

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> HybridDrafter:
        """Make the drafter of a method with two trees, such as "chain9+chain3": one for Jacobi drafts, one for EAGLE's.

        Raises:
            ValueError: the method does not name two trees.
        """
        target = models.target
        shape = spec.tree_shape
        if not isinstance(shape, JointTree):
            raise ValueError(f"method {spec.label} needs two trees, got {spec.tree}; use chain9+chain3")
        jacobi_tree = static_tree(shape.jacobi, target.device)
        eagle_tree = static_tree(shape.drafter, target.device)
        most_pending = max(jacobi_tree.max_depth, eagle_tree.max_depth) + 1
        draft = models.require_draft(spec.label)
        return cls(
            JacobiDrafter(jacobi_tree, target.config),
            EagleDrafter(draft, target, "coupled", eagle_tree, sampling, most_pending),
            join_trees(jacobi_tree, eagle_tree),
        )

    def allocate(self, num_rows: int, noise: NoiseField) -> HybridState:
        """Make the states of both drafters for `num_rows` images, see `Drafter.allocate`."""
        return HybridState(self.jacobi.allocate(num_rows, noise), self.learned.allocate(num_rows, noise))

    def fill(self, state: HybridState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Prepare the states of both drafters for new prompts, see `Drafter.fill`."""
        self.jacobi.fill(state.jacobi, rows, prefill)
        self.learned.fill(state.learned, rows, prefill)

    def propose(self, state: HybridState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Return the Jacobi drafter's tree and the other drafter's tree below one root, see `Drafter.propose`."""
        first = self.jacobi.propose(state.jacobi, root, lengths)
        second = self.learned.propose(state.learned, root, lengths)
        return Proposal(torch.cat([first.tokens, second.tokens[:, 1:]], dim=1), self.tree, is_finite=second.is_finite)

    def observe(self, state: HybridState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Update the states of both drafters after a step, see `Drafter.observe`."""
        self.jacobi.observe(state.jacobi, outcome, lengths)
        self.learned.observe(state.learned, outcome, lengths)
