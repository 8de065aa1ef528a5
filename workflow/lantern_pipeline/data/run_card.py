"""The model card of a run: a file that states the sizes, files and prompt settings of the model that a run trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from lantern.models.config import TargetConfig
from lantern.models.stored import read_metadata
from lantern_models.cards.card import ModelCard, card_from
from lantern_models.sizes import COMPARED_SIZES
from lantern_pipeline.data.text_encoders import scene_prompts
from lantern_pipeline.schema.run_config import PromptReading


def make_run_card(
    planned: Mapping[str, object], text: PromptReading, data_source: str, target: Path, files: Mapping[str, str]
) -> ModelCard:
    """Complete the model card that was planned for a run, after its models are trained.

    Args:
        planned: the card that the config yields, as a dict (`ModelCard.to_dict` of `card_of(config)`).
        text: config section `text`.
        data_source: config key data.source. The card lists the words of its captions if they are a fixed vocabulary.
        target: weights file of the run's target. Its header states all sizes of the model.
        files: name of a part of the model, such as "target" -> path of its file, relative to the card.
    """
    prompts, metadata = scene_prompts(text, data_source), read_metadata(target)
    if metadata is None:
        raise ValueError(f"{target} should hold a target in Lantern's layout, found another; run the workflow again")
    found = metadata["config"]
    # Sizes that the card states in its sections on images and prompts, or that follow from them.
    elsewhere = {"vocab_size", "grid", "columns", "null_ids", "null_filler", *prompts.sizes()}
    names = [field.name for field in fields(TargetConfig) if field.name in found and field.name not in elsewhere]
    # A card lists what a reader must check or cannot guess: the compared sizes, and what is not the default.
    kept = [name for name in names if name in COMPARED_SIZES or found[name] != getattr(TargetConfig(), name)]
    sizes = {name: found[name] for name in kept}
    return replace(card_from(planned), prompts=prompts, target=sizes, files=files)
