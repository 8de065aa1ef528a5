"""Text encoders by words: fixed random embeddings, or the numbers of a vocabulary's words."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from lantern.text_encoders.base import split_words


class WordEmbeddingEncoder:
    """Encode each word by a fixed random embedding of `caption_dim` channels that depends on its position.

    The feature of a word is S[position] * (E[word] + E[the last two words] + ...) / sqrt(terms), for phrases of at most
    `phrase_words` words. E is a random normal vector per phrase, S a random vector of signs. LlamaGen's attention is
    uniform over text tokens, so it sees the mean of their features. The signs keep (word, position) pairs separable in
    that mean: "red left of blue" is not "blue left of red". Phrases say which words belong together.

    Args:
        vocabulary: known words; None allows any word.
        caption_dim: channels of a feature.
        max_tokens: words of the longest prompt.
        seed: of the embeddings.
        phrase_words: words of the longest phrase.
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | None,
        caption_dim: int = 256,
        max_tokens: int = 16,
        seed: int = 0,
        phrase_words: int = 3,
    ) -> None:
        self.vocabulary = None if vocabulary is None else tuple(vocabulary)
        self.caption_dim, self.max_tokens, self.seed, self.phrase_words = caption_dim, max_tokens, seed, phrase_words
        signs = torch.rand(max_tokens, caption_dim, generator=self._generator("signs of positions"))
        self._signs = torch.where(signs < 0.5, -1.0, 1.0)
        self._rows: dict[str, Tensor] = {}

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """See `TextEncoder.encode` and `check`."""
        features = torch.zeros(len(texts), self.max_tokens, self.caption_dim)
        mask = torch.zeros(len(texts), self.max_tokens, dtype=torch.bool)
        for row, text in enumerate(texts):
            words = self.check(text)
            rows = torch.stack([self._feature(words[: i + 1]) for i in range(len(words))]) * self._signs[: len(words)]
            features[row, -len(words) :] = rows
            mask[row, -len(words) :] = True
        return features, mask

    def check(self, text: str) -> list[str]:
        """Split a text into words.

        Raises:
            ValueError: the text has no word, more than `max_tokens`, or an unknown one.
        """
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

    def _feature(self, words: Sequence[str]) -> Tensor:
        """Return the feature of the last word, (caption_dim,), before the signs."""
        phrases = [" ".join(words[-n:]) for n in range(1, min(self.phrase_words, len(words)) + 1)]
        return torch.stack([self._row(phrase) for phrase in phrases]).sum(0) / len(phrases) ** 0.5

    def _row(self, phrase: str) -> Tensor:
        if phrase not in self._rows:
            self._rows[phrase] = torch.randn(self.caption_dim, generator=self._generator(f"word {phrase}"))
        return self._rows[phrase]

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))


class WordIdEncoder(WordEmbeddingEncoder):
    """Encode words by their numbers in the vocabulary, from 1; 0 is padding.

    `NUM_WORD_IDS` ids are embedded, of which the last is the null prompt.
    """

    def __init__(self, vocabulary: Sequence[str], max_tokens: int = 16) -> None:
        super().__init__(vocabulary, max_tokens=max_tokens)
        self.numbers = {word: number for number, word in enumerate(vocabulary, 1)}

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """See `TextEncoder.encode` and `check`."""
        ids = torch.zeros(len(texts), self.max_tokens, dtype=torch.int64)
        for row, text in enumerate(texts):
            words = self.check(text)
            ids[row, -len(words) :] = torch.tensor([self.numbers[word] for word in words])
        return ids, ids > 0
