"""The interface of text encoders, and how a text is split into words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

_WORD = re.compile(r"\w+(?:['-]\w+)*")


class TextEncoder(Protocol):
    """The interface of text encoders."""

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode texts, padded on the left to the same length.

        Returns:
            (features, float32 (texts, max_tokens, caption_dim), 0 at padding, or ids, int64 (texts, max_tokens); mask,
            bool (texts, max_tokens), True for tokens and False for padding).
        """
        ...


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())
