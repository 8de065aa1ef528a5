"""Jacobi drafts: what the target would have drawn at the places ahead in the step before.

An image's noise is fixed, so that its next token is a function of the tokens before it, and the image is that
function's fixed point. Every step evaluates the function at a window of places ahead, on guesses of the tokens between;
its values are the guesses of the next step. A guess is accepted where it equals the token that the target draws: what
is committed is token for token the autoregressive image, at any temperature. No draft model is needed.

Source: the idea is speculative Jacobi decoding (arXiv 2410.01699) with drafts coupled over steps by Gumbel noise
(arXiv 2510.24211); both judge drafts by rejection. Judging by equality, and siblings under it, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lantern.draft_tree import StaticTree, first_ranks, join_trees, static_tree
from lantern.drafters.base import Drafter, best_codes
from lantern.drafters.eagle import EagleDrafter, EagleState
from lantern.methods import MethodSpec
from lantern.models.config import TargetConfig
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Prefill, Proposal

if TYPE_CHECKING:
    from lantern.decoding import DecodingModels


@dataclass
class JacobiState:
    """What a Jacobi drafter keeps of a batch of images.

    Attributes:
        guesses: int64, (batch, tokens + window, siblings): the best codes of every place ahead, best first; -1 for
            none. Those of places already emitted are not read.
    """

    guesses: torch.Tensor


class JacobiDrafter(Drafter):
    """Drafts the target's own draws of the step before.

    Args:
        tree: its depth is the window, the places ahead that are guessed; the child of rank r is the r-th best guess of
            its place, whatever stands before it. Guesses are renewed along the path of first ranks.
        config: of the target.
    """

    def __init__(self, tree: StaticTree, config: TargetConfig) -> None:
        self.tree, self.max_depth, self.config = tree, tree.max_depth, config
        self.num_siblings = int(tree.ranks.max()) + 1
        self._chain = first_ranks(tree)
        self._ahead = torch.arange(2 * self.max_depth + 1, device=tree.parents.device)  # places that `observe` guesses
        # of each node but the root, among the guesses of the places ahead
        self._line_end = torch.where(tree.ranks[:, 1:] == 0, config.num_codes, -1)
        self._guess_index = ((tree.depths - 1) * self.num_siblings + tree.ranks)[:, 1:]

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> JacobiDrafter:
        """See `Drafter`."""
        return cls(static_tree(spec.tree_shape, models.target.device), models.target.config)

    def allocate(self, num_rows: int, noise: NoiseField) -> JacobiState:
        """See `Drafter`."""
        shape = (num_rows, self.config.num_image_tokens + 2 * self.max_depth + 1, self.num_siblings)
        return JacobiState(torch.zeros(shape, dtype=torch.int64, device=self.tree.parents.device))

    def fill(self, state: JacobiState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Guesses image token 0 everywhere."""
        state.guesses.index_copy_(0, rows, prefill.first[..., None].expand(-1, *state.guesses.shape[1:]))

    def propose(self, state: JacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """The guesses of the places behind the root."""
        index = lengths[:, None] * self.num_siblings + self._guess_index
        guesses = state.guesses.flatten(1).gather(1, index)
        if self.config.line_end is not None:  # one token is possible at the end of a line
            is_end = self.config.ends_line(lengths[:, None] + self.tree.depths[:, 1:] - 1)
            guesses = torch.where(is_end, self._line_end, guesses)
        return Proposal(torch.cat([root, guesses], dim=1), self.tree)

    def observe(self, state: JacobiState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Keeps the target's draws of the window, the last of them for the places that enter it next, too."""
        keys = outcome.scores.keys.index_select(1, self._chain)
        best = best_codes(keys, self.num_siblings)
        best = torch.cat([best, best[:, -1:].expand(-1, self.max_depth, -1)], dim=1)
        places = lengths[:, None] + self._ahead
        state.guesses.scatter_(1, places[..., None].expand_as(best), best)


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
