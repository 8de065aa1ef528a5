"""What text encoders have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

_WORD = re.compile(r"\w+(?:['-]\w+)*")


class TextEncoder(Protocol):
    """The interface of text encoders. They have its method, and are not derived from it."""

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode texts, padded on the left to the same length.

        Returns:
            Two tensors. The first holds features, float32 (texts, max_tokens, caption_dim), 0 at padding, or ids, int64
            (texts, max_tokens). The second is the mask, bool (texts, max_tokens): True for tokens, False for padding.
        """
        ...


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation. Words may contain apostrophes and hyphens."""
    return _WORD.findall(text.lower())
