"""The model card of a run: a file that states the sizes, files and prompt settings of the model that a run trained."""

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
    """Complete the model card (description of a model) that was planned for a run, after its models are trained.

    Args:
        planned: the card that the config yields, as a dict (`ModelCard.to_dict` of `card_of(config)`).
        text: config section `text`.
        data_source: config key data.source. If captions of this source have a fixed vocabulary, as those of the shapes
            dataset, the card lists its words.
        target: weights file of the run's target. Its header states all sizes of the model.
        files: name of a part of the model, such as "target" -> path of its file, relative to the card.

    Raises:
        ValueError: the target is not in Lantern's file layout.
    """
    prompts, metadata = scene_prompts(text, data_source), read_metadata(target)
    if metadata is None:
        raise ValueError(f"{target} should hold a target in Lantern's layout, found another; run the workflow again")
    found = metadata["config"]
    elsewhere = {"vocab_size", "grid", "columns", "null_ids", "null_filler", *prompts.sizes()}
    names = [field.name for field in fields(TargetConfig) if field.name in found and field.name not in elsewhere]
    kept = [name for name in names if name in COMPARED_SIZES or found[name] != getattr(TargetConfig(), name)]
    sizes = {name: found[name] for name in kept}
    return replace(card_from(planned), prompts=prompts, target=sizes, files=files)
