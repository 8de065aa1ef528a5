"""Base class of the decoders of ZipAR and PJD, which generate several lines of an image in parallel.

A line *opens*, that is, its first token may be generated, when the previous line has a given number of tokens. While
several lines are open, the right ends of the previous lines are still missing.

The target predicts the first token of a line from the last token of the previous line, which may not exist yet. Then a
*placeholder* is fed instead, as in ZipAR's public code for LlamaGen. The placeholder is the newest token of the line
before the previous one. The second line has no such line, and takes the newest token of the first line. The true token
is fed at the same position one forward pass after it is emitted, so that later tokens attend to it.

Source: ZipAR (arXiv 2412.04062; ThisisBillhe/ZipAR@2a5695c).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lantern.decoding import Decoder, DecoderOptions
from lantern.drafters.base import Drafter
from lantern.kv_cache import round_slots, window_table
from lantern.models.config import TargetConfig
from lantern.state import DecodingState


@dataclass(frozen=True)
class Line:
    """A line of an image, or of the smaller preview that GLM-Image generates before each image."""

    first: int  # position of its first token among all image tokens
    width: int  # number of tokens
    opens_at: int  # number of tokens that the previous line must have before; 0 for the first line
    above: int  # index of the line whose newest token is the placeholder


def lines_of(config: TargetConfig, window: int) -> list[Line]:
    """Return the lines of a target's images, top to bottom, after those of the preview, if there is one.

    The next line opens after `window` tokens of a line. If lines are shorter, they are generated one after the other.
    """
    lines: list[Line] = []
    previous = Line(0, 0, 0, 0)  # before the first line
    for height, width in (config.small_shape, config.lines):
        first_line = len(lines)
        for number in range(first_line, first_line + height):
            # The preview is complete before the image begins: the image's first line waits for the whole previous line.
            opens_at = min(window, width) if number > first_line else previous.width
            previous = Line(previous.first + previous.width, width, opens_at, max(number - 2, first_line))
            lines.append(previous)
    return lines


class LinesDecoder(Decoder):
    """A decoder in which the token of image position i has slot num_text + i of the cache from the start."""

    def __init__(self, options: DecoderOptions, drafter: Drafter[Any], *, max_depth: int) -> None:
        config = options.models.target.config
        num_tokens = config.num_image_tokens
        super().__init__(
            options,
            drafter,
            max_depth=max_depth,
            # One slot to spare, as in `Decoder._limit_slots`.
            num_slots=round_slots(config.num_text_tokens + num_tokens + 1),
            reach=num_tokens,  # lines are far apart: a step fills slots and reads noise anywhere in the image
            noise_window=num_tokens,
        )
        self._positions = torch.arange(num_tokens, device=self.device)

    def run_target(
        self, state: DecodingState, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Run the target over tokens at image positions, (batch, cells) each. Keys and values there are replaced."""
        # All image slots count as one window of the mask. `visible`, (batch, cells, positions), rules over all of them,
        # and only the prompt lies before it.
        begin = torch.full_like(state.num_steps, self.num_text)
        mask = state.cache.mask(window_table(visible, self.dtype), begin)
        slots = self.num_text + positions
        return self.target.extend(state.cache, tokens, slots, slots, mask)
