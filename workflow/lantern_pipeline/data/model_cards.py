"""Conversion between model cards and config sections.

A model card is a description of a model: how it encodes prompts, its sizes and its files. If a config names a published
model, the model's card sets config keys. Conversely, the card of a run's model is computed from the config. Snakemake
imports this module while it plans the jobs, so the module does not import torch.
"""

from __future__ import annotations

from typing import Any

from lantern_models.cards.card import HubFiles, ImageSettings, ModelCard, PromptSettings
from lantern_models.cards.published import CARDS, HUB_FILES, card_of_family
from lantern_models.families import FAMILIES
from lantern_models.sizes import FFN_MULTIPLE, LLAMAGEN_SIZES, Sides, shape_of, sides_of
from lantern_pipeline.schema.run_config import PromptReading, RunConfig, TargetSizes

FROM_FILES = ("t5", *FAMILIES)  # values of text.encoder that need text.checkpoint
ENCODERS = ("words", "word_ids", "classes", *FROM_FILES)


def card_sections(name: str | None) -> dict[str, dict[str, object]]:
    """Return the config values, section -> key -> value, that config key `model` sets.

    The user's values override them.
    """
    if not isinstance(name, str):  # null; the schema rejects other types
        return {}
    if name not in CARDS:
        raise ValueError(f"config key model must be one of {', '.join(CARDS)}, or null, got {name!r}")
    card = CARDS[name]
    prompts, images = card.prompts, card.images
    # A part of the model -> its entry of config section `resources`, see `hub_entries`.
    files = {part: file.name for part, file in card.files.items() if isinstance(file, HubFiles)}
    # A size of 0 means that the encoder has none, so the config keeps its default.
    sizes = {key: getattr(prompts, key) for key in ("max_tokens", "caption_dim", "num_classes")}
    return {
        "data": {"image_size": sides_in_config(images.size)},
        "text": {
            "encoder": prompts.encoder,
            "checkpoint": files.get("text"),
            **{key: value for key, value in sizes.items() if value},
        },
        "tokenizer": {
            "checkpoint": files["tokenizer"],
            "grid": sides_in_config(images.grid),
            "codebook_size": images.codebook_size,
            "code_dim": images.code_dim,
        },
        "target": {
            "checkpoint": files["target"],
            "name": card.name,
            # Other fields of the card have no config key; `target_fields` computes them.
            **{key: value for key, value in card.target.items() if key in TargetSizes.model_fields},
        },
        "drafter": {"checkpoint": files.get("drafter")},
        "sampling": dict(card.sampling),
        "codebook": {"neighbours": card.neighbours},
        "draft_tree": dict(card.trees),
    }


def sides_in_config(sides: Sides) -> int | list[int]:
    """Return the size of images in the form of config files: the side of a square, else [height, width]."""
    return sides if isinstance(sides, int) else [*sides]


def hub_entries() -> dict[str, dict[str, object]]:
    """Return entries of config section `resources` by which the workflow downloads published models.

    Returns:
        Name of an entry -> its keys and values: repo and revision on the Hugging Face hub, and files.
    """
    return {
        name: {"repo": hub.repo, "revision": hub.revision, "files": dict(hub.files)} for name, hub in HUB_FILES.items()
    }


def prompt_settings(text: PromptReading) -> PromptSettings:
    """Build the part of a model card that states how prompts are encoded.

    The words of an encoder with a fixed vocabulary are missing in the result, because config section `text` does not
    state them. `scene_prompts` adds them.
    """
    if text.encoder == "classes":
        return PromptSettings(text.encoder, num_classes=text.num_classes)
    # The other encoders return token ids, which the target embeds.
    has_features = text.encoder in ("words", "t5")
    return PromptSettings(text.encoder, text.max_tokens, caption_dim=text.caption_dim if has_features else 0)


def card_of(config: RunConfig) -> ModelCard:
    """Return the card of the model that a config describes, without the paths of its files."""
    tokenizer = config.tokenizer
    published = CARDS.get(config.model or "")
    return ModelCard(
        config.target.name or config.experiment,
        prompt_settings(config.text),
        ImageSettings(
            sides_of(shape_of(config.data.image_size)),
            sides_of(shape_of(tokenizer.grid)),
            tokenizer.codebook_size,
            tokenizer.code_dim,
        ),
        target_fields(config),
        config.sampling.settings,
        config.draft_tree.model_dump(),
        config.codebook.neighbours,
        # A run's own weights have no licence yet.
        licence="" if published is None else published.licence,
    )


def target_fields(config: RunConfig) -> dict[str, Any]:
    """Return the sizes of the target that the config determines, as fields of `TargetConfig`."""
    encoder = config.text.encoder
    target = config.target
    found = target.keys_of(TargetSizes)
    found["small_grid"], small_columns = config.small_shape
    # As in `TargetConfig`, 0 columns mean a square, so the field is left out.
    if small_columns != found["small_grid"]:
        found["small_columns"] = small_columns
    if target.size is not None:
        found |= LLAMAGEN_SIZES[target.size]
    is_llamagen = encoder in ("t5", "classes") and target.checkpoint is not None
    # LlamaGen's sizes and weights have a feed-forward part of rounded width.
    if target.size is not None or is_llamagen:
        found["ffn_multiple"] = FFN_MULTIPLE
    # The number of embedded prompt ids has no config key, since it is a property of the family.
    card = card_of_family(encoder) if encoder in FAMILIES else None
    return found if card is None else {**found, "num_prompt_ids": card.target["num_prompt_ids"]}
