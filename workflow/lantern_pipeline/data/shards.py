"""Selection of a shard: the part of the prompts or images that one of several parallel jobs processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def select_shard(items: Sequence[T], scatteritem: str) -> list[T]:
    """Return the items of one shard.

    Args:
        scatteritem: Snakemake's name of the shard. "2-of-4" takes every fourth item, beginning with the second.
    """
    number, total = (int(word) for word in scatteritem.split("-of-"))
    if total > len(items):  # some shards would be empty
        raise ValueError(
            f"there are {total} shards for {len(items)} prompts or images; use fewer (config keys "
            "generation.num_shards, text.num_shards, data.num_shards)"
        )
    return list(items[number - 1 :: total])
