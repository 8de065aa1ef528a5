"""The model card: prompts, sizes, sampling and files of a model in one record.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from lantern.io import read_json
from lantern.models.config import TargetConfig

FILE_NAME = "card.json"
NUM_WORD_IDS = 64  # number of ids that a target with the encoder `word_ids` embeds; the last is its null prompt


@dataclass(frozen=True)
class PromptSettings:
    """The prompts of a model.

    Attributes:
        encoder: "words", "word_ids", "classes", "t5", or a family of `lantern.models.families`.
        max_tokens: length of the longest prompt, in words or tokens. 0 if prompts are classes.
        caption_dim: channels of a token's feature. 0 if prompts are ids.
        num_classes: number of classes without the null class. 0 if prompts are not classes.
        vocabulary: words that "words" and "word_ids" know. None allows any word.
        class_words: lists of words. A class is a combination of one word of each list. None if prompts are class
            numbers.
    """

    encoder: str
    max_tokens: int = 0
    caption_dim: int = 0
    num_classes: int = 0
    vocabulary: tuple[str, ...] | None = None
    class_words: tuple[tuple[str, ...], ...] | None = None

    def sizes(self) -> dict[str, object]:
        """Return the fields of a `TargetConfig` that follow from the prompts."""
        if self.encoder == "classes":
            return {"num_text_tokens": 1, "num_prompt_ids": self.num_classes + 1, "null_ids": (self.num_classes,)}
        sizes: dict[str, object] = {"num_text_tokens": self.max_tokens}
        if self.encoder == "word_ids":
            return {**sizes, "num_prompt_ids": NUM_WORD_IDS, "null_ids": (NUM_WORD_IDS - 1,)}
        return {**sizes, "caption_dim": self.caption_dim} if self.caption_dim else sizes


class SamplingSettings(TypedDict, total=False):
    """Fields of a `SamplingConfig` that a card may set."""

    top_k: int
    top_p: float
    filter_order: str
    cfg_scale: float


@dataclass(frozen=True)
class ImageSettings:
    """Sizes of a model's images.

    Attributes:
        size: pixels of a side.
        grid: codes of a side.
        codebook_size: number of codes.
        code_dim: channels of a code.
    """

    size: int
    grid: int
    codebook_size: int
    code_dim: int


@dataclass(frozen=True)
class HubFiles:
    """Files of a repository on the Hugging Face hub.

    Attributes:
        name: the workflow downloads the files into `resources/<name>/`.
        repo: owner/name of the repository.
        files: file names with their SHA-256, or None if it is not known.
        revision: commit. None takes the newest.
    """

    name: str
    repo: str
    files: Mapping[str, str | None]
    revision: str | None = None


@dataclass(frozen=True)
class ModelCard:
    """The complete description of a model.

    Attributes:
        name: name of the model in published tables.
        prompts: the model's prompts.
        images: sizes of its images.
        target: fields of a `TargetConfig` that follow from neither `prompts` nor `images`.
        sampling: fields of a `SamplingConfig` with which the model is sampled.
        trees: trees of the draft model: "static" is the name of a tree, "dynamic" has options of a
            `DynamicTreeOptions`.
        neighbours: kind of its nearest codes, see `lantern.codebook`.
        files: files of the parts "target", "drafter", "tokenizer" and "text": a path relative to the card, or files on
            the hub. A part that the model does not have is left out.
        licence: licence of the weights.
    """

    name: str
    prompts: PromptSettings
    images: ImageSettings
    target: Mapping[str, object]
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    trees: Mapping[str, object] = field(default_factory=dict)
    neighbours: str = "l2_normalised"
    files: Mapping[str, str | HubFiles] = field(default_factory=dict)
    licence: str = ""

    def target_config(self) -> TargetConfig:
        """Return the sizes of the target."""
        sizes = {**self.prompts.sizes(), "grid": self.images.grid, **self.target}
        has_line_end = self.target.get("line_end") is not None
        return TargetConfig(**sizes, vocab_size=self.images.codebook_size + has_line_end)

    def to_dict(self) -> dict[str, object]:
        """Return the card as JSON values, from which `card_from` makes it again."""
        return asdict(self)


def card_from(known: Mapping[str, Any]) -> ModelCard:
    """Make a card from the JSON values that `ModelCard.to_dict` returned.

    Raises:
        TypeError: the values are something else.
        KeyError: the values are something else.
    """
    files = {part: file if isinstance(file, str) else HubFiles(**file) for part, file in known["files"].items()}
    prompts = {name: _as_tuples(value) for name, value in known["prompts"].items()}
    settings = {"prompts": PromptSettings(**prompts), "images": ImageSettings(**known["images"]), "files": files}
    return ModelCard(**{**known, **settings})


def read_card(folder: Path) -> ModelCard:
    """Read the card in a folder.

    Raises:
        FileNotFoundError: the folder holds no card.
        ValueError: the card is damaged, or from another version.
    """
    path = folder / FILE_NAME
    try:
        return card_from(read_json(path))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is no model card of this version ({error}); run the workflow again") from error


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
