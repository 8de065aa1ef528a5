"""Text encoders: prompts to left-padded feature sequences, as LlamaGen's caption projection expects them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Protocol

import torch
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


class WordEmbeddingEncoder:
    """Fixed random word embeddings, bound to their position in the text.

    The feature of a word is E[word] * S[position]: E a random normal row keyed by the word's letters, S a random row of
    signs. LlamaGen's attention is uniform over text tokens, so it sees the mean of their features; multiplying by the
    signs keeps (word, position) pairs separable in that mean ("red left of blue" is not "blue left of red").

    Args:
        vocabulary: the words allowed; None allows any.
        caption_dim: width of a feature.
        max_tokens: most words of a text.
        seed: of the embeddings.
    """

    def __init__(
        self, vocabulary: Sequence[str] | None, caption_dim: int = 256, max_tokens: int = 16, seed: int = 0
    ) -> None:
        self.vocabulary = None if vocabulary is None else tuple(vocabulary)
        self.caption_dim = caption_dim
        self.max_tokens = max_tokens
        self.seed = seed
        signs = torch.rand(max_tokens, caption_dim, generator=self._generator("signs of positions"))
        self._signs = torch.where(signs < 0.5, -1.0, 1.0)
        self._rows: dict[str, Tensor] = {}

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode prompts; see `TextEncoder.encode`.

        Raises:
            ValueError: a text without words, with more than max_tokens words, or with a word outside the vocabulary.
        """
        features = torch.zeros(len(texts), self.max_tokens, self.caption_dim)
        mask = torch.zeros(len(texts), self.max_tokens, dtype=torch.bool)
        for row, text in enumerate(texts):
            words = self._check(text)
            rows = torch.stack([self._row(word) for word in words]) * self._signs[: len(words)]
            features[row, -len(words) :] = rows
            mask[row, -len(words) :] = True
        return features, mask

    def _check(self, text: str) -> list[str]:
        words = split_words(text)
        if not 1 <= len(words) <= self.max_tokens:
            raise ValueError(
                f"prompt {text!r:.80} has {len(words)} words; between 1 and {self.max_tokens} are possible "
                "(shorten it, or raise the text encoder's max_tokens and train again)"
            )
        for word in words:
            if self.vocabulary is not None and word not in self.vocabulary:
                known = ", ".join(self.vocabulary)
                raise ValueError(f"prompt {text!r:.80} holds the unknown word {word!r:.80}; known words: {known}")
        return words

    def _row(self, word: str) -> Tensor:
        if word not in self._rows:
            self._rows[word] = torch.randn(self.caption_dim, generator=self._generator(f"word {word}"))
        return self._rows[word]

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
