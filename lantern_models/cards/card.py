"""The model card: the kind of prompts, the sizes, the sampling settings and the files of a model.

The target's config follows from the card. Sizes are a height and a width, or the side of a square.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from lantern.io import read_json
from lantern.models.config import TargetConfig
from lantern_models.sizes import Sides, shape_fields, shape_of, sides_of

FILE_NAME = "card.json"
NUM_WORD_IDS = 64  # number of ids that a target with the encoder `word_ids` embeds; the last is the null prompt


@dataclass(frozen=True)
class PromptSettings:
    """The prompts of a model: features of a caption's tokens, ids of its tokens, or the number of a class.

    Attributes:
        encoder: name of the text encoder: "words", "word_ids", "classes", "t5", or a key of `FAMILIES` in
            `lantern_models.families`.
        max_tokens: length of the longest prompt, in words or tokens. 0 if prompts are classes.
        caption_dim: number of channels of a token's feature. 0 if prompts are ids or classes.
        num_classes: number of classes, without the null class of classifier-free guidance. 0 if prompts are not
            classes.
        vocabulary: words that the encoders "words" and "word_ids" know. None allows any word.
        captions: regular expression of the captions that a target with the encoder "words" or "word_ids" has learnt.
            None allows any text.
        class_words: lists of words, if a class is a combination of one word of each list. None for all other prompts.
    """

    encoder: str
    max_tokens: int = 0
    caption_dim: int = 0
    num_classes: int = 0
    vocabulary: tuple[str, ...] | None = None
    captions: str | None = None
    class_words: tuple[tuple[str, ...], ...] | None = None

    def sizes(self) -> dict[str, object]:
        """Return those fields of `TargetConfig` that depend on the kind of prompts."""
        if self.encoder == "classes":
            # The null prompt is one more class.
            return {"num_text_tokens": 1, "num_prompt_ids": self.num_classes + 1, "null_ids": (self.num_classes,)}
        sizes: dict[str, object] = {"num_text_tokens": self.max_tokens}
        if self.encoder == "word_ids":
            return {**sizes, "num_prompt_ids": NUM_WORD_IDS, "null_ids": (NUM_WORD_IDS - 1,)}
        return {**sizes, "caption_dim": self.caption_dim} if self.caption_dim else sizes


class SamplingSettings(TypedDict, total=False):
    """Fields of a `SamplingConfig` that a model card may set."""

    top_k: int
    top_p: float
    filter_order: str
    cfg_scale: float


@dataclass(frozen=True)
class ImageSettings:
    """Sizes of a model's images: `size` in pixels, `grid` in codes, and `code_dim`, the channels of a code vector."""

    size: Sides
    grid: Sides
    codebook_size: int
    code_dim: int

    def __post_init__(self) -> None:
        for name in ("size", "grid"):
            # A list from JSON becomes a tuple, and two equal sides one number. A frozen class can only be changed so.
            object.__setattr__(self, name, sides_of(shape_of(getattr(self, name))))


@dataclass(frozen=True)
class HubFiles:
    """Files of a repository on the Hugging Face hub.

    Attributes:
        name: name of these files. The workflow downloads them into the folder `resources/<name>/`.
        repo: the repository, as owner/name.
        files: file names, each with its SHA-256, or with None if the SHA-256 is not known.
        revision: commit of the repository. None for the newest.
    """

    name: str
    repo: str
    files: Mapping[str, str | None]
    revision: str | None = None


@dataclass(frozen=True)
class ModelCard:
    """The card of a model, an entry of `CARDS` or the file card.json of a finished run.

    Attributes:
        name: the name in published tables.
        target: further fields of a `TargetConfig`, by name. Those that follow from `prompts` or `images` are left out.
        trees: default draft trees. "static" is the name of a static tree, "dynamic" has the fields of a
            `DynamicTreeOptions`.
        neighbours: measure of distance between codes, by which nearest codes are found, see
            `lantern.codebook.nearest_codes`.
        files: keys are "target", "drafter" (the draft model), "heads" (shift heads or a state head, which make drafts),
            "tokenizer" (the image tokenizer) and "text" (the text encoder). A value is a path relative to the card, or
            files on the hub. A key is missing if the model has no such files.
        licence: of the weights.
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
        """Return the config of the target. Entries of `target` win over those of `prompts` and `images`."""
        sizes = {**self.prompts.sizes(), **shape_fields(shape_of(self.images.grid)), **self.target}
        # The line end is one more token after the codes, and True counts as 1.
        has_line_end = self.target.get("line_end") is not None
        return TargetConfig(**sizes, vocab_size=self.images.codebook_size + has_line_end)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values for `card_from`."""
        return asdict(self)


def card_from(known: Mapping[str, Any]) -> ModelCard:
    """Restore a model card from the result of `to_dict`. Values that do not fit raise a TypeError or KeyError."""
    files = {part: file if isinstance(file, str) else HubFiles(**file) for part, file in known["files"].items()}
    # JSON has lists, and a frozen card has tuples.
    prompts: dict[str, Any] = {
        name: _as_tuples(value) if isinstance(value, list) else value for name, value in known["prompts"].items()
    }
    settings = {"prompts": PromptSettings(**prompts), "images": ImageSettings(**known["images"]), "files": files}
    return ModelCard(**{**known, **settings})


def read_card(folder: Path) -> ModelCard:
    """Read the model card in a folder, from the file card.json.

    Raises:
        FileNotFoundError: the folder holds no card.
        ValueError: the card is damaged, or another version of Lantern wrote it.
    """
    path = folder / FILE_NAME
    try:
        return card_from(read_json(path))
    except (TypeError, KeyError, AttributeError) as error:  # the last one if JSON has no mapping where it should
        raise ValueError(f"{path} is no model card of this version ({error}); run the workflow again") from error


def _as_tuples(values: list) -> tuple:
    return tuple(_as_tuples(value) if isinstance(value, list) else value for value in values)
