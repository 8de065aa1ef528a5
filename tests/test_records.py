"""Records survive the disk, join in the order asked for, and refuse what is damaged."""

from __future__ import annotations

import pytest
import torch

from lantern.records import GenerationRecords, concatenate_records, load_records, save_records


def make_records(ids: list[str]) -> GenerationRecords:
    n = len(ids)
    return GenerationRecords(
        prompt_ids=ids,
        codes=torch.arange(n * 4, dtype=torch.int32).view(n, 4),
        target_forwards=torch.full((n,), 4, dtype=torch.int32),
        step_lengths=torch.ones(n, 4, dtype=torch.int16),
        is_substituted=torch.zeros(n, 4, dtype=torch.bool),
        seconds=torch.rand(n),
        margins=torch.zeros(n, 0),
        metadata={"method": {"method_id": "x"}, "temperature": 1.0},
    )


def test_round_trip(tmp_path):
    records = make_records(["a", "b", "c"])
    save_records(tmp_path / "r.safetensors", records)
    loaded = load_records(tmp_path / "r.safetensors")
    assert loaded.prompt_ids == ["a", "b", "c"]
    assert torch.equal(loaded.codes, records.codes)
    assert loaded.metadata == records.metadata


def test_join_follows_the_order_of_ids():
    joined = concatenate_records([make_records(["b", "d"]), make_records(["a"])], ["a", "b", "d"])
    assert joined.prompt_ids == ["a", "b", "d"]
    assert joined.codes.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]


def test_twice_or_missing_is_an_error():
    with pytest.raises(ValueError, match="prompt a appears in two shards"):
        concatenate_records([make_records(["a"]), make_records(["a"])])
    with pytest.raises(ValueError, match=r"\['b'\] are not in both"):
        concatenate_records([make_records(["a"])], ["a", "b"])


def test_truncated_or_foreign_files_are_named(tmp_path):
    path = tmp_path / "r.safetensors"
    save_records(path, make_records(["a", "b"]))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"r\.safetensors"):
        load_records(path)
