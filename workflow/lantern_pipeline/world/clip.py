"""CLIP models that score how well an image fits a text: a small model that a run trains, or a published one.

The vocabulary of the small model is *open* if unknown words share one token and long texts are cut, as needed for
custom captions. Otherwise both are errors, since captions of the shapes dataset have known words and are short.

Images are float32 (n, 3, S, S) in [-1, 1]. Token ids are int64 (n, context_length). Embeddings are unit vectors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.models.stored import StoredModel, load_model, read_metadata
from lantern_models.text.words import split_words

if TYPE_CHECKING:
    from open_clip.model import CLIP, CustomTextCLIP

log = logging.getLogger(__name__)

PAD, UNKNOWN, FIRST_WORD = 0, 1, 2


@dataclass(frozen=True)
class ClipConfig:
    """Sizes and vocabulary of the small CLIP model."""

    vocabulary: tuple[str, ...]  # known words, in the order of their token ids
    is_open_vocabulary: bool = False
    context_length: int = 18  # tokens to which a text is padded, including start and end token
    embed_dim: int = 64  # length of the embeddings of images and texts
    width: int = 16  # channels after the stem of the residual image tower, an even number
    text_width: int = 64  # a multiple of 32, the width of an attention head
    text_layers: int = 2
    input_size: int = 64  # side of images in pixels, divisible by 32 for open_clip's ModifiedResNet

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", tuple(self.vocabulary))  # a checkpoint stores it as a list


class Tokenizer(Protocol):
    """What CLIP models need of a tokenizer. open_clip's SimpleTokenizer has it as well."""

    context_length: int

    def __call__(self, texts: list[str], /) -> torch.Tensor:
        """Convert texts to token ids, int64 (texts, context_length)."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """Return the token ids of a whole text, without start and end token."""
        ...


class WordTokenizer:
    """Tokenizer with one token per word, between a start and an end token. Texts are padded on the right."""

    def __init__(self, vocabulary: Sequence[str], context_length: int, is_open_vocabulary: bool = False) -> None:
        self.ids = {word: FIRST_WORD + i for i, word in enumerate(vocabulary)}
        self.context_length = context_length
        self.is_open_vocabulary = is_open_vocabulary
        self.start = FIRST_WORD + len(self.ids)
        # The end token has the highest id: open_clip's text tower searches each text for the highest id, and uses the
        # transformer's output at this position for the embedding of the text.
        self.end = self.start + 1

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Cut or refuse texts of more than context_length - 2 words, and pad the others."""
        ids = torch.full((len(texts), self.context_length), PAD, dtype=torch.int64)
        room = self.context_length - 2
        for row, text in enumerate(texts):
            words = self.encode(text)
            if len(words) > room and not self.is_open_vocabulary:
                raise ValueError(f"caption {text!r} has {len(words)} words; the CLIP model reads {room} at most")
            tokens = [self.start, *words[:room], self.end]
            ids[row, : len(tokens)] = torch.tensor(tokens)
        return ids

    def encode(self, text: str) -> list[int]:
        """Return the token ids of all words of a text, however many."""
        words = split_words(text)
        unknown = [word for word in words if word not in self.ids]
        if unknown and not self.is_open_vocabulary:
            raise ValueError(f"unknown word {unknown[0]!r} in caption {text!r}; known words: {', '.join(self.ids)}")
        return [self.ids.get(word, UNKNOWN) for word in words]


