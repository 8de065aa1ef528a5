"""State head: a small network that corrects the hidden state of a position after the tokens before it have changed.

It is Lantern's own. In Jacobi decoding, every step computes the target's hidden states for the next positions, after
drafts of the tokens before them. Some of these drafts are then replaced by other tokens, and the states are *outdated*.
The state head predicts the hidden states that the target would compute after the new tokens:

    W x + f(x),  x = [state of the position before, outdated state, embeddings of NUM_TOKENS tokens]

W is a linear map and f a SwiGLU network. The target's output head turns the prediction into logits. Near the root of a
draft tree, the codes that the target would sample from them are one more result of the mixture, as those of a draft
model in `lantern_methods.hybrid`.

A state head has no cache, unlike EAGLE's draft model. With classifier-free guidance, its hidden states are guided ones,
u + s (c - u), where c and u are the target's hidden states with and without the prompt. The target's output head must
therefore be linear, and the guidance scale s must be the one of training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from lantern.draft_tree import StaticTree, first_ranks, level_indices, static_tree
from lantern.drafters.base import Drafter, are_finite, best_codes
from lantern.drafters.eagle import Choose
from lantern.methods import MethodSpec
from lantern.models.config import TargetConfig
from lantern.models.linear import prepare_linears
from lantern.models.stored import StoredModel
from lantern.models.target import Target, guide
from lantern.noise import TARGET, NoiseField
from lantern.sampling import SamplingConfig, filter_logits
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal
from lantern_methods.hybrid import HybridTreeDrafter
from lantern_methods.jacobi_tree import JacobiTreeDrafter

NUM_DEPTHS = 2  # number of depths whose drafts are also ranked by the state head
NUM_STATES = 2  # hidden states: of the position before, and the outdated one of the position
NUM_TOKENS = 5  # the token before, what it was in the earlier step, and the tokens above, above right and above left


@dataclass(frozen=True)
class StateHeadConfig:
    """Sizes of a state head.

    line_width is the distance to the token above. dropout is the fraction of the hidden layer that training sets to 0.
    """

    dim: int
    ffn_hidden: int
    line_width: int
    dropout: float = 0.2

    @classmethod
    def of(cls, target: TargetConfig) -> StateHeadConfig:
        """Return the sizes of the state head that Lantern trains for a target."""
        return cls(target.dim, target.ffn_hidden, target.line_width)


class StateHead(StoredModel):
    """W, f and the scales of their inputs.

    `state_scale` and `token_scale` are root mean squares of the target's hidden states and token embeddings, which
    training measures. Until then they are 1.
    """

    kind = "state_head"
    label = "a state head"
    remedy = "run the workflow with heads.kind state"
    config_class = StateHeadConfig
    # Every name begins with "": all weights stay float32, as guided hidden states are.
    wide = ("",)
    config: StateHeadConfig
    state_scale: torch.Tensor
    token_scale: torch.Tensor
    above: torch.Tensor

    def __init__(self, config: StateHeadConfig) -> None:
        super().__init__()
        self.config = config
        inputs = (NUM_STATES + NUM_TOKENS) * config.dim
        self.combine = nn.Linear(inputs, config.dim, bias=False)
        self.gate_up = nn.Linear(inputs, 2 * config.ffn_hidden, bias=False)
        self.down = nn.Linear(config.ffn_hidden, config.dim, bias=False)
        self.register_buffer("state_scale", torch.ones(()))
        self.register_buffer("token_scale", torch.ones(()))
        width = config.line_width
        # To the tokens above, above right and above left, as in NUM_TOKENS.
        self.register_buffer("above", torch.tensor([-width, -width + 1, -width - 1]), persistent=False)

    @classmethod
    def from_target(cls, target: TargetConfig, seed: int) -> StateHead:
        """Make an untrained state head. It returns the outdated hidden state that it reads."""
        with torch.random.fork_rng(devices=[]):  # leaves the caller's generator as it is
            torch.manual_seed(seed)
            head = cls(StateHeadConfig.of(target))
        dim = target.dim
        with torch.no_grad():
            head.combine.weight.zero_()
            # W picks the second part of x, the outdated state, and f = 0.
            nn.init.eye_(head.combine.weight[:, dim : 2 * dim])
            nn.init.zeros_(head.down.weight)
        return head

    @classmethod
    def of_rows(cls, target: TargetConfig) -> StateHead:
        """Make a head for an audit, whose hidden states have no weights, see `lantern_audit.table_models`."""
        return _RowHead(StateHeadConfig.of(target))

    def tokens_above(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the tokens above, above right and above left, int64 (n, 3), or -1 before the image's first token.

        tokens is int64 (n, tokens), the image for each of the positions (n,).
        """
        index = positions[:, None] + self.above
        # Raster order wraps around at the sides: before a line comes the last token of the line above it.
        return tokens.gather(1, index.clamp(min=0)).masked_fill(index < 0, -1)

    @override
    def forward(self, previous: torch.Tensor, outdated: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict hidden states of some positions, float32 (..., dim).

        Args:
            previous: hidden states of the positions before, float32 (..., dim).
            outdated: hidden states of the positions, from an earlier step, float32 (..., dim). 0 if there was none.
            embedded: the target's embeddings of the tokens in the order of `NUM_TOKENS`, (..., NUM_TOKENS, dim). 0 for
                a token outside of the image.
        """
        # The division gives states and embeddings the same size, a root mean square of 1.
        states = torch.cat([previous, outdated], dim=-1) / self.state_scale
        x = torch.cat([states, embedded.flatten(-2).float() / self.token_scale], dim=-1)
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        hidden = F.dropout(F.silu(gate) * up, self.config.dropout, self.training)
        # The result has the scale of the target's hidden states, as its head expects.
        return (self.combine(x) + self.down(hidden)) * self.state_scale

    @override
    def prepare_for_decoding(self) -> StateHead:
        prepare_linears(self)
        return self


class _RowHead(StateHead):
    """Head that returns the outdated row, in the draft model's table, so that its drafts are often wrong."""

    @override
    def forward(self, previous: torch.Tensor, outdated: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return torch.stack([outdated[..., 0], torch.ones_like(outdated[..., 0])], dim=-1)


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
