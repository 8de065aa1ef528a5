"""Shards: which part of a list is a job's, and what the generation jobs of several methods wrote, brought together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from lantern.records import GenerationRecords, concatenate_records, load_records

T = TypeVar("T")


def select_shard(items: Sequence[T], scatteritem: str) -> list[T]:
    """The items of one shard: "2-of-4" takes every fourth, beginning with the second.

    Raises:
        ValueError: there are more shards than items.
    """
    number, total = (int(word) for word in scatteritem.split("-of-"))
    if total > len(items):
        raise ValueError(
            f"there are {total} shards for {len(items)} prompts or images; ask for fewer (config keys "
            "generation.num_shards, text.num_shards, data.num_shards)"
        )
    return list(items[number - 1 :: total])


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
    # method by method, so that no more than one is held twice
    return {method_id: concatenate_records(parts.pop(method_id), prompt_ids) for method_id in list(parts)}
