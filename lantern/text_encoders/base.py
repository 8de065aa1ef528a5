"""The interface of text encoders, and how a text is split into words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

_WORD = re.compile(r"\w+(?:['-]\w+)*")


class TextEncoder(Protocol):
    """A text encoder, as a target needs it."""

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode texts, padded on the left to one length.

        Returns:
            features (texts, max_tokens, caption_dim) float32, zero at pads, or ids (texts, max_tokens) int64; and a
            mask (texts, max_tokens) bool, True at tokens and False at pads.
        """
        ...


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())
