"""Brings together what the generation jobs of several methods wrote, each in one or more shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lantern.records import GenerationRecords, concatenate_records, load_records


def load_shards(paths: Sequence[str | Path], prompt_ids: Sequence[str]) -> dict[str, GenerationRecords]:
    """Reads the shards of many methods.

    Args:
        paths: record files of one prompt set and temperature.
        prompt_ids: the prompt set, in the order wanted.

    Returns:
        Method id -> records of all prompts, in the order in which the methods first appear.

    Raises:
        ValueError: a file that is damaged, or shards that do not hold exactly these prompts.
    """
    parts: dict[str, list[GenerationRecords]] = {}
    for path in paths:
        records = load_records(Path(path))
        parts.setdefault(records.metadata["method"]["method_id"], []).append(records)
    return {method_id: concatenate_records(found, prompt_ids) for method_id, found in parts.items()}
