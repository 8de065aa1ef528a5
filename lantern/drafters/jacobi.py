"""Jacobi drafts: tokens that the target sampled for the next positions in earlier steps.

The noise of an image is fixed. Each token is therefore a function of the tokens before it, and the image is the fixed
point of these functions. Every step evaluates them for a *window* of the next positions, given drafts of the tokens
before each position, and the tokens found are drafts of later steps. A draft is accepted if it equals the token that
the target now samples at its position. The image therefore equals the image of autoregressive decoding, token for
token, at any temperature. No draft model is needed.

A *result* is the token that preceded a position in an earlier step, and the target's best codes after it, best first.
The best one is the target's sample. After a rejection, the newest results have a wrong preceding token. The *pool*
therefore keeps several results of every position. For example, position 12 may have 5 -> 8 (newest) and 3 -> 9. If the
token at position 11 is now 3, the draft of position 12 is 9. If it is neither 5 nor 3, the newest result gives 8.

Sources: predictive sampling (Wiggers and Hoogeboom, ICML 2020, arXiv 2002.09928) fixes the noise first and iterates on
forecasts up to the fixed point. Speculative Jacobi decoding (arXiv 2410.01699) iterates drafts of an image model, and
MC-SJD (arXiv 2510.24211) couples the samples of consecutive steps. Both verify by rejection. Lookahead decoding (arXiv
2402.02057) has a pool of n-grams. Lantern adds the pool by position and preceding token, and trees of drafts from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from typing_extensions import override

from lantern.draft_tree import StaticTree, static_tree
from lantern.drafters.base import Drafter, best_codes
from lantern.methods import MethodSpec
from lantern.models.config import TargetConfig
from lantern.noise import NoiseField, Uniform
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal, pick_rows

NUM_KEPT = 6  # results per position in the pool
EMPTY = -2  # preceding token of an empty result, which matches no token


@dataclass
class JacobiState:
    """The pool of every image, int64 (batch, 1 + siblings, positions, kept), results newest first.

    The second axis holds the preceding token, then the best codes. -1 marks a missing code. An empty result has the
    preceding token EMPTY, and its codes are the first draft of the position, or a guess (`_renewed_rows`).
    """

    pool: torch.Tensor
    # The target's distribution in each result, (batch, positions, kept, vocab), 0 for empty results and guesses. None
    # unless `keeps_probs` of the drafter is set.
    probs: torch.Tensor | None = None


def random_drafts(
    noise: NoiseField, stream: Uniform, config: TargetConfig, positions: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """Return a uniformly random code for each position, or the line end at the end of a line, int64 (batch, n).

    Args:
        slots: of the numbers that sample the codes, int64 (batch or 1, n).
    """
    # A number below 1 times num_codes. The product is exact in float64, and so never rounded up to num_codes.
    codes = (noise.fresh(stream, positions, slots).double() * config.num_codes).long()
    return torch.where(config.ends_line(positions), config.num_codes, codes)  # the line end follows the codes


class JacobiDrafter(Drafter[JacobiState]):
    """Drafts from one result per node: the newest that follows the node's token, or else the newest of the position.

    The child of rank r is the r-th best code of this result.

    Args:
        tree: its depth is the window.
        num_kept: number of results per position in the pool. With 1, drafts come from the previous step only.

    Attributes:
        keeps_first: whether positions that the tree has not reached yet keep the first drafts that `fill` stored. If
            False, every step replaces them by the codes after the first of the deepest nodes.
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
        # A complete image stays in the batch, and its steps still write 2 * depth + 1 positions from its end on.
        # As one image's pool: parts of a result, positions, results.
        self._shape = (1 + self.num_siblings, config.num_image_tokens + 2 * self.max_depth + 1, num_kept)
        # Indices into one flat pool, for position 0. Position `lengths` is lengths * num_kept further.
        index = torch.arange(math.prod(self._shape), device=device).view(self._shape)
        # (2, nodes - 1, kept): for each draft, the preceding tokens and the codes of its rank at its position
        self._read = torch.stack([index[0, depths - 1], index[1 + ranks, depths - 1]])
        self._written = index[:, : 2 * self.max_depth + 1].flatten()  # all that a step changes
        self._renewed = _renewed_rows(tree, self.num_siblings, num_kept, self.keeps_first).to(device)
        # A result that follows the parent's token counts as younger than any other. Without ties, argmin is unique.
        self._ages, self._ages_of_others = torch.arange(2 * num_kept, device=device).chunk(2)
        self._parents = tree.parents[0, 1:]
        # At the end of a line: the line end, whose number follows the codes, then no draft for further siblings.
        self._line_end = torch.where(ranks == 0, config.num_codes, -1)
        self._first_children = tree.children[0, :, 0] - 1  # first child of each inner node, as an index into the drafts

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> JacobiDrafter:
        return cls(static_tree(spec.static_choices, models.target.device), models.target.config)

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> JacobiState:
        device = self.tree.parents.device
        pool = torch.zeros(num_rows, *self._shape, dtype=torch.int64, device=device)
        if not self.keeps_probs:
            return JacobiState(pool)
        _, num_positions, num_kept = self._shape
        probs = torch.zeros(num_rows, num_positions, num_kept, self.config.vocab_size, device=device)
        return JacobiState(pool, probs)

    @override
    def fill(self, state: JacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        # The first image token is the first draft of every position.
        pool = prefill.first[:, None, :, None].repeat(1, *self._shape)
        pool[:, 0] = EMPTY
        state.pool.index_copy_(0, rows, pool)
        if state.probs is not None:
            state.probs.index_fill_(0, rows, 0.0)

    @override
    def propose(self, state: JacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        index = lengths[:, None] * self.num_kept + self._read.flatten()
        # (batch, drafts, kept) each
        left, drafts = state.pool.flatten(1).gather(1, index).view(-1, *self._read.shape).unbind(1)
        # All drafts are chosen at once, so parents have no drafts yet. The newest result of their position stands in.
        parents = torch.cat([root, drafts[..., 0]], dim=1).index_select(1, self._parents)
        ages = torch.where(left == parents[..., None], self._ages, self._ages_of_others)
        newest = ages.argmin(-1, keepdim=True)  # (batch, drafts, 1)
        tokens = drafts.gather(2, newest).squeeze(2)
        if self.config.line_end is not None:  # only one token is possible at the end of a line
            # The root is at position lengths - 1, and a node at depth d is d positions further.
            is_end = self.config.ends_line(lengths[:, None] + self.tree.depths[:, 1:] - 1)
            tokens = torch.where(is_end, self._line_end, tokens)
        draft_probs = None if state.probs is None else self._draft_probs(state.probs, newest, lengths)
        return Proposal(torch.cat([root, tokens], dim=1), self.tree, draft_probs)

    def _draft_probs(self, probs: torch.Tensor, newest: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the distributions that the children of inner nodes count as sampled from, (batch, inner, vocab)."""
        # Siblings have the same position and parent, hence the same result: that of the first child.
        ahead = self.tree.depths[:, 1:].index_select(1, self._first_children) - 1
        rows = newest.squeeze(2).index_select(1, self._first_children)
        return pick_rows(probs.flatten(1, 2), (lengths[:, None] + ahead) * self.num_kept + rows)

    @override
    def observe(self, state: JacobiState, outcome: Outcome, lengths: torch.Tensor) -> None:
        # A node and the best codes after it are a result of the position after the node.
        num_nodes = self.tree.num_nodes  # a hybrid tree has more nodes
        tokens = outcome.proposal.tokens[:, :num_nodes, None]
        best = best_codes(outcome.scores.keys[:, :num_nodes], self.num_siblings)
        rows = torch.cat([tokens, best], dim=2).transpose(1, 2)
        written = lengths[:, None] * self.num_kept + self._written
        pool = state.pool.flatten(1)  # a view, so that `scatter_` changes the state
        old = pool.gather(1, written).view(*rows.shape[:2], -1)
        # Both (batch, 1 + siblings, nodes or old results): the list from which `_renewed_rows` selects.
        rows = torch.cat([rows, old], dim=2)
        pool.scatter_(1, written, rows.flatten(1).index_select(1, self._renewed))
        if state.probs is not None:
            self._keep_probs(state.probs, outcome.scores.weights[:, :num_nodes].softmax(-1), written)

    def _keep_probs(self, kept: torch.Tensor, probs: torch.Tensor, written: torch.Tensor) -> None:
        # probs: the target's distributions after the nodes, (batch, nodes, vocab).
        # The indices of preceding tokens come first in `written`. They also index `kept`, which has one entry per
        # result.
        num_written = (2 * self.max_depth + 1) * self.num_kept
        kept = kept.flatten(1, 2)  # a view, too
        written = written[:, :num_written]
        rows = torch.cat([probs, pick_rows(kept, written)], dim=1).index_select(1, self._renewed[:num_written])
        kept.scatter_(1, written[..., None].expand_as(rows), rows)


def _renewed_rows(tree: StaticTree, num_siblings: int, num_kept: int, keeps_first: bool) -> torch.Tensor:
    """Return the indices that select the new results of all positions that a step changes in one image's pool.

    They point into a list per part of a result: those after all nodes, then the old ones of each position. For example,
    with a chain of two drafts (nodes 0 to 2) and three results per position, the next position, whose old results are 3
    to 5, gets 0, 3 and 4.
    """
    depths = tree.depths[0].tolist()
    num_positions = 2 * tree.max_depth + 1
    left = []
    codes = []
    for ahead in range(num_positions):
        old = [len(depths) + ahead * num_kept + age for age in range(num_kept)]
        if ahead <= tree.max_depth:
            # A position directly after nodes gets the results of these nodes, those of first children first, then its
            # newest old ones.
            new = [node for node, depth in enumerate(depths) if depth == ahead]
            left.append([*new, *old][:num_kept])
            codes.append(left[-1])
        else:
            # A position further ahead has no node before it. Its newest result becomes a *guess*: the codes after the
            # first of the deepest nodes. Its preceding tokens stay EMPTY, so that no parent matches.
            left.append(old)
            codes.append(old if keeps_first else [depths.index(tree.max_depth), *old[1:]])
    # One list per part of a result, one after the other, each as long as nodes and old results.
    columns = torch.tensor([left, *[codes] * num_siblings]).flatten(1)
    return (columns + torch.arange(len(columns))[:, None] * (len(depths) + num_positions * num_kept)).flatten()
