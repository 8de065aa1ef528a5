"""The text encoder of a run: fixed random word embeddings, stored features of T5, tokens, or numbers of classes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lantern.checkpoints.files import check_equal
from lantern.models.families import FAMILIES
from lantern.models.text import TextEncoder, split_words
from lantern_pipeline.data.text_features import StoredTextEncoder
from lantern_pipeline.data.token_prompts import TokenPromptEncoder
from lantern_pipeline.fetch.entries import Resource
from lantern_pipeline.world.scenes import BACKGROUNDS, COLOURS, SHAPES, VOCABULARY, parse_caption

# Names in the order of their numbers, as torchvision writes them (BSD-3-Clause).
WORD_FEATURES = {"seed": 0, "phrase_words": 3}  # of a run's `WordEmbeddingEncoder`; a target is trained on them
IMAGENET_CLASSES = Path(__file__).with_name("imagenet_classes.txt")


class WordEmbeddingEncoder:
    """Fixed random embeddings, of width `caption_dim`, of words and of the phrases that end in them, bound to their
    position in the text.

    The feature of a word is S[position] * (E[word] + E[the last two words] + ...) / sqrt(terms), up to phrases of
    `phrase_words` words: E a random normal row keyed by the letters, S a random row of signs. LlamaGen's attention is
    uniform over text tokens, so it sees the mean of their features; multiplying by the signs keeps (word, position)
    pairs separable in that mean ("red left of blue" is not "blue left of red"), and phrases say which words belong
    together. A vocabulary of None allows any word.
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
        """The words of a text; one without words, with too many or with an unknown one is an error."""
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
        """Sum over the phrases that end in the last of the words, the word itself among them."""
        phrases = [" ".join(words[-n:]) for n in range(1, min(self.phrase_words, len(words)) + 1)]
        return torch.stack([self._row(phrase) for phrase in phrases]).sum(0) / len(phrases) ** 0.5

    def _row(self, phrase: str) -> Tensor:
        if phrase not in self._rows:
            self._rows[phrase] = torch.randn(self.caption_dim, generator=self._generator(f"word {phrase}"))
        return self._rows[phrase]

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))


class ClassEncoder:
    """Numbers of classes: a prompt is a number below `num_classes`, or one of ImageNet's names where there are 1000."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        names = IMAGENET_CLASSES.read_text(encoding="utf-8").splitlines() if num_classes == 1000 else []
        self.numbers = {name.lower(): number for number, name in enumerate(names)}
        self.numbers |= {str(number): number for number in range(num_classes)}

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """See `TextEncoder.encode`: one id a text."""
        ids = torch.tensor([[self.check(text)] for text in texts])
        return ids, torch.ones_like(ids, dtype=torch.bool)

    def check(self, text: str) -> int:
        """The number of a class; a text that is none is an error."""
        number = self.numbers.get(text.strip().lower())
        if number is None:
            raise ValueError(
                f"prompt {text!r:.80} is no class; give a number from 0 to {self.num_classes - 1}, or where config key "
                f"text.num_classes is 1000 a name of {IMAGENET_CLASSES.name}"
            )
        return number


class WordIdEncoder(WordEmbeddingEncoder):
    """Numbers of the vocabulary's words from 1 on; 0 pads, and the table's last row is the prompt of no caption."""

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


class SceneClassEncoder(ClassEncoder):
    """Classes of the embedded world: a caption's background with the colour and the shape of its first object."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        kinds = list(product(BACKGROUNDS, COLOURS, SHAPES))
        self.kinds = {kind: number for number, kind in enumerate(kinds)}
        if num_classes != len(kinds):
            raise ValueError(
                f"config key text.num_classes must be {len(kinds)} in the embedded world: backgrounds times colours "
                f"times shapes, got {num_classes}"
            )

    def check(self, text: str) -> int:
        """The number of a caption's class."""
        scene = parse_caption(text)
        return self.kinds[scene.background, *scene.objects[0][1:]]


def unknown_words(texts: Sequence[str], captions: Sequence[str]) -> list[str]:
    """Words of some texts that none of a target's captions has, in their order: it has not learnt what they mean."""
    known = {word for caption in captions for word in split_words(caption)}
    return [word for word in dict.fromkeys(word for text in texts for word in split_words(text)) if word not in known]


def describe_features(text: Mapping[str, Any]) -> dict[str, Any]:
    """What of config section `text` decides the features of a caption, for the report of a target."""
    return {"encoder": text["encoder"], **(WORD_FEATURES if text["encoder"] == "words" else {})}


def compare_features(path: Path, report: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    """Compares the features that a target was trained on, as far as its file `path` reports them, with config section
    `text`: under others it would draw anything but the caption.
    """
    wanted = describe_features(text)
    for key, value in report.get("text", {}).items():
        check_equal(path, f"text.{key}", wanted.get(key), value, "text.encoder")


def make_text_encoder(text: Mapping[str, Any], data_source: str, features: str | Sequence[str] = ()) -> TextEncoder:
    """Builds the encoder that the config section `text` names; `features` are the files of T5's stored ones, or the
    tokenizer's, which without them is what text.checkpoint names: a path, or a resource that is there already.

    The embedded world's words are known, a folder's captions may hold any.
    """
    if text["encoder"] == "classes":
        return (SceneClassEncoder if data_source == "scenes" else ClassEncoder)(text["num_classes"])
    if text["encoder"] == "word_ids":
        return WordIdEncoder(VOCABULARY, text["max_tokens"])
    files = [features] if isinstance(features, str) else list(features)
    if text["encoder"] in FAMILIES:
        given = text["checkpoint"]
        file = files[0] if files else given if Path(given).exists() else Resource(given).manifest
        large, small = text["grids"]
        return TokenPromptEncoder.of_file(text["encoder"], file, text["max_tokens"], large=large, small=small)
    if text["encoder"] == "t5":
        return StoredTextEncoder(files)
    vocabulary = VOCABULARY if data_source == "scenes" else None
    return WordEmbeddingEncoder(vocabulary, text["caption_dim"], text["max_tokens"], **WORD_FEATURES)
