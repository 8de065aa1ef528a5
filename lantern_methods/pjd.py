"""PJD: a decoder that drafts and verifies tokens of several image lines in parallel.

A line opens when the previous line has `window` tokens, see `lantern_methods.parallel_lines`. Every open line has
drafts for its next positions. Their number is at most `max_drafts`, and at most the number of tokens by which the
previous line is ahead. A draft was sampled in the previous step from its *draft distribution*, the target's
distribution at its position in that step. One forward pass runs over the drafts of all lines. A draft attends to all
emitted tokens before it, and to the drafts to its left in its line.

In each line, drafts are verified from left to right by rejection sampling. In the topmost unfinished line, one more
token follows the accepted drafts. It is sampled from the residual distribution, or from the target if no draft was
rejected. The other lines emit only accepted drafts. All positions without a token get new drafts from this step's
distributions.

Below the topmost line, tokens are verified while the right ends of the previous lines are missing. A rejected draft
there is replaced by a new draft, not by a sample from the residual distribution. The output therefore does not follow
the target's distribution. If `window` is at least the length of a line, only one line is open, and decoding is exact.

A *cell* holds one token that is fed in a step, at the position before the one that it predicts. The cells of a line are
its *root*, the token before its first draft, and then its drafts: cell i, from 0, predicts column `counts + i`. Cells
of padding, and those that are fed only to replace a placeholder, predict position `num_image_tokens`, which no image
has.

Source: PJD (arXiv 2606.05703), as described by others: the paper and its code were not available. The descriptions do
not state how a line starts. Here it starts with ZipAR's placeholder. First drafts are random codes, as in speculative
Jacobi decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.acceptance.rejection import Rejection
from lantern.decoding import DecoderOptions, margins_of
from lantern.drafters.base import Drafter
from lantern.drafters.jacobi import random_drafts
from lantern.models.config import TargetConfig
from lantern.noise import TARGET, NoiseField, Uniform
from lantern.state import DecodingState
from lantern.step import Prefill, Scores, pick_rows
from lantern_methods.parallel_lines import Line, LinesDecoder, lines_of

# A position may be verified in several steps, with other numbers in each. They repeat after 64 steps.
ACCEPT = Uniform("accept", 64)
REDRAW = Uniform("redraw", 64)
INITIAL = Uniform("initial", 1)


@dataclass
class LineState:
    """State of PJD's drafter. The last of the tokens + 1 entries is for results that are not needed."""

    noise: NoiseField
    counts: torch.Tensor  # (batch, lines), number of emitted tokens of each line
    # Whether the last token of a line was fed. Before that, the cache may hold a placeholder at its position.
    is_settled: torch.Tensor  # (batch, lines)
    drafts: torch.Tensor  # (batch, tokens + 1); positions that have a token are not read
    draft_probs: torch.Tensor | None  # (batch, tokens + 1, vocab); None in greedy decoding


class LineDrafter(Drafter[LineState]):
    """PJD's drafter, which holds a draft for every image position and has no tree. `PJDDecoder` changes the drafts."""

    noise_streams = (ACCEPT, INITIAL, REDRAW)

    def __init__(self, config: TargetConfig, lines: Sequence[Line], is_greedy: bool, device: torch.device) -> None:
        self.config = config
        self.is_greedy = is_greedy
        self.widths = torch.tensor([line.width for line in lines], device=device)
        self._positions = torch.arange(config.num_image_tokens + 1, device=device)

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> LineState:
        device = self.widths.device
        # All lines are complete until `fill`, so that no step works on them.
        counts = self.widths.repeat(num_rows, 1)
        shape = (num_rows, len(self._positions))
        return LineState(
            noise=noise,
            counts=counts,
            is_settled=torch.ones_like(counts, dtype=torch.bool),
            drafts=torch.zeros(shape, dtype=torch.int64, device=device),
            draft_probs=None if self.is_greedy else torch.zeros(*shape, self.config.vocab_size, device=device),
        )

    @override
    def fill(self, state: LineState, rows: torch.Tensor, prefill: Prefill) -> None:
        counts = torch.zeros_like(state.counts[: len(rows)])
        # The prefill has emitted the first token.
        counts[:, 0] = 1
        state.counts.index_copy_(0, rows, counts)
        state.is_settled.index_fill_(0, rows, False)
        if state.draft_probs is None:
            # Any token would do: a greedy draft is accepted only if it is the most probable token.
            state.drafts.index_copy_(0, rows, prefill.first.expand(-1, state.drafts.shape[1]))
            return
        # Noise is read for all rows, and then selected.
        positions = self._positions.expand(len(state.counts), -1)
        drafts = random_drafts(state.noise, INITIAL, self.config, positions, torch.zeros_like(positions))
        drafts = drafts.index_select(0, rows)
        state.drafts.index_copy_(0, rows, drafts)
        # The draft distribution of a random first draft is a point mass at it.
        state.draft_probs.index_fill_(0, rows, 0.0)
        state.draft_probs.index_put_((rows[:, None], self._positions, drafts), torch.ones((), device=rows.device))


