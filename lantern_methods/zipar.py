"""ZipAR: a decoder that samples one token of each of several image lines in parallel, without drafts.

A line opens when the previous line has `window` tokens. Every token is sampled from the target given the earlier tokens
that exist, see `lantern_methods.parallel_lines`. If `window` is at least the length of a line, all earlier tokens
exist. This is then autoregressive decoding.

Which tokens a forward pass feeds does not depend on the tokens, and is computed in advance. A *cell* is one token that
a pass may feed. Unused cells are padded.

Source: ZipAR (arXiv 2412.04062; ThisisBillhe/ZipAR@2a5695c).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

from lantern.decoding import DecoderOptions, margins_of
from lantern.drafters.base import NoDrafter
from lantern.state import DecodingState
from lantern_methods.parallel_lines import Line, LinesDecoder, lines_of


@dataclass(frozen=True)
class Feed:
    """A token that is fed to the target in a forward pass. All attributes are image positions."""

    source: int  # of the token that is fed
    position: int  # at which it is fed; another one than `source` for a placeholder
    sampled: int | None  # of the token that the target then samples; None if it only replaces a placeholder


def line_schedule(lines: Sequence[Line]) -> list[list[Feed]]:
    """Return the tokens that are fed in each forward pass after the prefill."""
    # Here the prefill is forward pass 0, which samples the first token. It is left out at the end.
    begins: list[int] = []  # forward pass that samples the first token of each line; later ones sample one more each
    for line in lines:
        begins.append(begins[-1] + line.opens_at if begins else 0)
    forwards: list[list[Feed]] = [[] for _ in range(begins[-1] + lines[-1].width)]
    for number, line in enumerate(lines):
        for column in range(line.width):
            now = begins[number] + column
            sampled = line.first + column
            source = sampled - 1
            if column == 0 and number > 0 and line.opens_at < lines[number - 1].width:
                # The line opens before the previous line's last token is sampled.
                above = lines[line.above]
                # The newest token of the line above: the one that the pass before this one has sampled.
                source = above.first + min(now - 1 - begins[line.above], above.width - 1)
                # The true token is fed in the pass after the one that samples it, the last of its line.
                forwards[begins[number - 1] + lines[number - 1].width].append(Feed(sampled - 1, sampled - 1, None))
            forwards[now].append(Feed(source, sampled - 1, sampled))
    return [sorted(feeds, key=lambda feed: feed.position) for feeds in forwards[1:]]


@dataclass(frozen=True)
class LineTables:
    """The result of `line_schedule` as int64 tensors, with as many cells in every forward pass."""

    sources: torch.Tensor  # `Feed.source`, (forwards, cells)
    positions: torch.Tensor  # (forwards, cells); for padding the last image position, which is never fed
    sampled: torch.Tensor  # (forwards, cells); a number past the end of the image if nothing is sampled
    counts: torch.Tensor  # (forwards,), number of tokens that are sampled
    first_forwards: torch.Tensor  # (tokens,), first forward pass that feeds each position


def tables_of(schedule: list[list[Feed]], num_tokens: int, device: torch.device) -> LineTables:
    """Convert the result of `line_schedule`, padded to the largest number of cells."""
    num_cells = max(len(feeds) for feeds in schedule)
    padding = Feed(0, num_tokens - 1, None)
    padded = [feeds + [padding] * (num_cells - len(feeds)) for feeds in schedule]
    # Cells that sample nothing write past the end of the image, each to a place of its own: the token buffers have one
    # more per cell.
    sampled = [
        [num_tokens + i if feed.sampled is None else feed.sampled for i, feed in enumerate(row)] for row in padded
    ]
    # The last position is never fed. For the others the earliest pass is written last.
    first_forwards = [len(schedule)] * num_tokens
    for forward, feeds in reversed(list(enumerate(schedule))):
        for feed in feeds:
            first_forwards[feed.position] = forward
    return LineTables(
        sources=torch.tensor([[feed.source for feed in feeds] for feeds in padded], device=device),
        positions=torch.tensor([[feed.position for feed in feeds] for feeds in padded], device=device),
        sampled=torch.tensor(sampled, device=device),
        counts=torch.tensor([sum(number < num_tokens for number in row) for row in sampled], device=device),
        first_forwards=torch.tensor(first_forwards, device=device),
    )


class ZipARDecoder(LinesDecoder):
    """ZipAR's decoder: a step feeds the newest token of every unfinished line, and samples the next.

    It is not exact, and no bound on its total variation from the target is known.
    """

    def __init__(self, options: DecoderOptions) -> None:
        config = options.models.target.config
        device = options.models.target.device
        schedule = line_schedule(lines_of(config, options.spec["window"]))
        self._tables = tables_of(schedule, config.num_image_tokens, device)
        super().__init__(
            options,
            NoDrafter(device),
            # Each cell samples at most one token, and a step emits at most max_depth + 1.
            max_depth=self._tables.positions.shape[1] - 1,
        )

    @torch.inference_mode()
    @override
    def step(self, state: DecodingState) -> None:
        tables = self._tables
        now = state.num_steps.clamp(max=len(tables.counts) - 1)  # complete images repeat the last pass
        positions = tables.positions[now]  # (batch, cells)
        sampled_positions = tables.sampled[now]  # (batch, cells)
        with self.timer("target"):
            # A token sees the positions up to its own that have been fed, by this pass at the latest, if only with a
            # placeholder.
            visible = self._positions <= positions[..., None]
            visible = visible & (tables.first_forwards <= now[:, None])[:, None]
            tokens = state.tokens.gather(1, tables.sources[now])
            hidden = self.run_target(state, tokens, positions, visible)
        with self.timer("score"):
            scores = self.score(state, hidden, sampled_positions)
            best, sampled = scores.keys.max(-1)
        with self.timer("commit"):
            state.tokens.scatter_(1, sampled_positions, sampled)
            if state.margins is not None:
                state.margins.scatter_(1, sampled_positions, margins_of(scores.keys))
            num_more = tables.counts[now] - 1
            # Without a tree there is no deepest node. max_depth stands for it.
            self.log_step(state, num_more, torch.full_like(now, self.max_depth), best.isfinite().all(1))
