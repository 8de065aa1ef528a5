"""The card of a run's model, written when its weights are there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from lantern.cards.card import ModelCard, card_from
from lantern.checkpoints.native import read_metadata
from lantern.models.config import COMPARED_SIZES, TargetConfig
from lantern_pipeline.data.text_encoders import scene_prompts
from lantern_pipeline.settings.run_config import PromptReading


def make_run_card(
    planned: Mapping[str, object], text: PromptReading, data_source: str, target: Path, files: Mapping[str, str]
) -> ModelCard:
    """Complete the card that a run was planned with.

    Args:
        planned: `ModelCard.to_dict` of `card_of(config)`.
        text: config section `text`.
        data_source: config key data.source; the card holds the words of the shapes dataset.
        target: the run's target, whose file states all of its sizes.
        files: paths of the card's files, relative to the card.
    """
    prompts, metadata = scene_prompts(text, data_source), read_metadata(target)
    if metadata is None:
        raise ValueError(f"{target} should hold a target in Lantern's layout, found another; run the workflow again")
    found = metadata["config"]
    elsewhere = {"vocab_size", "grid", "null_ids", "null_filler", *prompts.sizes()}
    names = [field.name for field in fields(TargetConfig) if field.name in found and field.name not in elsewhere]
    kept = [name for name in names if name in COMPARED_SIZES or found[name] != getattr(TargetConfig(), name)]
    sizes = {name: found[name] for name in kept}
    return replace(card_from(planned), prompts=prompts, target=sizes, files=files)
