"""The text encoder of a run, built from config section `text`.

`text` is this section, and `data_source` is config key data.source, which names the dataset of the captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from lantern.prompts import TextEncoder
from lantern_models.cards.card import PromptSettings
from lantern_models.families import FAMILIES
from lantern_models.sizes import shape_of
from lantern_models.text.encoders import make_text_encoder as make_encoder
from lantern_models.text.words import split_words
from lantern_pipeline.data.model_cards import prompt_settings
from lantern_pipeline.data.text_features import StoredTextEncoder
from lantern_pipeline.fetch.entries import Resource
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.schema.run_config import PromptReading, TextSettings
from lantern_pipeline.world.scenes import BACKGROUNDS, COLOURS, SHAPES
from lantern_pipeline.world.worlds import WORLDS

# The class of a scene consists of its background, and of the colour and the shape of the caption's first object.
CLASS_WORDS = (tuple(BACKGROUNDS), tuple(COLOURS), tuple(SHAPES))


def unknown_words(texts: Sequence[str], captions: Sequence[str]) -> list[str]:
    """Return the words of some prompts, once each, that occur in no caption on which the target was trained."""
    known = {word for caption in captions for word in split_words(caption)}
    # A dict keeps the order of the prompts.
    return [word for word in dict.fromkeys(word for text in texts for word in split_words(text)) if word not in known]


def scene_prompts(text: PromptReading, data_source: str) -> PromptSettings:
    """Return the settings of prompt encoding that a run writes into its model card.

    If the dataset is a world, encoders of words get its vocabulary and a regular expression that every caption matches.
    For classes of the shapes dataset, the settings contain CLASS_WORDS.
    """
    prompts = prompt_settings(text)
    if data_source not in WORLDS:
        return prompts
    if prompts.encoder in ("words", "word_ids"):
        world = WORLDS[data_source]
        return replace(prompts, vocabulary=world.vocabulary, captions=world.captions)
    if data_source != "scenes" or prompts.encoder != "classes":
        return prompts
    num_classes = prod(map(len, CLASS_WORDS))
    if prompts.num_classes != num_classes:
        raise ValueError(
            f"config key text.num_classes must be {num_classes} for the shapes dataset: backgrounds times colours "
            f"times shapes, got {prompts.num_classes}"
        )
    return replace(prompts, class_words=CLASS_WORDS)


def make_text_encoder(text: TextSettings, data_source: str, features: str | Sequence[str] = ()) -> TextEncoder:
    """Build the encoder that text.encoder names.

    Args:
        features: files that the encoder reads. If text.encoder is "t5", these are files of stored features. If
            text.encoder names a model family (FAMILIES), it is one tokenizer.json, or empty for the file in
            text.checkpoint. Other encoders read no file.
    """
    files = [features] if isinstance(features, str) else list(features)
    if text.encoder == "t5":
        # T5 is large, so a job of its own computes its features, once for all other jobs.
        return StoredTextEncoder(files)
    prompts = scene_prompts(text, data_source)
    if text.encoder not in FAMILIES:
        return make_encoder(prompts)
    if files:
        file = files[0]
    elif text.checkpoint is None:
        raise ValueError(f"text.checkpoint must name the target's tokenizer.json if text.encoder is {text.encoder}")
    else:
        # text.checkpoint is a path or the name of an entry of config section `resources`.
        file = text.checkpoint if Path(text.checkpoint).exists() else Resource(text.checkpoint).manifest
    # Some families write the size of the image, in codes, into the prompt.
    shape, small_shape = map(shape_of, text.grids)
    return make_encoder(prompts, resource_path(file), shape=shape, small_shape=small_shape)
