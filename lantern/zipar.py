"""ZipAR: a loop of its own, which draws several lines of the image at once, one token each, without drafts.

A line begins when the one above holds `window` tokens. Every token is drawn from the target with what is there of its
context: the right ends of the lines above are missing. Where they are all there, that is autoregressive decoding.

The first token of a line has no left neighbour yet if the line above still runs. A stand-in is fed in its place: the
newest token of the line above that one, as the public code for LlamaGen does. The true token, once drawn, is fed there
one forward later, so that later tokens see it.

Source: ZipAR (arXiv 2412.04062; ThisisBillhe/ZipAR@2a5695c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lantern.attention_mask import window_table
from lantern.decoding import Decoder, margins_of
from lantern.decoding_state import DecodingModels, DecodingState
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.step import Scores


@dataclass(frozen=True)
class Feed:
    """A token fed to the target in a forward, all as image positions.

    Attributes:
        source: whose token it is.
        place: where it is fed; another one for a stand-in.
        drawn: what is drawn behind it; None where it is only fed to take a stand-in's place.
    """

    source: int
    place: int
    drawn: int | None


def line_schedule(lines: tuple[int, int], window: int) -> list[list[Feed]]:
    """Which tokens are fed in which forward: one list per forward after the prefill, which draws position 0.

    Args:
        lines: of the image, and tokens of a line.
        window: tokens that a line holds when the next one begins; with a whole line or more, nothing is parallel.
    """
    (height, width), window = lines, min(window, lines[1])
    begins = [line * window for line in range(height)]
    forwards: list[list[Feed]] = [[] for _ in range(begins[-1] + width)]
    for line, begin in enumerate(begins):
        for column in range(width):
            drawn, now = line * width + column, begin + column
            source = drawn - 1
            if column == 0 and line > 0 and begins[line - 1] + width > now:  # the left neighbour is not drawn yet
                above = max(line - 2, 0)
                source = above * width + min(now - 1 - begins[above], width - 1)
                forwards[begins[line - 1] + width].append(Feed(drawn - 1, drawn - 1, None))
            forwards[now].append(Feed(source, drawn - 1, drawn))
    return [sorted(feeds, key=lambda feed: feed.place) for feeds in forwards[1:]]


class LinesDecoder(Decoder):
    """Feeds the newest token of every line that runs. Not exact, and no bound on TV is known.

    Its observer is called with the `Scores` of the tokens of every step.
    """

    def __init__(self, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig, **options: Any) -> None:
        super().__init__(models, spec, sampling, **options)
        n = self.noise_window = self._reach = self.num_tokens  # lines are far apart
        schedule, last = line_schedule(self.target.config.lines, spec.window), n - 1
        num_cells, first_forwards = max(map(len, schedule)), [len(schedule)] * n
        for forward in reversed(range(len(schedule))):
            for feed in schedule[forward]:
                first_forwards[feed.place] = forward
        # The last position is never fed: where a forward has fewer tokens, the others stand there, unseen.
        padded = [feeds + [Feed(0, last, None)] * (num_cells - len(feeds)) for feeds in schedule]
        drawn = [[n + i if feed.drawn is None else feed.drawn for i, feed in enumerate(row)] for row in padded]
        sources = [[feed.source for feed in feeds] for feeds in padded]
        places = [[feed.place for feed in feeds] for feeds in padded]
        tables = (sources, places, drawn, first_forwards)
        self._sources, self._places, self._drawn, self._first_forwards = (
            torch.tensor(table, device=self.device) for table in tables
        )
        self._counts = (self._drawn < n).sum(1)
        self._positions = torch.arange(n, device=self.device)
        self.max_depth = num_cells - 1

    @torch.inference_mode()
    def step(self, state: DecodingState) -> None:
        """One target forward: a token of every line that runs. Changes the state in place."""
        now = state.num_steps.clamp(max=len(self._counts) - 1)
        places, drawn = self._places[now], self._drawn[now]  # image positions, (batch, cells)
        with self.timer("target"):
            visible = self._positions <= places[..., None]
            visible = visible & (self._first_forwards <= now[:, None])[:, None]
            mask = state.cache.mask(window_table(visible, self.dtype), torch.full_like(now, self.num_text))
            tokens, slots = state.tokens.gather(1, self._sources[now]), self.num_text + places
            hidden = self.target.extend(state.cache, tokens, slots, slots, mask)
        with self.timer("score"):
            scores: Scores = self._score(state, hidden, drawn)
            best, own = scores.keys.max(-1)
        if self.observer is not None:
            self.observer(scores)
        with self.timer("commit"):
            state.tokens.scatter_(1, drawn, own)
            if state.margins is not None:
                state.margins.scatter_(1, drawn, margins_of(scores.keys))
            num_more = self._counts[now] - 1
            self._log_step(state, num_more, torch.full_like(now, self.max_depth), best.isfinite().all(1))
