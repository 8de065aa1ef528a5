"""Construction of a model's text encoder, and a check that the target was trained with this encoder.

A target understands only the features with which it was trained. The settings that determine them are therefore stored
in the target's file, under "text" in the report of its training, and compared when the target is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lantern.prompts import TextEncoder
from lantern_models.cards.card import PromptSettings
from lantern_models.checkpoints.weight_files import check_equal
from lantern_models.families import FAMILIES
from lantern_models.text.classes import ClassEncoder, WordClassEncoder
from lantern_models.text.words import WordEmbeddingEncoder, WordIdEncoder

WORD_FEATURES = {"seed": 0, "phrase_words": 3}  # arguments of `WordEmbeddingEncoder` with which targets are trained


def make_text_encoder(
    prompts: PromptSettings,
    file: Path | None = None,
    *,
    shape: tuple[int, int] = (0, 0),
    small_shape: tuple[int, int] = (0, 0),
    device: torch.device | str = "cpu",
) -> TextEncoder:
    """Make the text encoder that a model card names in `prompts`.

    Args:
        file: for the encoder "t5", the folder of a T5. For a family of transformers models, a tokenizer.json or its
            folder. Not needed for other encoders.
        shape: height and width of the image in codes. Only needed if the model's prompts state them, as Emu3's and
            GLM-Image's do.
        small_shape: the same of the preview that GLM-Image generates before the image, (0, 0) for other models.
        device: device of a T5.

    Raises:
        ValueError: `file` is needed but not given, is damaged, or belongs to another encoder.
        FileNotFoundError: `file` or one of the files in it does not exist.
        ModuleNotFoundError: a package of the extra `transformers` is not installed.
    """
    name = prompts.encoder
    if name == "classes":
        words = prompts.class_words
        return ClassEncoder(prompts.num_classes) if words is None else WordClassEncoder(words)
    if name == "word_ids":
        return WordIdEncoder(prompts.vocabulary or (), prompts.max_tokens, prompts.captions)
    if name not in (*FAMILIES, "t5"):  # "words"
        return WordEmbeddingEncoder(
            prompts.vocabulary, prompts.caption_dim, prompts.max_tokens, captions=prompts.captions, **WORD_FEATURES
        )
    if file is None:
        raise ValueError(f"the text encoder {name} is read from a file, got none; pass the path of its file or folder")
    try:
        # Imported late: tokenizers and transformers are optional packages.
        if name in FAMILIES:
            from lantern_models.text.token_prompts import TokenPromptEncoder

            return TokenPromptEncoder.of_file(name, file, prompts.max_tokens, shape=shape, small_shape=small_shape)
        from lantern_models.text.t5 import T5TextEncoder

        return T5TextEncoder(file, caption_dim=prompts.caption_dim, max_tokens=prompts.max_tokens, device=device)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the text encoder {name} needs {error.name}; install it from a clone: pip install '.[transformers]'",
            name=error.name,
        ) from error


def describe_features(encoder: str) -> dict[str, str | int]:
    """Return the settings that determine the features of a prompt, to be stored in the file of a target."""
    return {"encoder": encoder, **(WORD_FEATURES if encoder == "words" else {})}


def compare_features(path: Path, report: Mapping[str, Any], encoder: str) -> None:
    """Raise a ValueError if an encoder's settings differ from those in the report of a target's training."""
    # Only stored settings are compared: published targets have no report.
    wanted = describe_features(encoder)
    for key, value in report.get("text", {}).items():
        check_equal(path, f"text.{key}", wanted.get(key), value, "text encoder")
