"""Drafters with shift heads: small networks that predict the target's hidden states for later tokens of the image.

A shift head reads a token and the hidden state that predicted it. It estimates the hidden state that predicts the token
`shift` places later, which the target's head turns into a distribution. In the first line of an image, drafts come from
the heads for the next tokens to the right, applied to the last emitted token. In all other lines, each draft comes from
the head for the token below, applied to the token above the draft.

- `HeadsDrafter` samples a chain of drafts, which is verified by rejection sampling. The tokens keep the target's
  distribution.
- `JacobiHeadsDrafter` uses them as first drafts of Jacobi decoding. The tokens are those of autoregressive decoding.
- `LinesDrafter` is the drafter of SSD. It drafts a *block*: the rest of a line, and in the first line no more tokens
  than there are heads to the right. The first forward passes over a block are *rounds*. A round replaces all drafts
  that fail a rejection test, keeps the drafts after them, and emits the first draft. The *last pass* tests nothing. It
  emits the remaining drafts and the target's sample after them.

The *window* is the next positions, which a step drafts. In shapes it is their number.

Source: SSD (arXiv 2606.20543). Its code is not public, and notes by others were read in place of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.acceptance.base import Verifier
from lantern.acceptance.rejection import Rejection
from lantern.decoding_state import DecodingModels
from lantern.draft_tree import StaticTree, static_tree
from lantern.drafters.base import Drafter, are_finite, best_codes
from lantern.drafters.eagle import pick_nodes
from lantern.drafters.jacobi import EMPTY, JacobiDrafter, JacobiState
from lantern.methods import MethodSpec, is_chain
from lantern.models.config import OVERSHOOT, TargetConfig
from lantern.models.heads import ShiftHeads
from lantern.models.target import Target
from lantern.noise import DRAFT, TARGET, NoiseField, Uniform
from lantern.sampling import SamplingConfig, filter_logits
from lantern.step import Outcome, Prefill, Proposal, Scores
from lantern.tree_shapes import tree_choices


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


@dataclass(kw_only=True)
class LinesState(HeadsState):
    """Also the window's drafts after the last round. The first pass of a block does not read them."""

    drafts: torch.Tensor  # int64 (batch, window)
    draft_probs: torch.Tensor  # (batch, window, vocab), the target's distributions in that round


@dataclass(frozen=True)
class LineSchedule:
    """The blocks of an image. Entry n of a table, (tokens + 1,), is about the pass after n emitted tokens."""

    ends: torch.Tensor  # position after the block's last token
    is_first: torch.Tensor  # whether the pass begins a block
    is_last: torch.Tensor  # whether it is a last pass
    longest: int  # tokens of the longest block

    @classmethod
    def of(cls, config: TargetConfig, num_right: int, rounds: int, device: torch.device) -> LineSchedule:
        """Divide an image into blocks. A block of at most `rounds` tokens has one round per token and no last pass."""
        num_tokens = config.num_image_tokens
        width = config.line_width
        # Outside of blocks only entry num_tokens is read, for complete images, whose results are dropped.
        ends = list(range(1, num_tokens + 2))
        is_first = [False] * (num_tokens + 1)
        is_last = [False] * (num_tokens + 1)
        longest = 0
        # The prefill emits token 0.
        begin = 1
        while begin < num_tokens:
            # The end of the line. In the first line nothing is above, and no head reaches further than num_right.
            end = begin - begin % width + width
            if begin < width:
                end = min(end, begin + num_right)
            ends[begin:end] = [end] * (end - begin)
            is_first[begin] = True
            longest = max(longest, end - begin)
            last = begin + rounds
            if last < end:
                is_last[last] = True
                # The last pass also emits the target's sample at position `end`.
                begin = end + 1
            else:
                begin = end
        ends, is_first, is_last = (torch.tensor(table, device=device) for table in (ends, is_first, is_last))
        return cls(ends, is_first, is_last, longest)


