"""Text encoders: prompts to what the target reads of them, features or ids, left-padded to one length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

_WORD = re.compile(r"\w+(?:['-]\w+)*")


class TextEncoder(Protocol):
    """What the target model needs of a text encoder."""

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Features (texts, max_tokens, caption_dim) float32, zero at pads, or ids (texts, max_tokens) int64, behind
        pads, and a mask (texts, max_tokens), True at valid tokens.
        """


def split_words(text: str) -> list[str]:
    """Lower-case words of a text, without punctuation."""
    return _WORD.findall(text.lower())
