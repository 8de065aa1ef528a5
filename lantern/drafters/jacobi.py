"""Jacobi drafts: what the target drew at the positions ahead in the steps before.

An image's noise is fixed, so that its next token is a function of the tokens before it, and the image is that
function's fixed point. Every step evaluates the function at a window of positions ahead, on guesses of the tokens
between; its values are the guesses of the next steps. A guess is accepted where it equals the token that the target
draws: what is committed is token for token the autoregressive image, at any temperature. No draft model is needed.

The first guess that fails leaves another token at the left of the next, which its row did not see. So a pool keeps the
last rows of every position, and the newest that saw the token now at the left guesses, else the newest.

Source: predictive sampling (Wiggers and Hoogeboom, ICML 2020, arXiv 2002.09928) fixes a sample's noise first, so that
sampling is a deterministic function whose fixed point is the image, and iterates it with forecasts as first guesses.
Speculative Jacobi decoding (arXiv 2410.01699) iterates drafts of an image model, and MC-SJD (arXiv 2510.24211) couples
the samples of consecutive steps; both verify by rejection. The pool, keyed by position and preceding token, and trees
of its drafts are Lantern's; lookahead decoding (arXiv 2402.02057) has a pool of n-grams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lantern.decoding_state import DecodingModels
from lantern.draft_tree import StaticTree, join_trees, static_tree
from lantern.drafters.base import Drafter, best_codes
from lantern.drafters.eagle import EagleDrafter, EagleState
from lantern.methods import MethodSpec
from lantern.models.config import TargetConfig
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal, pick_rows

NUM_KEPT = 6  # rows that the pool keeps of a position


@dataclass
class JacobiState:
    """What a Jacobi drafter keeps of a batch of images.

    Attributes:
        pool: int64, (batch, 1 + siblings, tokens + window, kept): the last rows evaluated at every position, newest
            first: the token at the left, then the best codes, best first; -1 for none. Where no row is, the left is -2,
            which matches no token, and the codes are a first guess. Positions already emitted are not read.
        probs: the target's distributions in these rows, (batch, tokens + window, kept, vocab), all 0 where no row is.
            None unless the drafter keeps them.
    """

    pool: torch.Tensor
    probs: torch.Tensor | None = None


class JacobiDrafter(Drafter):
    """Drafts the target's own draws of the steps before.

    Args:
        tree: its depth is the window, the positions ahead that are guessed. The child of rank r is the r-th best code
            of the newest row that saw at its left what the newest row there drew for the parent, else of the newest.
        config: of the target.
        num_kept: rows that the pool keeps of a position; with 1, guesses are of the step before alone.
    """

    def __init__(self, tree: StaticTree, config: TargetConfig, num_kept: int = NUM_KEPT) -> None:
        self.tree, self.max_depth, self.config, self.num_kept = tree, tree.max_depth, config, num_kept
        device, depths, ranks = tree.parents.device, tree.depths[0, 1:], tree.ranks[0, 1:]
        self.num_siblings = int(ranks.max()) + 1
        self._shape = (1 + self.num_siblings, config.num_image_tokens + 2 * self.max_depth + 1, num_kept)
        index = torch.arange(math.prod(self._shape), device=device).view(self._shape)  # of an image, at length 0
        self._read = torch.stack([index[0, depths - 1], index[1 + ranks, depths - 1]])  # (2, nodes - 1, kept)
        self._written = index[:, : 2 * self.max_depth + 1].flatten()
        self._renewed = _renewed_rows(tree, self.num_siblings, num_kept).to(device)
        self._ages, self._ages_of_others = torch.arange(2 * num_kept, device=device).chunk(2)
        self._parents = tree.parents[0, 1:]
        self._line_end = torch.where(ranks == 0, config.num_codes, -1)
        self._first_children = tree.children[0, :, 0] - 1  # of the inner nodes, among the drafts

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> JacobiDrafter:
        """See `Drafter`."""
        return cls(static_tree(spec.tree_shape, models.target.device), models.target.config)

    def allocate(self, num_rows: int, noise: NoiseField) -> JacobiState:
        """See `Drafter`."""
        device, (_, *slots) = self.tree.parents.device, self._shape
        pool = torch.zeros(num_rows, *self._shape, dtype=torch.int64, device=device)
        if not self.keeps_probs:
            return JacobiState(pool)
        return JacobiState(pool, torch.zeros(num_rows, *slots, self.config.vocab_size, device=device))

    def fill(self, state: JacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Guesses image token 0 everywhere."""
        pool = prefill.first[..., None, None].repeat(1, *self._shape)
        pool[:, 0] = -2
        state.pool.index_copy_(0, rows, pool)
        if state.probs is not None:
            state.probs.index_fill_(0, rows, 0.0)

    def propose(self, state: JacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """The guesses of the positions behind the root; one comparison finds the rows of all."""
        index = lengths[:, None] * self.num_kept + self._read.flatten()
        left, drafts = state.pool.flatten(1).gather(1, index).view(-1, *self._read.shape).unbind(1)
        parents = torch.cat([root, drafts[..., 0]], dim=1).index_select(1, self._parents)
        ages = torch.where(left == parents[..., None], self._ages, self._ages_of_others)  # no two are equal
        newest = ages.argmin(-1, keepdim=True)
        guesses = drafts.gather(2, newest).squeeze(2)
        if self.config.line_end is not None:  # one token is possible at the end of a line
            is_end = self.config.ends_line(lengths[:, None] + self.tree.depths[:, 1:] - 1)
            guesses = torch.where(is_end, self._line_end, guesses)
        draft_probs = None if state.probs is None else self._draft_probs(state.probs, newest, lengths)
        return Proposal(torch.cat([root, guesses], dim=1), self.tree, draft_probs)

    def _draft_probs(self, probs: torch.Tensor, newest: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the distributions in the rows that give the children of inner nodes, (batch, inner, vocab).

        Siblings come from one row.
        """
        ahead = self.tree.depths[:, 1:].index_select(1, self._first_children) - 1
        rows = newest.squeeze(2).index_select(1, self._first_children)
        return pick_rows(probs.flatten(1, 2), (lengths[:, None] + ahead) * self.num_kept + rows)

    def observe(self, state: JacobiState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Puts the rows of all nodes into the pool; the last one's codes are the first guesses behind the window."""
        nodes = self.tree.num_nodes  # a hybrid's tree has more
        best = best_codes(outcome.scores.keys[:, :nodes], self.num_siblings)
        rows = torch.cat([outcome.proposal.tokens[:, :nodes, None], best], dim=2).transpose(1, 2)
        written, pool = lengths[:, None] * self.num_kept + self._written, state.pool.flatten(1)
        old = pool.gather(1, written).view(*rows.shape[:2], -1)
        rows = torch.cat([rows, old], dim=2)
        pool.scatter_(1, written, rows.flatten(1).index_select(1, self._renewed))
        if state.probs is not None:
            self._keep_probs(state.probs, outcome.scores.weights[:, :nodes].softmax(-1), written)

    def _keep_probs(self, kept: torch.Tensor, probs: torch.Tensor, written: torch.Tensor) -> None:
        """Move distributions as `observe` moves the tokens at the left: both are one per row of the pool."""
        num_written = (2 * self.max_depth + 1) * self.num_kept
        kept, written = kept.flatten(1, 2), written[:, :num_written]
        rows = torch.cat([probs, pick_rows(kept, written)], dim=1).index_select(1, self._renewed[:num_written])
        kept.scatter_(1, written[..., None].expand_as(rows), rows)


def _renewed_rows(tree: StaticTree, num_siblings: int, num_kept: int) -> torch.Tensor:
    """Where `observe` finds the new pool of the positions from the root's on, among the rows of all nodes and of the
    old pool: at each the nodes that predict it, then what was newest; behind the window, the codes of its last row.
    """
    depths, num_positions = tree.depths[0].tolist(), 2 * tree.max_depth + 1
    left, codes = [], []
    for ahead in range(num_positions):
        old = [len(depths) + ahead * num_kept + age for age in range(num_kept)]
        if ahead <= tree.max_depth:
            new = [node for node, depth in enumerate(depths) if depth == ahead]
            left.append([*new, *old][:num_kept])
            codes.append(left[-1])
        else:
            left.append(old)
            codes.append([depths.index(tree.max_depth), *old[1:]])
    columns = torch.tensor([left, *[codes] * num_siblings]).flatten(1)
    return (columns + torch.arange(len(columns))[:, None] * (len(depths) + num_positions * num_kept)).flatten()


@dataclass
class HybridState:
    """The states of both drafters."""

    jacobi: JacobiState
    eagle: EagleState


class HybridDrafter(Drafter):
    """Jacobi drafts and EAGLE's side by side in one tree; the longer accepted path is taken.

    Args:
        jacobi: fills the nodes of its tree.
        eagle: fills those of its own, which follow; must catch up with the longer of the two paths.
    """

    def __init__(self, jacobi: JacobiDrafter, eagle: EagleDrafter) -> None:
        self.jacobi, self.eagle = jacobi, eagle
        self.tree = join_trees(jacobi.tree, eagle.tree)
        self.max_depth, self.noise_streams = self.tree.max_depth, eagle.noise_streams

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> HybridDrafter:
        """See `Drafter`."""
        target, shape = models.target, spec.tree_shape
        jacobi = JacobiDrafter(static_tree(shape.jacobi, target.device), target.config)
        tree = static_tree(shape.drafter, target.device)
        most_pending = max(jacobi.max_depth, tree.max_depth) + 1
        return cls(jacobi, EagleDrafter(models.draft, target, "coupled", tree, sampling, most_pending))

    def allocate(self, num_rows: int, noise: NoiseField) -> HybridState:
        """See `Drafter`."""
        return HybridState(self.jacobi.allocate(num_rows, noise), self.eagle.allocate(num_rows, noise))

    def fill(self, state: HybridState, rows: torch.Tensor, prefill: Prefill) -> None:
        """See `Drafter`."""
        self.jacobi.fill(state.jacobi, rows, prefill)
        self.eagle.fill(state.eagle, rows, prefill)

    def propose(self, state: HybridState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Both proposals below one root."""
        first = self.jacobi.propose(state.jacobi, root, lengths)
        second = self.eagle.propose(state.eagle, root, lengths)
        return Proposal(torch.cat([first.tokens, second.tokens[:, 1:]], dim=1), self.tree)

    def observe(self, state: HybridState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """See `Drafter`."""
        self.jacobi.observe(state.jacobi, outcome, lengths)
        self.eagle.observe(state.eagle, outcome, lengths)
