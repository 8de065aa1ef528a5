"""The captions of the images that models are trained on: written once, with ids, and then read by every stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lantern.prompts import Prompt
from lantern_pipeline.data.image_sources import hold_out, make_source
from lantern_pipeline.data.prompt_files import load_prompt_set


def training_captions(
    data: Mapping[str, Any], num_val: int, seed: int, path: str | Path | None = None
) -> dict[str, list[Prompt]]:
    """Captions by split: "train", all of them, and "val", the first `num_val` that are held out.

    Args:
        data: config section `data`. Captions without images come from a prompt file, as `captions` describes it, and a
            tenth of them, drawn by `seed`, is held out.
        num_val: captions of "val"; captions without images may have fewer.
        seed: run seed.
        path: the prompt file, where data.source is captions.

    Returns:
        Captions with ids, in the order of the source's images.

    Raises:
        ValueError: no source of captions.
    """
    if data["source"] == "captions":
        train, held_out = hold_out(load_prompt_set(path, data["captions"], seed), seed)
        return {"train": train, "val": held_out[:num_val]}
    source = make_source(data, seed)
    if source is None:
        raise ValueError("data.source none has no captions to train on; choose folder or captions")
    return {"train": source.prompts("train", source.num_train), "val": source.prompts("val", num_val)}
