"""Text encoders: prompts to left-padded feature sequences, as LlamaGen's caption projection expects them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

_WORD = re.compile(r"\w+(?:['-]\w+)*")


class TextEncoder(Protocol):
    """What the target model needs of a text encoder."""

    caption_dim: int
    max_tokens: int

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return features (texts, max_tokens, caption_dim) float32, zero at pads, and mask (texts, max_tokens) bool.

        Pads come first, valid tokens last (LlamaGen's left padding); the mask is True at valid tokens.
        """
        ...


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation."""
    return _WORD.findall(text.lower())
