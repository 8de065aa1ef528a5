"""Shift heads: small networks that predict the target's hidden states for later tokens of the image, and their drafts.

For image token n, a head of a *shift* takes the token, and the hidden state h_n from which the target predicted it. It
returns an estimate of the hidden state that predicts token n + shift, which the target's output head turns into logits:

    h_(n + shift) = W x + f(norm(W x)),  x = [h_n, embedding of token n]

W is a linear map and f a SwiGLU network. Shifts are 1 to num_right, for the next tokens to the right, then one line,
for the token below. In the first line of an image, drafts come from the heads for the next tokens to the right, applied
to the last emitted token. In all other lines, each draft comes from the head for the token below, applied to the token
above the draft.

- `HeadsDrafter` samples a chain of drafts, which is verified by rejection sampling. The tokens keep the target's
  distribution.
- `JacobiHeadsDrafter` uses them as first drafts of Jacobi decoding. The tokens are those of autoregressive decoding.

The *window* is the next positions, which a step drafts. In shapes it is their number.

Source: the heads of SSD (arXiv 2606.20543), in notes by others. In SSD, heads read and predict the hidden state before
the target's last norm. Here they read and predict the state after this norm, as Lantern's draft model does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from lantern.draft_tree import StaticTree, static_tree
from lantern.drafters.base import Drafter, are_finite, best_codes
from lantern.drafters.eagle import pick_nodes
from lantern.drafters.jacobi import EMPTY, JacobiDrafter, JacobiState
from lantern.methods import MethodSpec, is_chain
from lantern.models.config import TargetConfig
from lantern.models.linear import prepare_linears
from lantern.models.stored import StoredModel
from lantern.models.target import Target
from lantern.models.transformer import RMSNorm
from lantern.noise import DRAFT, TARGET, NoiseField
from lantern.sampling import SamplingConfig, filter_logits
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal
from lantern.tree_shapes import tree_choices


@dataclass(frozen=True)
class HeadsConfig:
    """Sizes of shift heads. `line_width` counts the tokens of a line, including a line end."""

    dim: int
    ffn_hidden: int
    line_width: int
    num_right: int
    norm_eps: float = 1e-5

    @classmethod
    def of(cls, target: TargetConfig, num_right: int) -> HeadsConfig:
        """Return the sizes of the heads that Lantern trains for a target."""
        return cls(target.dim, target.ffn_hidden, target.line_width, num_right, target.norm_eps)

    @property
    def shifts(self) -> tuple[int, ...]:
        """Shift of each head, in tokens."""
        return (*range(1, self.num_right + 1), self.line_width)


class ShiftHead(nn.Module):
    """W and f of one shift."""

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.combine = nn.Linear(2 * config.dim, config.dim, bias=False)
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.gate_up = nn.Linear(config.dim, 2 * config.ffn_hidden, bias=False)
        self.down = nn.Linear(config.ffn_hidden, config.dim, bias=False)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # x: (..., 2 * dim)
        combined = self.combine(x)
        gate, up = self.gate_up(self.norm(combined)).chunk(2, dim=-1)
        return combined + self.down(F.silu(gate) * up)


class ShiftHeads(StoredModel):
    """All heads of a target. The last one is that of the token below."""

    kind = "shift_heads"
    label = "shift heads"
    remedy = "run the workflow with heads.kind shift"
    config_class = HeadsConfig
    config: HeadsConfig
    heads: Sequence[ShiftHead]

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.config = config
        parts = nn.ModuleList(ShiftHead(config) for _ in config.shifts)
        self.heads = parts  # pyright: ignore[reportAttributeAccessIssue]  torch's ModuleList states no item type

    @classmethod
    def from_target(cls, target: Target, num_right: int, seed: int) -> ShiftHeads:
        """Make untrained heads for a target, on its device. Each head returns the hidden state that it reads."""
        with torch.random.fork_rng(devices=[]):  # leaves the caller's generator as it is
            torch.manual_seed(seed)
            heads = cls(HeadsConfig.of(target.config, num_right))
            for head in heads.heads:
                # W x = h_n, as the hidden state is the first half of x, and f = 0.
                nn.init.eye_(head.combine.weight)
                nn.init.normal_(head.gate_up.weight, std=0.02)
                nn.init.zeros_(head.down.weight)
        return heads.to(target.device)

    @classmethod
    def of_rows(cls, target: TargetConfig) -> ShiftHeads:
        """Make heads for an audit, whose hidden states have no weights, see `lantern_audit.table_models`."""
        return _RowHeads(HeadsConfig.of(target, num_right=1))

    def right(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict the hidden states for the next tokens to the right, (..., num_right, dim).

        hidden and embedded are (..., dim): hidden states, and the target's embeddings of the tokens predicted from
        them.
        """
        x = torch.cat([hidden, embedded], dim=-1)
        return torch.stack([head(x) for head in self.heads[:-1]], dim=-2)

    def below(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict the hidden states for the tokens below, (..., dim), from the same arguments."""
        return self.heads[-1](torch.cat([hidden, embedded], dim=-1))

    @override
    def prepare_for_decoding(self) -> ShiftHeads:
        prepare_linears(self)
        return self


class _RowHeads(ShiftHeads):
    """Heads that ignore the shift: they return the row that they are given, in the draft model's table."""

    @override
    def right(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return self.below(hidden, embedded)[..., None, :]  # (..., num_right, 2)

    @override
    def below(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return torch.stack([hidden[..., 0], torch.ones_like(hidden[..., 0])], dim=-1)


@dataclass
class HeadsState:
    """What shift heads read. Entries from the number of emitted tokens on have no meaning.

    A step writes window + 1 entries from there on, also of complete images.
    """

    noise: NoiseField
    hidden: torch.Tensor  # (branches, batch, tokens + window + 1, dim), at each token the state that predicted it
    tokens: torch.Tensor  # int64 (batch, tokens + window + 1)


class HeadsDrafter(Drafter[HeadsState]):
    """Drafts of shift heads, with the distributions that they were sampled from.

    Args:
        tree: a chain, at most as long as a line, since a draft reads the token above it.
    """

    tree: StaticTree
    noise_streams = (DRAFT,)

    def __init__(self, heads: ShiftHeads, target: Target, tree: StaticTree, sampling: SamplingConfig) -> None:
        config = target.config
        if tree.max_depth > config.line_width:
            raise ValueError(
                f"drafts of shift heads need a chain of at most {config.line_width} drafts, a line of the image, got "
                f"{tree.max_depth}; choose a shorter chain"
            )
        if config.small_grid:
            raise ValueError(
                f"shift heads need images without a smaller image before them, got small_grid {config.small_grid}; use "
                "drafts jacobi"
            )
        self.heads = heads
        self.target = target
        self.tree = tree
        self.sampling = sampling
        self.max_depth = tree.max_depth
        self._steps = torch.arange(tree.max_depth + 1, device=target.device)
        # In the first line, positions further right than all heads reach are drafted by the last head to the right.
        self._right = self._steps[:-1].clamp(max=heads.config.num_right - 1)

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> HeadsDrafter:
        if not is_chain(spec.tree_shape):
            raise ValueError(f"drafts {spec.drafts} of {spec.label} need a chain, got tree {spec.tree}; use chain7")
        tree = static_tree(spec.static_choices, models.target.device)
        return cls(models.require("heads", ShiftHeads, spec.label), models.target, tree, sampling)

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> HeadsState:
        config = self.target.config
        num_positions = config.num_image_tokens + self.max_depth + 1
        shape = (1 + self.sampling.is_guided, num_rows, num_positions, config.dim)
        return HeadsState(
            noise=noise,
            hidden=torch.zeros(shape, dtype=self.target.dtype, device=self.target.device),
            tokens=torch.zeros(num_rows, num_positions, dtype=torch.int64, device=self.target.device),
        )

    @override
    def fill(self, state: HeadsState, rows: torch.Tensor, prefill: Prefill) -> None:
        state.hidden[:, :, :1].index_copy_(1, rows, prefill.hidden[:, :, -1:])
        state.tokens[:, :1].index_copy_(0, rows, prefill.first)

    @override
    def propose(self, state: HeadsState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        tokens, draft_probs, is_finite = self.sample(state, lengths)
        if self.sampling.is_greedy:
            draft_probs = None  # drafts are compared with the target's most probable tokens, not tested
        return Proposal(torch.cat([root, tokens], dim=1), self.tree, draft_probs, is_finite)

    @override
    def observe(self, state: HeadsState, outcome: Outcome, lengths: torch.Tensor) -> None:
        assert outcome.scores.hidden is not None
        positions = lengths[:, None] + self._steps
        # Token j of `emitted` follows node j of the path, whose hidden state predicted it.
        hidden = pick_nodes(outcome.scores.hidden, outcome.path)
        state.hidden.scatter_(2, positions[None, ..., None].expand_as(hidden), hidden)
        state.tokens.scatter_(1, positions, outcome.emitted)

    def sample(self, state: HeadsState, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return drafts of the window, int64 (batch, window), their distributions, and whether these are finite.

        At temperature 0 drafts are the most probable tokens. The last two are (batch, window, vocab) and bool (batch,).
        """
        weights = self.weights(state, lengths)
        keys = weights
        if not self.sampling.is_greedy:
            keys = weights + state.noise.gumbel(DRAFT, self.drafted(lengths))
        return keys.argmax(-1), weights.softmax(-1), are_finite([weights])

    def drafted(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the image positions of the window, int64 (batch, window)."""
        return lengths[:, None] + self._steps[:-1]

    def weights(self, state: HeadsState, lengths: torch.Tensor) -> torch.Tensor:
        """Return the unnormalised log-probabilities of the heads for the window, (batch, window, vocab)."""
        positions = self.drafted(lengths)
        line_width = self.target.config.line_width
        # Both kinds of heads run at every position, since all steps of a CUDA graph have the same operations.
        # `right` at one token is (branches, batch, 1, num_right, dim), then (branches, batch, window, dim).
        to_right = self.heads.right(*self._inputs(state, lengths[:, None] - 1)).squeeze(2).index_select(2, self._right)
        # In the first line nothing is above. The clamped index only keeps the gather valid, see `where`.
        from_above = self.heads.below(*self._inputs(state, (positions - line_width).clamp(min=0)))
        predicted = torch.where((positions < line_width)[..., None], to_right, from_above)
        # Positions tell where a line ends, as only some tokens are allowed there.
        logits = self.target.guided_logits(predicted, self.sampling.cfg_scale, positions)
        return logits if self.sampling.is_greedy else filter_logits(logits, self.sampling)

    def _inputs(self, state: HeadsState, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return hidden states and token embeddings at some positions, each (branches, batch, n, dim)."""
        hidden = pick_nodes(state.hidden, positions)
        return hidden, self.target.token_embedding(state.tokens.gather(1, positions)).expand(len(hidden), -1, -1, -1)


@dataclass(kw_only=True)
class JacobiHeadsState(JacobiState):
    """The pool, whose empty results get the heads' drafts as codes in every step."""

    heads: HeadsState


class JacobiHeadsDrafter(JacobiDrafter):
    """The Jacobi drafter whose first draft of each position comes from shift heads, with the target's noise."""

    keeps_first = True  # no guesses for later positions, which `propose` would overwrite

    def __init__(self, heads: HeadsDrafter, tree: StaticTree, config: TargetConfig) -> None:
        super().__init__(tree, config)
        self.heads = heads

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> JacobiHeadsDrafter:
        target = models.target
        tree = static_tree(spec.static_choices, target.device)
        chain = static_tree(tree_choices(f"chain{tree.max_depth}"), target.device)
        heads = HeadsDrafter(models.require("heads", ShiftHeads, spec.label), target, chain, sampling)
        return cls(heads, tree, target.config)

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> JacobiHeadsState:
        jacobi = super().allocate(num_rows, noise)
        return JacobiHeadsState(jacobi.pool, jacobi.probs, heads=self.heads.allocate(num_rows, noise))

    @override
    def fill(self, state: JacobiHeadsState, rows: torch.Tensor, prefill: Prefill) -> None:
        super().fill(state, rows, prefill)
        self.heads.fill(state.heads, rows, prefill)

    @override
    def propose(self, state: JacobiHeadsState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        positions = self.heads.drafted(lengths)
        keys = self.heads.weights(state.heads, lengths)
        if not self.heads.sampling.is_greedy:
            keys = keys + state.heads.noise.gumbel(TARGET, positions)
        # Axis 1 of the pool is the preceding token, then the codes. Where the newest result is empty, the drafts become
        # its codes, which `super().propose` reads. It stays EMPTY: the next step predicts again from newer tokens.
        drafts = best_codes(keys, self.num_siblings).transpose(1, 2)  # (batch, siblings, window)
        newest = state.pool[..., 0]  # a view, so that `scatter_` changes the pool
        index = positions[:, None].expand(-1, 1 + self.num_siblings, -1)
        results = newest.gather(2, index)
        is_empty = results[:, :1] == EMPTY
        drafts = torch.where(is_empty, drafts, results[:, 1:])
        newest.scatter_(2, index, torch.cat([results[:, :1], drafts], dim=1))
        return replace(super().propose(state, root, lengths), is_finite=are_finite([keys]))

    @override
    def observe(self, state: JacobiHeadsState, outcome: Outcome, lengths: torch.Tensor) -> None:
        super().observe(state, outcome, lengths)
        self.heads.observe(state.heads, outcome, lengths)