class LinesDrafter(HeadsDrafter):
    """SSD's drafter. Its chain is as long as the longest block. Drafts after a block's end are never emitted."""

    def __init__(self, heads: ShiftHeads, target: Target, rounds: int, sampling: SamplingConfig) -> None:
        schedule = LineSchedule.of(target.config, heads.config.num_right, rounds, target.device)
        if schedule.longest > OVERSHOOT:  # positions that the target has after an image, for drafts past its end
            raise ValueError(
                f"drafts ssd need lines of at most {OVERSHOOT} tokens, got {target.config.line_width}; use drafts heads"
            )
        tree = static_tree(tree_choices(f"chain{schedule.longest}"), target.device)
        super().__init__(heads, target, tree, sampling)
        self.verifier = LineVerifier(schedule, has_rounds=rounds > 0)
        self._is_first = schedule.is_first

    @classmethod
    @override
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> LinesDrafter:
        return cls(models.require("heads", ShiftHeads, spec.label), models.target, spec["rounds"], sampling)

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> LinesState:
        read = super().allocate(num_rows, noise)
        drafts = read.tokens.new_zeros(num_rows, self.max_depth)
        vocab_size = self.target.config.vocab_size
        draft_probs = torch.zeros(*drafts.shape, vocab_size, device=drafts.device)
        return LinesState(noise, read.hidden, read.tokens, drafts=drafts, draft_probs=draft_probs)

    @override
    def propose(self, state: LinesState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        # New drafts are sampled in every step, also if not used: a CUDA graph skips no operation.
        drafts, draft_probs, is_finite = self.sample(state, lengths)
        is_first = self._is_first[lengths, None]
        drafts = torch.where(is_first, drafts, state.drafts)
        draft_probs = torch.where(is_first[..., None], draft_probs, state.draft_probs)
        return Proposal(torch.cat([root, drafts], dim=1), self.tree, draft_probs, is_finite)

    @override
    def observe(self, state: LinesState, outcome: Outcome, lengths: torch.Tensor) -> None:
        super().observe(state, outcome, lengths)
        # Entry 0 is emitted, so that the window moves on by one. Entry i was tested against the distribution of node i.
        state.drafts.copy_(outcome.emitted[:, 1:])
        state.draft_probs.copy_(outcome.scores.weights[:, 1:].softmax(-1))


class LineVerifier(Verifier):
    """SSD's verifier.

    A round keeps a draft x with probability min(1, t(x) / p(x)), and otherwise samples normalise(max(0, t - p)). Here t
    is the target distribution after the drafts before x, and p the distribution that x was sampled from: the heads', or
    t of the round before. Noise is fresh in every round. Each token that a round emits therefore has the target's
    distribution given the tokens before it. A last pass makes SSD inexact: its drafts were tested given drafts that
    were replaced later, or not at all if `has_rounds` is False.

    Unlike in SSD as noted by others, the first token of a line is not drafted if the line above had a last pass.
    """

    samples_target_tokens: ClassVar[bool] = False

    def __init__(self, schedule: LineSchedule, *, has_rounds: bool) -> None:
        self.schedule = schedule
        self.has_rounds = has_rounds
        self.rejection = Rejection()
        # A position has another depth, and so another slot, in every round.
        self._keep, self._redraw = Uniform("keep", schedule.longest), Uniform("redraw", schedule.longest)
        self.noise_streams = (self._keep, self._redraw) if has_rounds else ()

    @override
    def verify(self, scores: Scores, proposal: Proposal) -> Outcome:
        """In a round `emitted` also has the tested drafts after the emitted one, which `LinesDrafter.observe` reads."""
        lengths = scores.positions[:, 0]  # the position that the root predicts
        drafts = proposal.tokens[:, 1:]
        best, sampled = scores.keys.max(-1)
        is_last = self.schedule.is_last[lengths]
        # A round counts as accepting no draft, since it emits one token.
        num_accepted = torch.where(is_last, self.schedule.ends[lengths] - lengths, 0)
        steps = torch.arange(proposal.tree.num_nodes, device=drafts.device)
        is_draft = steps < num_accepted[:, None]
        kept = torch.where(is_draft, F.pad(drafts, (0, 1)), sampled)  # the last pass's drafts, then a sample
        corrected = self._correct(scores, proposal, sampled) if self.has_rounds else kept
        emitted = torch.where(is_last[:, None], kept, corrected)
        path = torch.minimum(steps, num_accepted[:, None])
        # Above temperature 0 the tested drafts are no samples that the target's could be compared with.
        is_substituted = (emitted != sampled) & scores.sampling.is_greedy
        is_accepted = (steps > 0) & (steps <= num_accepted[:, None])
        # Node i predicts position lengths + i. Rounds use the nodes that predict the block, a last pass one node more.
        is_read = steps <= torch.where(is_last, num_accepted, self.schedule.ends[lengths] - lengths - 1)[:, None]
        is_finite = (best.isfinite() | ~is_read).all(1)
        return Outcome(proposal, scores, is_accepted, path, num_accepted, emitted, is_substituted, is_finite)

    def _correct(self, scores: Scores, proposal: Proposal, sampled: torch.Tensor) -> torch.Tensor:
        # (batch, nodes): the tested draft after each node. The entry of the last node has no meaning.
        if scores.sampling.is_greedy:
            return sampled
        drafts = proposal.tokens[:, 1:, None]
        positions = scores.positions[:, :-1]
        slots = proposal.tree.depths[:, :-1]
        uniforms = scores.noise.fresh(self._keep, positions, slots)[..., None]
        probs = scores.weights[:, :-1].softmax(-1)
        rank, residual = self.rejection.accept(probs, drafts, proposal.draft_probs, uniforms)
        replaced = scores.noise.sample(self._redraw, residual, positions, slots)
        # Rank 0 is the only child, rank 1 a rejection.
        return F.pad(torch.where(rank == 0, proposal.tokens[:, 1:], replaced), (0, 1))
