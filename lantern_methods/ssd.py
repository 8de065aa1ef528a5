"""SSD: drafts of shift heads that are tested in several forward passes, and emitted together.

SSD drafts a *block*: the rest of a line, and in the first line no more tokens than there are heads to the right. The
first forward passes over a block are *rounds*. A round replaces all drafts that fail a rejection test, keeps the drafts
after them, and emits the first draft. The *last pass* tests nothing. It emits the remaining drafts and the target's
sample after them.

Source: SSD (arXiv 2606.20543). Its code is not public, and notes by others were read in place of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.acceptance.base import Verifier
from lantern.acceptance.rejection import Rejection
from lantern.draft_tree import static_tree
from lantern.methods import MethodSpec
from lantern.models.config import OVERSHOOT, TargetConfig
from lantern.models.target import Target
from lantern.noise import NoiseField, Uniform
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome, Proposal, Scores
from lantern.tree_shapes import tree_choices
from lantern_methods.shift_heads import HeadsDrafter, HeadsState, ShiftHeads


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