def cut_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Return those of the texts that a CLIP model does not read to their end."""
    room = tokenizer.context_length - 2  # without start and end token
    return [text for text in texts if len(tokenizer.encode(text)) > room]


class ClipModel(StoredModel):
    """Small CLIP model, built from parts of open_clip.

    It has a ModifiedResNet for images, a causal transformer for texts, and a learned temperature.
    """

    kind = "clip"
    config_class = ClipConfig
    config: ClipConfig

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        # Imported here: open_clip takes seconds to import, and only CLIP stages need it.
        from open_clip.model import CustomTextCLIP

        self.config = config
        self.tokenizer = WordTokenizer(config.vocabulary, config.context_length, config.is_open_vocabulary)
        vision = {"layers": [1, 1, 1, 1], "width": config.width, "head_width": 32, "image_size": config.input_size}
        text = {
            "context_length": config.context_length,
            "vocab_size": self.tokenizer.end + 1,
            "width": config.text_width,
            "heads": config.text_width // 32,
            "layers": config.text_layers,
        }
        self.clip = CustomTextCLIP(config.embed_dim, vision, text, output_dict=True)
        # Convolutions of few channels run a third faster in this layout on a CPU.
        self.clip.visual.to(memory_format=torch.channels_last)

    def preprocess(self, images: torch.Tensor) -> torch.Tensor:
        """Resize images to the input size of the image tower."""
        size = self.config.input_size
        if images.shape[-1] == size:
            return images
        # Antialiasing matters only if images are larger than the input.
        return F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False, antialias=True)

    @override
    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return image_features and text_features, (n, embed_dim), and the scalar logit_scale."""
        return self.clip(self.preprocess(images), tokens)


@dataclass(eq=False)
class ClipScorer:
    """Scorer of images: the cosine of their CLIP embeddings with those of texts, in [-1, 1].

    Some papers multiply this score by 100.
    """

    model: CLIP | CustomTextCLIP
    tokenizer: Tokenizer
    preprocess: Callable[[torch.Tensor], torch.Tensor]  # images -> input of the model
    name: str  # name of the model in results
    prompt_prefix: str = ""  # put in front of every text
    _reported: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)

    @classmethod
    def from_model(cls, model: ClipModel) -> ClipScorer:
        """Make a scorer from a small CLIP model that has been trained."""
        return cls(model.clip, model.tokenizer, model.preprocess, name="lantern-clip")

    @classmethod
    def from_checkpoint(cls, path: Path | str, device: torch.device | str = "cpu") -> ClipScorer:
        """Do the same from the file of the model."""
        model = load_model(path, ClipModel)
        # Scores of random weights look plausible.
        if not (read_metadata(path) or {}).get("num_steps"):
            raise ValueError(
                f"{path} holds a CLIP model without a training report; refusing to score with random weights"
            )
        return cls.from_model(model.to(device))

    @property
    def device(self) -> torch.device:
        """Device to which images and token ids are moved."""
        return next(self.model.parameters()).device

    @torch.inference_mode()
    def embed_images(self, images: torch.Tensor) -> torch.Tensor:
        """Embed images, float32 (n, embed_dim)."""
        return F.normalize(self.model.encode_image(self.preprocess(images.to(self.device))).float(), dim=-1)

    def count_cut(self, texts: Sequence[str]) -> int:
        """Return how many texts the model does not read to their end. A warning states the number, once per text."""
        cut = cut_texts(self.tokenizer, [self.prompt_prefix + text for text in texts])
        # If no text is cut, the empty list is a subset, and there is no warning.
        if not self._reported.issuperset(cut):
            log.warning(
                "%s reads %d tokens of a caption: %d of %d captions are cut, the first is %.80r",
                *(self.name, self.tokenizer.context_length, len(cut), len(texts), cut[0]),
            )
            self._reported.update(cut)
        return len(cut)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> torch.Tensor:
        """Embed texts, with `prompt_prefix` in front of each, float32 (n, embed_dim)."""
        self.count_cut(texts)
        tokens = self.tokenizer([self.prompt_prefix + text for text in texts]).to(self.device)
        return F.normalize(self.model.encode_text(tokens).float(), dim=-1)

    def score(self, images: torch.Tensor, texts: Sequence[str], batch_size: int = 64) -> torch.Tensor:
        """Score each image against the text with the same index: cosines, float32 (n,), on the CPU."""
        # One warning for all batches: `embed_texts` does not repeat it.
        self.count_cut(texts)
        scores = []
        for first in range(0, len(texts), batch_size):
            rows = slice(first, first + batch_size)
            scores.append((self.embed_images(images[rows]) * self.embed_texts(texts[rows])).sum(dim=-1).cpu())
        return torch.cat(scores)
