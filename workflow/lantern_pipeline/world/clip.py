"""CLIP scorers: a small open_clip model trained on the world's captions, or a published one, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from lantern.checkpoints.native import load_model, read_metadata
from lantern.models.stored import StoredModel
from lantern.text_encoders.base import split_words

if TYPE_CHECKING:
    from open_clip.model import CLIP, CustomTextCLIP

PAD, UNKNOWN, FIRST_WORD = 0, 1, 2


@dataclass(frozen=True)
class ClipConfig:
    """Sizes of the small CLIP model."""

    vocabulary: tuple[str, ...]  # known words, in the order of their token ids
    # Other words share one token and long captions are cut, as a user's own captions need; False makes both an error,
    # as suits the embedded world's closed grammar.
    is_open_vocabulary: bool = False
    context_length: int = 18  # tokens of a caption, start and end token included
    embed_dim: int = 64  # length of the common embedding
    width: int = 16  # channels after the stem of the residual image tower, even
    text_width: int = 64  # of the text transformer, a multiple of 32
    text_layers: int = 2
    input_size: int = 64  # pixels to which images are resized; open_clip's ModifiedResNet divides them by 32

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", tuple(self.vocabulary))  # a list in a checkpoint


class WordTokenizer:
    """One token a word, between a start and an end token; padded on the right.

    The end token has the highest id, where open_clip's text tower looks for its output.
    """

    def __init__(self, vocabulary: Sequence[str], context_length: int, is_open_vocabulary: bool = False) -> None:
        self.ids = {word: FIRST_WORD + i for i, word in enumerate(vocabulary)}
        self.context_length = context_length
        self.is_open_vocabulary = is_open_vocabulary
        self.start = FIRST_WORD + len(self.ids)
        self.end = self.start + 1

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Turns texts into token ids, (texts, context_length) int64."""
        ids = torch.full((len(texts), self.context_length), PAD, dtype=torch.int64)
        for row, text in enumerate(texts):
            tokens = [self.start, *self._words(text), self.end]
            ids[row, : len(tokens)] = torch.tensor(tokens)
        return ids

    def _words(self, text: str) -> list[int]:
        words, room = split_words(text), self.context_length - 2
        if self.is_open_vocabulary:
            return [self.ids.get(word, UNKNOWN) for word in words[:room]]
        unknown = [word for word in words if word not in self.ids]
        if unknown:
            raise ValueError(f"unknown word {unknown[0]!r} in caption {text!r}; known words: {', '.join(self.ids)}")
        if len(words) > room:
            raise ValueError(f"caption {text!r} has {len(words)} words; the CLIP model reads {room} at most")
        return [self.ids[word] for word in words]


class ClipModel(StoredModel):
    """A small CLIP of open_clip's parts: ModifiedResNet image tower, causal text transformer, learned temperature."""

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
        """Resizes images (n, 3, S, S) in [-1, 1] to the tower's input size; the range stays."""
        size = self.config.input_size
        if images.shape[-1] == size:
            return images
        return F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False, antialias=True)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """image_features and text_features, each (n, embed_dim) of unit length, of images (n, 3, S, S) in [-1, 1] and
        tokens (n, context_length); also logit_scale.
        """
        return self.clip(self.preprocess(images), tokens)


@dataclass(eq=False)
class ClipScorer:
    """Scores how well images fit texts: the cosine of their embeddings, in [-1, 1]; some papers multiply it by 100."""

    model: CLIP | CustomTextCLIP
    tokenizer: Callable[[list[str]], torch.Tensor]  # texts -> token ids
    preprocess: Callable[[torch.Tensor], torch.Tensor]  # images (n, 3, S, S) in [-1, 1] -> the model's input
    name: str
    prompt_prefix: str = ""  # in front of every text

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)

    @classmethod
    def from_model(cls, model: ClipModel) -> ClipScorer:
        """Wraps a small CLIP model that the caller has trained."""
        return cls(model.clip, model.tokenizer, model.preprocess, name="lantern-clip")

    @classmethod
    def from_checkpoint(cls, path: Path | str, device: torch.device | str = "cpu") -> ClipScorer:
        """Reads a trained model onto a device; random weights, whose scores look plausible, are refused."""
        model = load_model(path, ClipModel)
        if not (read_metadata(path) or {}).get("num_steps"):
            raise ValueError(
                f"{path} holds a CLIP model without a training report; refusing to score with random weights"
            )
        return cls.from_model(model.to(device))

    @property
    def device(self) -> torch.device:
        """Where the towers lie."""
        return next(self.model.parameters()).device

    @torch.inference_mode()
    def embed_images(self, images: torch.Tensor) -> torch.Tensor:
        """Embeds images (n, 3, S, S) float32 in [-1, 1] as (n, embed_dim) float32 of unit length."""
        return F.normalize(self.model.encode_image(self.preprocess(images.to(self.device))).float(), dim=-1)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> torch.Tensor:
        """Embeds texts as (n, embed_dim) float32 of unit length."""
        tokens = self.tokenizer([self.prompt_prefix + text for text in texts]).to(self.device)
        return F.normalize(self.model.encode_text(tokens).float(), dim=-1)

    def score(self, images: torch.Tensor, texts: Sequence[str], batch_size: int = 64) -> torch.Tensor:
        """Scores image i, (n, 3, S, S) float32 in [-1, 1], against text i: (n,) float32 cosine, on the CPU."""
        scores = []
        for first in range(0, len(texts), batch_size):
            rows = slice(first, first + batch_size)
            scores.append((self.embed_images(images[rows]) * self.embed_texts(texts[rows])).sum(dim=-1).cpu())
        return torch.cat(scores)
