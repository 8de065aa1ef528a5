"""Tests that shards partition a list."""

import pytest

from lantern_pipeline.data.shards import select_shard

ITEMS = ["a", "b", "c", "d", "e"]


def test_shards_part_the_items():
    assert [select_shard(ITEMS, f"{number}-of-3") for number in (1, 2, 3)] == [["a", "d"], ["b", "e"], ["c"]]
    assert select_shard(ITEMS, "1-of-1") == ITEMS


def test_more_shards_than_items_are_refused():
    with pytest.raises(ValueError, match=r"6 shards for 5 prompts or images; use fewer"):
        select_shard(ITEMS, "1-of-6")