@dataclass
class Cells:
    """The cells that a step feeds, (batch, cells) each unless noted."""

    order: torch.Tensor  # line * (largest number of cells of a line) + index in the line
    tokens: torch.Tensor  # that are fed
    positions: torch.Tensor  # at which they are fed; for padding the last image position, which is never fed
    predicted: torch.Tensor  # positions that are predicted
    is_drafted: torch.Tensor  # whether the predicted position has a draft to verify
    drafted: torch.Tensor  # that draft
    is_top: torch.Tensor  # (batch, lines), whether a line is the topmost unfinished one


@dataclass
class Verdict:
    """The decisions about the predicted position of every cell, (batch, cells) each."""

    is_accepted: torch.Tensor  # its draft; False if there is none
    bonus: torch.Tensor  # its token if the draft is not accepted
    drafts: torch.Tensor  # its new draft
    draft_probs: torch.Tensor | None  # (batch, cells, vocab), of the new drafts; None in greedy decoding


class PJDDecoder(LinesDecoder):
    """PJD's decoder: a step verifies the drafts of all open lines, and drafts their next tokens.

    It is exact only if one line is open at a time. No bound on its total variation from the target is known.
    """

    def __init__(self, options: DecoderOptions) -> None:
        spec = options.spec
        config = options.models.target.config
        device = options.models.target.device
        lines = lines_of(config, spec["window"])
        width = max(line.width for line in lines)
        num_fed = min(spec["max_drafts"], width - 1)  # drafts of a line; its last token is fed by the next line
        super().__init__(
            options,
            LineDrafter(config, lines, options.sampling.is_greedy, device),
            # The topmost line emits its drafts and one token, each other line at most the previous line's lead over it.
            # These leads add up to that of the topmost line over the lowest, at most width - 1.
            max_depth=num_fed + width - 1,
        )
        self._rejection = Rejection()
        self._widths = torch.tensor([line.width for line in lines], device=device)
        self._firsts = torch.tensor([line.first for line in lines], device=device)
        self._opens_at = torch.tensor([line.opens_at for line in lines], device=device)
        self._above = torch.tensor([line.above for line in lines], device=device)
        self._previous_widths = F.pad(self._widths[:-1], (1, 0))
        # For each image position: its line, its column, and the number of tokens of this line at which the next line
        # opens with a placeholder at the position.
        self._line_of = torch.arange(len(lines), device=device).repeat_interleave(self._widths)
        self._columns = self._positions - self._firsts[self._line_of]
        is_last = self._columns == self._widths[self._line_of] - 1
        # num_tokens stands for never.
        next_opens_at = F.pad(self._opens_at[1:], (0, 1), value=self.num_tokens)
        self._placed_at = next_opens_at[self._line_of].where(is_last, self.num_tokens)
        self._max_drafts = spec["max_drafts"]
        self._index = torch.arange(num_fed + 1, device=device)
        # One root per line, the drafts of the topmost line, and at most width - 1 drafts of the other lines, as above.
        self._num_cells = min(len(lines) * (num_fed + 1), len(lines) + num_fed + width - 1)

    @torch.inference_mode()
    @override
    def step(self, state: DecodingState) -> None:
        held = state.drafter_state
        assert isinstance(held, LineState)
        with self.timer("draft"):
            cells = self._choose_cells(state, held)
        with self.timer("target"):
            hidden = self.run_target(state, cells.tokens, cells.positions, self._visible(held, cells))
        with self.timer("score"):
            scores = self.score(state, hidden, cells.predicted)
        with self.timer("verify"):
            verdict = self._verify(state, held, cells, scores)
        with self.timer("commit"):
            self._commit(state, held, cells, scores, verdict)

    def _choose_cells(self, state: DecodingState, held: LineState) -> Cells:
        counts = held.counts
        previous = F.pad(counts[:, :-1], (1, 0))
        is_complete = counts == self._widths
        is_open = (previous >= self._opens_at) & ~is_complete
        # The first of the incomplete lines. The complete ones are all above it.
        is_top = is_open & ((~is_complete).cumsum(1) == 1)
        # A line never overtakes the one above it. For the topmost, the rest of the line is the limit.
        lead = torch.where(is_top, self._widths, previous) - counts
        num_drafts = torch.where(is_open, lead.clamp(max=self._max_drafts), 0)
        is_next_begun = F.pad(counts[:, 1:], (0, 1)) > 0
        is_late = is_complete & ~held.is_settled & is_next_begun  # then its true last token is fed over the placeholder

        # Tensors of all lines are (batch, lines, cells of a line). `pick` selects the cells that are fed.
        columns = counts[..., None] + self._index
        is_fed = is_open[..., None] & (self._index <= num_drafts[..., None]) & (columns < self._widths[:, None])
        is_root = self._index == 0
        all_fed = is_fed | (is_late[..., None] & is_root)
        # A fixed number of cells: those that are fed come first, line by line, and padding fills the rest.
        order = all_fed.flatten(1).byte().argsort(dim=1, descending=True, stable=True)[:, : self._num_cells]

        def pick(values: torch.Tensor) -> torch.Tensor:
            return values.expand(columns.shape).flatten(1).gather(1, order)

        ahead = self._firsts[:, None] + columns
        predicted = pick(ahead.where(is_fed, self.num_tokens))
        positions = pick((ahead - 1).where(all_fed, self.num_tokens - 1))
        # A line without tokens takes a placeholder as root while the previous line's last token does not exist.
        above = self._firsts[self._above] + counts[:, self._above] - 1
        is_missing = (counts == 0) & (previous < self._previous_widths)
        newest = (ahead - 1).clamp(min=0, max=self.num_tokens - 1)  # out of range only in cells that are not fed
        emitted = state.tokens.gather(1, pick(torch.where(is_missing[..., None], above[..., None], newest)))
        tokens = torch.where(pick(is_root), emitted, held.drafts.gather(1, positions))
        is_drafted = pick(self._index < num_drafts[..., None])
        drafted = held.drafts.gather(1, predicted)
        return Cells(order, tokens, positions, predicted, is_drafted, drafted, is_top)

    def _visible(self, held: LineState, cells: Cells) -> torch.Tensor:
        """Return whether a fed token attends to an image position, bool (batch, cells, positions)."""
        counts = held.counts[:, self._line_of]
        # Known are emitted tokens and placeholders. In its own line a cell sees everything to its left, hence drafts.
        has_placeholder = counts >= self._placed_at
        is_known = (self._columns < counts) | has_placeholder
        lines = cells.order // len(self._index)
        is_own = self._line_of == lines[..., None]
        return (self._positions <= cells.positions[..., None]) & (is_known[:, None] | is_own)

    def _verify(self, state: DecodingState, held: LineState, cells: Cells, scores: Scores) -> Verdict:
        """Verify each draft on its own, as if all drafts before it in its line were accepted."""
        if held.draft_probs is None:
            best = scores.logits.argmax(-1)
            return Verdict((cells.drafted == best) & cells.is_drafted, best, best, None)
        slots = (state.num_steps % ACCEPT.slots)[:, None]
        probs = scores.weights.softmax(-1)
        children = cells.drafted.masked_fill(~cells.is_drafted, -1)[..., None]
        uniforms = state.noise.fresh(ACCEPT, cells.predicted, slots)[..., None]
        draft_probs = pick_rows(held.draft_probs, cells.predicted)
        rank, residual = self._rejection.accept(probs, children, draft_probs, uniforms)
        # Gumbel-max with the noise of "target", which no draft reads.
        bonus = residual.log_().add_(state.noise.gumbel(TARGET, cells.predicted)).argmax(-1)
        drafts = state.noise.sample(REDRAW, probs, cells.predicted, slots)
        # A cell has one child. Rank 1 means that it is rejected or missing.
        return Verdict(rank == 0, bonus, drafts, probs)

    def _commit(self, state: DecodingState, held: LineState, cells: Cells, scores: Scores, verdict: Verdict) -> None:
        counts = held.counts
        shape = (*counts.shape, len(self._index))
        # From cells back to all cells of all lines, (batch, lines * cells of a line). Those not among them are False.
        is_accepted = torch.zeros(shape, dtype=torch.int64, device=self.device).flatten(1)
        is_accepted.scatter_(1, cells.order, verdict.is_accepted.long())
        # Drafts of a line count up to its first rejected one.
        num_accepted = is_accepted.view(shape).cumprod(-1).sum(-1)
        # Only in the topmost line all tokens before the bonus token are final.
        num_emitted = num_accepted + (cells.is_top & (counts + num_accepted < self._widths))

        lines = cells.order // len(self._index)
        index = cells.order % len(self._index)
        tokens = torch.where(index < num_accepted.gather(1, lines), cells.drafted, verdict.bonus)
        is_emitted = index < num_emitted.gather(1, lines)
        positions = cells.predicted.where(is_emitted, self.num_tokens)
        state.tokens.scatter_(1, positions, tokens)
        if state.margins is not None:
            state.margins.scatter_(1, positions, margins_of(scores.keys))

        held.drafts.scatter_(1, cells.predicted, verdict.drafts)
        if held.draft_probs is not None and verdict.draft_probs is not None:
            positions = cells.predicted[..., None].expand_as(verdict.draft_probs)
            held.draft_probs.scatter_(1, positions, verdict.draft_probs)
        # If a line was complete before this step, its last token was fed in it, as a root or over a placeholder.
        held.is_settled.copy_(counts == self._widths)
        counts.add_(num_emitted)
        is_finite = scores.weights.amax(-1).isfinite().all(1)
        num_more = num_emitted.sum(1) - 1  # -1 for a complete image, to which `log_step` then adds 0 tokens
        # Without a tree there is no deepest node. max_depth stands for it.
        self.log_step(state, num_more, torch.full_like(num_more, self.max_depth), is_finite)
