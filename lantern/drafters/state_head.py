"""Drafts of a state head: Jacobi drafts whose hidden states are corrected near the root.

A step computes the target's hidden states of later positions given drafts. They are *outdated* as soon as a token
before them changes. A *state head* predicts the state after the new tokens (`lantern.models.state_head`). Near the
root, the codes that the target would sample from this prediction are one more result of the mixture, as those of a
draft model in `lantern.drafters.hybrid_tree`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from typing_extensions import override

from lantern.decoding_state import DecodingModels
from lantern.draft_tree import StaticTree, first_ranks, level_indices, static_tree
from lantern.drafters.base import Drafter, are_finite, best_codes
from lantern.drafters.eagle import Choose
from lantern.drafters.hybrid_tree import HybridTreeDrafter
from lantern.drafters.jacobi_tree import JacobiTreeDrafter
from lantern.methods import MethodSpec
from lantern.models.state_head import StateHead
from lantern.models.target import Target, guide
from lantern.noise import TARGET, NoiseField
from lantern.sampling import SamplingConfig, filter_logits
from lantern.step import Outcome, Prefill, Proposal

NUM_DEPTHS = 2  # number of depths whose drafts are also ranked by the state head


@dataclass
class StateHeadState:
    """What the state head reads. Drafts, and so the axis of positions, may go past the end of an image."""

    noise: NoiseField
    previous: torch.Tensor  # the hidden state that predicted the last emitted token, float32 (batch, dim)
    # The last hidden state of the target that predicted each position, float32 (batch, positions, dim), or 0.
    outdated: torch.Tensor
    before: torch.Tensor  # (batch, positions), the token before the position when `outdated` was computed, or -1
    tokens: torch.Tensor  # (batch, positions), the emitted tokens


@dataclass
class _Level:
    """The inner nodes of one depth."""

    nodes: torch.Tensor  # this and the next are from `level_indices`
    parents: torch.Tensor
    width: int  # `StaticTree.level_children`
    drafted: torch.Tensor  # as in `StaticTree`


class StateHeadDrafter(Drafter[StateHeadState]):
    """The drafter that fills the first depths of a tree with a state head alone, unless `propose` gets `choose`.

    Args:
        tree: the whole tree that the target verifies.
        num_depths: number of depths, from depth 1 on, that this drafter fills.
    """

    tree: StaticTree

    def __init__(
        self, head: StateHead, target: Target, tree: StaticTree, num_depths: int, sampling: SamplingConfig
    ) -> None:
        self.head = head
        self.target = target
        self.tree = tree
        self.max_depth = tree.max_depth
        self.sampling = sampling
        # Steps of complete images read and write up to max_depth + 1 positions after the end. The rest is to spare.
        self.num_positions = target.config.num_image_tokens + 2 * tree.max_depth + 2
        device = target.device
        self._spine = first_ranks(tree)  # one node of each depth
        self._steps = torch.arange(tree.max_depth + 1, device=device)
        self._levels = [
            _Level(*level_indices(tree, depth), tree.level_children[depth], tree.drafted[depth])
            for depth in range(min(num_depths, tree.max_depth))
        ]

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> StateHeadState:
        device = self.target.device
        shape = (num_rows, self.num_positions)
        return StateHeadState(
            noise=noise,
            previous=torch.zeros(num_rows, self.head.config.dim, device=device),
            outdated=torch.zeros(*shape, self.head.config.dim, device=device),
            before=torch.zeros(shape, dtype=torch.int64, device=device),
            tokens=torch.zeros(shape, dtype=torch.int64, device=device),
        )

    @override
    def fill(self, state: StateHeadState, rows: torch.Tensor, prefill: Prefill) -> None:
        state.previous.index_copy_(0, rows, self.guided(prefill.hidden[:, :, -1]))
        state.outdated.index_fill_(0, rows, 0.0)
        state.before.index_fill_(0, rows, -1)
        state.tokens[:, :1].index_copy_(0, rows, prefill.first)

    @override
    def propose(
        self, state: StateHeadState, root: torch.Tensor, lengths: torch.Tensor, choose: Choose | None = None
    ) -> Proposal:
        """`choose` is as in `EagleDrafter.propose`."""
        levels = [root]
        hidden = state.previous[:, None]
        logits = []
        for depth, level in enumerate(self._levels):
            tokens = levels[-1].index_select(1, level.nodes)
            # The prediction for a node is the `previous` state of its children.
            hidden = self._predict(state, hidden.index_select(1, level.parents), tokens, lengths + depth)
            positions = (lengths + depth)[:, None].expand_as(tokens)
            # The states are guided already: one branch, for which `cfg_scale` is not read.
            keys = self.target.guided_logits(hidden[None], self.sampling.cfg_scale, positions)
            logits.append(keys)
            if not self.sampling.is_greedy:
                keys = filter_logits(keys, self.sampling) + state.noise.gumbel(TARGET, positions)
            children = best_codes(keys, level.width) if choose is None else choose(depth, tokens, keys, level.width)
            levels.append(children.flatten(1).index_select(1, level.drafted))
        return Proposal(torch.cat(levels, dim=1), self.tree, is_finite=are_finite(logits))

    def _predict(
        self, state: StateHeadState, previous: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Predict the hidden states after some nodes of one depth, float32 (batch, nodes, dim).

        `previous` are the hidden states that predicted the nodes' tokens. `positions`, int64 (batch,), is the position
        after the nodes.
        """
        index = positions[:, None, None].expand(-1, 1, previous.shape[2])
        outdated = state.outdated.gather(1, index).expand_as(previous)
        before = state.before.gather(1, positions[:, None])
        above = self.head.tokens_above(state.tokens, positions)
        around = torch.cat([before, above], dim=1)[:, None].expand(-1, tokens.shape[1], -1)
        # In the order of the head's NUM_TOKENS.
        embedded = embed_tokens(self.target, torch.cat([tokens[:, :, None], around], dim=2))
        return self.head(previous, outdated, embedded)

    @override
    def observe(self, state: StateHeadState, outcome: Outcome, lengths: torch.Tensor) -> None:
        assert outcome.scores.hidden is not None
        hidden = self.guided(outcome.scores.hidden)
        # The last accepted node, with which `path` is padded. Its state predicted the last emitted token.
        last = outcome.path[:, -1:, None].expand(-1, 1, hidden.shape[2])
        state.previous.copy_(hidden.gather(1, last).squeeze(1))
        positions = lengths[:, None] + self._steps
        # Position lengths + d gets the state after one node of depth d, and the token of this node.
        of_depths = hidden.index_select(1, self._spine)
        state.outdated.scatter_(1, positions[:, :, None].expand_as(of_depths), of_depths)
        state.before.scatter_(1, positions, outcome.proposal.tokens.index_select(1, self._spine))
        state.tokens.scatter_(1, positions, outcome.emitted)

    def guided(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply classifier-free guidance to the target's hidden states, float32 (batch, ..., dim).

        Args:
            hidden: (branches, batch, ..., dim).
        """
        if len(hidden) == 1:
            return hidden[0].float()
        return guide(hidden.flatten(0, 1), self.sampling.cfg_scale)


class HeadTreeDrafter(HybridTreeDrafter):
    """`HybridTreeDrafter` with a state head in place of the draft model."""

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> HeadTreeDrafter:
        target = models.target
        # Hidden states are guided in place of logits, which is the same only for a linear head.
        if sampling.is_guided and not target.is_head_linear:
            raise ValueError(
                f"method {spec.label} needs a target with a linear output head if guidance is on, got one with a "
                "hidden layer; use hybrid"
            )
        tree = static_tree(spec.static_choices, target.device)
        head = StateHeadDrafter(models.require("heads", StateHead, spec.label), target, tree, NUM_DEPTHS, sampling)
        return cls(JacobiTreeDrafter(tree, target.config, num_given=min(NUM_DEPTHS, tree.max_depth)), head, tree)


def embed_tokens(target: Target, tokens: torch.Tensor) -> torch.Tensor:
    """Return the target's embeddings of tokens, int64 (...), and 0 for missing tokens (-1), (..., dim)."""
    embedded = target.token_embedding(tokens.clamp(min=0))
    return embedded.masked_fill((tokens < 0)[..., None], 0.0)
