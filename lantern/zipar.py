"""ZipAR: several lines of the image at once, one token each per forward, without drafts and verification.

A line begins when the one above holds `window` tokens. Every token is drawn from the target with what is there of its
context: the right ends of the lines above are missing. Where they are all there, that is autoregressive decoding.

The first token of a line has no left neighbour yet if the line above still runs. A stand-in is fed in its place: the
newest token of the line above that one, as the public code for LlamaGen does. The true token, once drawn, is fed there
one forward later, so that later tokens see it.

Source: ZipAR (arXiv 2412.04062; ThisisBillhe/ZipAR@2a5695c).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern.draft_tree import static_structure
from lantern.drafting import Cells, Prefill, Proposal
from lantern.models.config import TargetConfig
from lantern.noise import NoiseField
from lantern.verification import Outcome


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


def line_schedule(lines: tuple[int, int], window: int, is_public: bool = False) -> list[list[Feed]]:
    """Which tokens are fed in which forward: one list per forward after the prefill, which draws position 0.

    Args:
        lines: of the image, and tokens of a line.
        window: tokens that a line holds when the next one begins; with a whole line or more, nothing is parallel.
        is_public: as the public code for LlamaGen: line 1 begins when line 0 is complete.
    """
    (height, width), window = lines, min(window, lines[1])
    begins = [line * window + (width - window) * (is_public and line > 0) for line in range(height)]
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


@dataclass
class LinesState:
    """What is kept of a batch of images.

    Attributes:
        tokens: int64, (batch, tokens + cells): drawn so far; behind the image what is not needed.
        forwards: int64, (batch,): after the prefill.
    """

    tokens: torch.Tensor
    forwards: torch.Tensor


class LinesDrafter:
    """Feeds the newest token of every line that runs. Not exact, and no bound on TV is known.

    Args:
        config: of the target.
        window: see `line_schedule`.
        is_public: see `line_schedule`; positions not drawn yet are then seen, as keys and values of zeros.
        device: where the tensors live.
    """

    noise_streams = ()

    def __init__(self, config: TargetConfig, window: int, is_public: bool, device: torch.device) -> None:
        schedule, last = line_schedule(config.lines, window, is_public), config.num_image_tokens - 1
        num_cells, first_forwards = max(map(len, schedule)), [len(schedule)] * (last + 1)
        for forward in reversed(range(len(schedule))):
            for feed in schedule[forward]:
                first_forwards[feed.place] = forward
        # The last position is never fed: where a forward has fewer tokens, the others stand there, unseen.
        padded = [feeds + [Feed(0, last, None)] * (num_cells - len(feeds)) for feeds in schedule]
        drawn = [[last + 1 + i if feed.drawn is None else feed.drawn for i, feed in enumerate(row)] for row in padded]
        self._sources, self._places, self._drawn, self._first_forwards = (
            torch.tensor(table, device=device)
            for table in (
                [[feed.source for feed in feeds] for feeds in padded],
                [[feed.place for feed in feeds] for feeds in padded],
                drawn,
                first_forwards,
            )
        )
        self._counts = (self._drawn <= last).sum(1)
        self._positions = torch.arange(last + 1, device=device)
        self.is_public, self.tree, self.max_depth = is_public, static_structure([0], device), num_cells - 1

    def allocate(self, num_rows: int, noise: NoiseField) -> LinesState:
        """See `Drafter`."""
        tokens = self._positions.new_zeros(num_rows, len(self._positions) + self.max_depth + 1)
        return LinesState(tokens, self._positions.new_zeros(num_rows))

    def fill(self, state: LinesState, rows: torch.Tensor, prefill: Prefill) -> None:
        """Begins with token 0."""
        state.tokens[:, :1].index_copy_(0, rows, prefill.first)
        state.forwards.index_fill_(0, rows, 0)

    def propose(self, state: LinesState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """The newest tokens, or their stand-ins, and those that take a stand-in's place."""
        places = self._places[state.forwards]
        visible = self._positions <= places[..., None]
        if not self.is_public:
            visible = visible & (self._first_forwards <= state.forwards[:, None])[:, None]
        cells = Cells(places, self._drawn[state.forwards], self._counts[state.forwards], visible)
        return Proposal(state.tokens.gather(1, self._sources[state.forwards]), self.tree, cells=cells)

    def observe(self, state: LinesState, outcome: Outcome, lengths: torch.Tensor) -> None:
        """Keeps what was drawn."""
        state.tokens.scatter_(1, outcome.proposal.cells.drawn, outcome.emitted)
        state.forwards.add_(1).clamp_(max=len(self._counts) - 1)
