"""Construction of a model's text encoder, and comparison with the features that a target was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lantern.cards.card import PromptSettings
from lantern.checkpoints.files import check_equal
from lantern.models.families import FAMILIES
from lantern.text_encoders.base import TextEncoder
from lantern.text_encoders.classes import ClassEncoder, WordClassEncoder
from lantern.text_encoders.words import WordEmbeddingEncoder, WordIdEncoder

WORD_FEATURES = {"seed": 0, "phrase_words": 3}  # arguments of `WordEmbeddingEncoder` that a target is trained with


def make_text_encoder(
    prompts: PromptSettings,
    file: Path | None = None,
    *,
    large: int = 0,
    small: int = 0,
    device: torch.device | str = "cpu",
) -> TextEncoder:
    """Make the text encoder of a model.

    Args:
        prompts: the model's prompts.
        file: folder of a T5, or a tokenizer.json or its folder. Other encoders do not use it.
        large: side of the image in codes, for prompts that state it.
        small: side of the smaller image that comes first, or 0.
        device: device of a T5.

    Raises:
        ValueError: the file is damaged or belongs to another encoder.
        FileNotFoundError: a file is missing.
        ModuleNotFoundError: a package of the extra `transformers` is missing.
    """
    name = prompts.encoder
    if name == "classes":
        words = prompts.class_words
        return ClassEncoder(prompts.num_classes) if words is None else WordClassEncoder(words)
    if name == "word_ids":
        return WordIdEncoder(prompts.vocabulary or (), prompts.max_tokens)
    if name not in (*FAMILIES, "t5"):
        return WordEmbeddingEncoder(prompts.vocabulary, prompts.caption_dim, prompts.max_tokens, **WORD_FEATURES)
    if file is None:
        raise ValueError(f"the text encoder {name} is read from a file, got none; pass the path of its file or folder")
    try:
        if name in FAMILIES:
            from lantern.text_encoders.tokens import TokenPromptEncoder

            return TokenPromptEncoder.of_file(name, file, prompts.max_tokens, large=large, small=small)
        from lantern.text_encoders.t5 import T5TextEncoder

        return T5TextEncoder(file, caption_dim=prompts.caption_dim, max_tokens=prompts.max_tokens, device=device)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the text encoder {name} needs {error.name}; install it from a clone: pip install '.[transformers]'",
            name=error.name,
        ) from error


def describe_features(encoder: str) -> dict[str, str | int]:
    """Return the settings that determine a prompt's features, for the report of a target."""
    return {"encoder": encoder, **(WORD_FEATURES if encoder == "words" else {})}


def compare_features(path: Path, report: Mapping[str, Any], encoder: str) -> None:
    """Compare the features that a target was trained on with those of its text encoder.

    Args:
        path: file of the target.
        report: report of the training in that file.
        encoder: name of the text encoder.

    Raises:
        ValueError: they differ, so that the target would ignore the prompt.
    """
    wanted = describe_features(encoder)
    for key, value in report.get("text", {}).items():
        check_equal(path, f"text.{key}", wanted.get(key), value, "text encoder")
