"""ZipAR: a decoder that samples one token of each of several image lines in parallel, without drafts.

A line begins when the previous line has `window` tokens. Every token is sampled from the target given the earlier
tokens that exist, while the right ends of the previous lines are still missing. If `window` is at least the length of a
line, nothing is missing. This is then autoregressive decoding.

The first token of a line needs its left neighbour, the last token of the previous line, which may not exist yet. Then a
*placeholder* is fed instead, as in the public code for LlamaGen. It is the newest token of the line before the previous
one, or of the first line if there is no such line. The true left neighbour is fed at the same position one forward pass
after it is sampled, so that later tokens attend to it.

Source: ZipAR (arXiv 2412.04062; ThisisBillhe/ZipAR@2a5695c).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern.attention_mask import window_table
from lantern.decoding import Decoder, margins_of
from lantern.decoding_state import DecodingModels, DecodingState
from lantern.drafters.base import NoDrafter
from lantern.kv_cache import round_slots
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig


@dataclass(frozen=True)
class Feed:
    """A token that is fed to the target in a forward pass. All attributes are image positions.

    Attributes:
        source: position of the token that is fed.
        position: position at which it is fed. It differs from `source` if the token is a *placeholder*, which replaces
            a left neighbour that is not sampled yet.
        sampled: position of the token that is sampled after it. None if the pass only replaces the cache entry of a
            placeholder by that of the true token.
    """

    source: int
    position: int
    sampled: int | None


def line_schedule(lines: tuple[int, int], window: int, small: tuple[int, int] = (0, 0)) -> list[list[Feed]]:
    """Return the tokens that are fed in each forward pass after the prefill. The prefill samples position 0.

    Some models generate a smaller image before the image. It is complete before the lines of the image begin.

    Args:
        lines: number of lines of the image, and number of tokens of a line.
        window: number of tokens of a line after which the next line begins. If it is at least the length of a line,
            lines are generated one after the other.
        small: number of lines of the smaller image, and number of tokens of a line. (0, 0) if there is none.
    """
    num_small = small[0] * small[1]
    forwards = _forwards_of(small, window, first=0) if num_small else []
    forwards += _forwards_of(lines, window, first=num_small)
    return forwards[1:]


def _forwards_of(lines: tuple[int, int], window: int, first: int) -> list[list[Feed]]:
    """Return the tokens that are fed in each forward pass, for one of the two parts of `line_schedule`.

    A part is the image, or the smaller image that comes first.

    Args:
        lines: number of lines of the part, and number of tokens of a line.
        window: number of tokens of a line after which the next line begins.
        first: position of the part's first token among all image tokens.
    """
    height, width = lines
    window = min(window, width)
    begins = [line * window for line in range(height)]
    forwards: list[list[Feed]] = [[] for _ in range(begins[-1] + width)]
    for line, begin in enumerate(begins):
        for column in range(width):
            now = begin + column
            sampled = first + line * width + column
            source = sampled - 1
            if column == 0 and line > 0 and begins[line - 1] + width > now:  # the left neighbour is not sampled yet
                above = max(line - 2, 0)
                source = first + above * width + min(now - 1 - begins[above], width - 1)
                forwards[begins[line - 1] + width].append(Feed(sampled - 1, sampled - 1, None))
            forwards[now].append(Feed(source, sampled - 1, sampled))
    return [sorted(feeds, key=lambda feed: feed.position) for feeds in forwards]


@dataclass(frozen=True)
class LineTables:
    """The tokens that ZipAR feeds in each forward pass, as int64 tensors.

    A *cell* is one token that a forward pass may feed. Unused cells are padded.

    Attributes:
        sources: `Feed.source`, (forwards, cells).
        positions: `Feed.position`, (forwards, cells). For padding it is the last image position, which is never fed.
        sampled: `Feed.sampled`, (forwards, cells). A number past the end of the image if nothing is sampled.
        counts: number of tokens that a forward pass samples, (forwards,).
        first_forwards: first forward pass that feeds each position, (tokens,).
    """

    sources: torch.Tensor
    positions: torch.Tensor
    sampled: torch.Tensor
    counts: torch.Tensor
    first_forwards: torch.Tensor


def tables_of(schedule: list[list[Feed]], num_tokens: int, device: torch.device) -> LineTables:
    """Convert a schedule to tensors.

    Args:
        schedule: the tokens that are fed in each forward pass, from `line_schedule`.
        num_tokens: number of tokens of an image.
        device: device of the tensors.
    """
    num_cells = max(len(feeds) for feeds in schedule)
    padding = Feed(0, num_tokens - 1, None)
    padded = [feeds + [padding] * (num_cells - len(feeds)) for feeds in schedule]
    sampled = [
        [num_tokens + i if feed.sampled is None else feed.sampled for i, feed in enumerate(row)] for row in padded
    ]
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


class LinesDecoder(Decoder):
    """ZipAR's decoder, which feeds the newest token of every unfinished line in a step.

    It is not exact, and no bound on its total variation from the target is known.

    Args:
        models: see `make_decoder`.
        spec: see `make_decoder`. It has the parameter `window`.
        sampling: see `make_decoder`.
        records_margins: see `make_decoder`.
        stepping: see `make_decoder`.
    """

    def __init__(
        self,
        models: DecodingModels,
        spec: MethodSpec,
        sampling: SamplingConfig,
        *,
        records_margins: bool = False,
        stepping: str = "auto",
    ) -> None:
        config = models.target.config
        num_tokens = config.num_image_tokens
        schedule = line_schedule(config.lines, spec["window"], config.small_shape)
        self._tables = tables_of(schedule, num_tokens, models.target.device)
        super().__init__(
            models,
            spec,
            sampling,
            NoDrafter(models.target.device),
            max_depth=self._tables.positions.shape[1] - 1,
            num_slots=round_slots(config.num_text_tokens + num_tokens + 1),
            reach=num_tokens,  # lines are far apart
            noise_window=num_tokens,
            records_margins=records_margins,
            stepping=stepping,
        )
        self._positions = torch.arange(num_tokens, device=self.device)

    @torch.inference_mode()
    def step(self, state: DecodingState) -> None:
        """Run the target once and emit a token of every unfinished line.

        Args:
            state: the state, changed in place.
        """
        tables = self._tables
        now = state.num_steps.clamp(max=len(tables.counts) - 1)
        positions = tables.positions[now]  # (batch, cells)
        sampled_positions = tables.sampled[now]  # (batch, cells)
        with self.timer("target"):
            visible = self._positions <= positions[..., None]
            visible = visible & (tables.first_forwards <= now[:, None])[:, None]
            mask = state.cache.mask(window_table(visible, self.dtype), torch.full_like(now, self.num_text))
            tokens = state.tokens.gather(1, tables.sources[now])
            slots = self.num_text + positions
            hidden = self.target.extend(state.cache, tokens, slots, slots, mask)
        with self.timer("score"):
            scores = self._score(state, hidden, sampled_positions)
            best, sampled = scores.keys.max(-1)
        with self.timer("commit"):
            state.tokens.scatter_(1, sampled_positions, sampled)
            if state.margins is not None:
                state.margins.scatter_(1, sampled_positions, margins_of(scores.keys))
            num_more = tables.counts[now] - 1
            self._log_step(state, num_more, torch.full_like(now, self.max_depth), best.isfinite().all(1))
