"""Text encoders that encode each word: as a fixed random embedding, or as its number in a vocabulary.

They need no training and no files, but a target understands only those with which it was trained.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

_WORD = re.compile(r"\w+(?:['-]\w+)*")

log = logging.getLogger(__name__)


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation. Words may contain apostrophes and hyphens."""
    return _WORD.findall(text.lower())


class WordEmbeddingEncoder:
    """The encoder with a fixed random embedding of each word.

    Let E be a random normal vector per phrase, and S a random vector of signs per position. The feature of a word has a
    term for every phrase of at most `phrase_words` words that ends with it, so that it encodes which words belong
    together:

        feature = S[position] * (E[the word] + E[the last two words] + ...) / sqrt(number of terms)

    LlamaGen's rotary table sets queries and keys of prompt tokens to 0 (see `rotary_table`). Attention is therefore
    uniform over prompt tokens, and sees only the mean of their features. Without the signs, "red left of blue" and
    "blue left of red" would have almost the same mean.

    Args:
        vocabulary: None allows any word.
        caption_dim: number of channels of a feature.
        max_tokens: number of words of the longest prompt.
        seed: random seed of E and S.
        captions: regular expression of the captions that the target has learnt, in lower case and without punctuation.
            A warning names the prompts that it does not match. None allows any text.
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | None,
        caption_dim: int = 256,
        max_tokens: int = 16,
        seed: int = 0,
        phrase_words: int = 3,
        captions: str | None = None,
    ) -> None:
        self.vocabulary = None if vocabulary is None else tuple(vocabulary)
        self.caption_dim = caption_dim
        self.max_tokens = max_tokens
        self.seed = seed
        self.phrase_words = phrase_words
        self.captions = captions
        self._warned: set[str] = set()
        signs = torch.rand(max_tokens, caption_dim, generator=self._generator("signs of positions"))
        self.signs = torch.where(signs < 0.5, -1.0, 1.0)
        self._rows: dict[str, Tensor] = {}  # E of the phrases so far

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the features of texts and their mask, as `TextEncoder` does. A token is a word."""
        features = torch.zeros(len(texts), self.max_tokens, self.caption_dim)
        mask = torch.zeros(len(texts), self.max_tokens, dtype=torch.bool)
        for row, text in enumerate(texts):
            words = self.check(text)
            # Positions count from the first word, not from the padding.
            rows = torch.stack([self.feature(words[: i + 1]) for i in range(len(words))]) * self.signs[: len(words)]
            features[row, -len(words) :] = rows
            mask[row, -len(words) :] = True
        return features, mask

    def check(self, text: str) -> list[str]:
        """Return the words of a text, after checking that they can be encoded.

        A text that does not match `captions` is encoded all the same, with a warning once per text.

        Raises:
            ValueError: the text has no word, more than `max_tokens` words, or an unknown word.
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
        # By words, so that case and punctuation do not count.
        is_caption = self.captions is None or re.fullmatch(self.captions, " ".join(words))
        if not is_caption and text not in self._warned:
            self._warned.add(text)
            log.warning(
                "prompt %.80r is no caption that the model has learnt: its image may show anything; captions are: %s",
                text,
                self.captions,
            )
        return words

    def feature(self, words: Sequence[str]) -> Tensor:
        """Return the feature of the last of some words, (caption_dim,), without the signs of its position."""
        phrases = [" ".join(words[-n:]) for n in range(1, min(self.phrase_words, len(words)) + 1)]
        # The square root keeps the variance at 1 for every number of terms.
        return torch.stack([self._row(phrase) for phrase in phrases]).sum(0) / len(phrases) ** 0.5

    def _row(self, phrase: str) -> Tensor:
        if phrase not in self._rows:
            self._rows[phrase] = torch.randn(self.caption_dim, generator=self._generator(f"word {phrase}"))
        return self._rows[phrase]

    def _generator(self, name: str) -> torch.Generator:
        # CRC-32, since Python's own hash of a string differs between processes.
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))


class WordIdEncoder(WordEmbeddingEncoder):
    """The encoder that turns each word into its number in the vocabulary. Numbers begin at 1, and 0 is padding.

    A target with this encoder embeds `NUM_WORD_IDS` ids. The last id is the null prompt of classifier-free guidance.
    """

    def __init__(self, vocabulary: Sequence[str], max_tokens: int = 16, captions: str | None = None) -> None:
        super().__init__(vocabulary, max_tokens=max_tokens, captions=captions)
        self.numbers = {word: number for number, word in enumerate(vocabulary, 1)}

    @override
    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        ids = torch.zeros(len(texts), self.max_tokens, dtype=torch.int64)
        for row, text in enumerate(texts):
            words = self.check(text)
            ids[row, -len(words) :] = torch.tensor([self.numbers[word] for word in words])
        return ids, ids > 0
