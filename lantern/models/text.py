"""Text encoders: prompts to what the target model reads of them, features or ids, left-padded to one length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

_WORD = re.compile(r"\w+(?:['-]\w+)*")


class TextEncoder(Protocol):
    """What the target model needs of a text encoder."""

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Returns features (texts, max_tokens, caption_dim) float32, zero at pads, or ids (texts, max_tokens) int64,
        and mask (texts, max_tokens) bool.

        Pads come first, valid tokens last (LlamaGen's left padding); the mask is True at valid tokens.
        """
        ...


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation."""
    return _WORD.findall(text.lower())
