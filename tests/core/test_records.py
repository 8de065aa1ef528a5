"""Tests of records: they survive the disk, join in the requested order, and damaged ones are refused."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from every_method import METHODS, spec_of

from helpers.tiny_models import verifier_from
from lantern.io import DamagedFileError, load_tensors, save_tensors
from lantern.records import GenerationRecords, concatenate_records, load_records, save_records
from lantern.sampling import SamplingConfig


def make_records(ids: list[str]) -> GenerationRecords:
    n = len(ids)
    return GenerationRecords(
        prompt_ids=ids,
        codes=torch.arange(n * 4, dtype=torch.int32).view(n, 4),
        target_forwards=torch.full((n,), 4, dtype=torch.int32),
        step_lengths=torch.ones(n, 4, dtype=torch.int16),
        accepted_nodes=torch.zeros(n, 4, dtype=torch.int16),
        is_substituted=torch.zeros(n, 4, dtype=torch.bool),
        seconds=torch.rand(n),
        margins=torch.zeros(n, 0),
        metadata={"method": {"method_id": "x"}, "temperature": 1.0},
    )


def test_records_come_back_and_other_files_are_named(tmp_path):
    path, records = tmp_path / "r.safetensors", make_records(["a", "b", "c"])
    save_records(path, records)
    loaded = load_records(path)
    assert loaded.prompt_ids == ["a", "b", "c"] and loaded.metadata == records.metadata
    assert torch.equal(loaded.codes, records.codes)
    tensors, metadata = load_tensors(path)
    del tensors["accepted_nodes"]
    save_tensors(path, tensors, metadata)
    with pytest.raises(ValueError, match=r"lacks accepted_nodes: another version .* wrote it"):
        load_records(path)


def test_a_file_with_more_or_fewer_ids_than_images_is_damaged(tmp_path):
    path = tmp_path / "r.safetensors"
    for ids in (["a"], ["a", "b", "c"]):
        save_records(path, replace(make_records(["a", "b"]), prompt_ids=ids))
        with pytest.raises(DamagedFileError, match=f"has {len(ids)} prompt ids for 2 images"):
            load_records(path)


def test_join_follows_the_order_of_ids_and_takes_the_first_metadata():
    first, second = make_records(["b", "d"]), make_records(["a"])
    first.metadata["device"] = "cuda"
    joined = concatenate_records([first, second], ["a", "b", "d"])
    assert joined.metadata == first.metadata != second.metadata
    assert joined.prompt_ids == ["a", "b", "d"]
    assert joined.codes.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match="prompt a appears in two of the files"):
        concatenate_records([make_records(["a"]), make_records(["a"])])
    with pytest.raises(ValueError, match=r"\['b'\] are not in both"):
        concatenate_records([make_records(["a"])], ["a", "b"])


def test_some_images_in_the_order_asked_for():
    records = make_records(["a", "b", "c"])
    chosen = records.select([2, 0])
    assert chosen.prompt_ids == ["c", "a"] and len(chosen) == 2
    assert chosen.codes.tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert torch.equal(chosen.seconds, records.seconds[[2, 0]])
    assert chosen.margins.shape == (2, 0) and chosen.metadata == records.metadata
    assert len(records.select([])) == 0


def test_substitutions_are_counted_exactly_where_the_target_draws_a_token_of_its_own():
    """Verification knows where the target samples a token. Without relaxation the authors' residual is exact."""
    for name in METHODS:
        for temperature in (0.0, 1.0):
            check_substitutions(name, temperature)


def check_substitutions(name: str, temperature: float) -> None:
    method, table = spec_of(name), torch.zeros(4, 5, dtype=torch.int64)
    verifier = verifier_from(method, SamplingConfig(temperature=temperature), table, torch.zeros(4, 2))
    records = make_records(["a", "b"])
    records.is_substituted[1, :3] = True
    shape = asdict(method)["tree_shape"]
    records.metadata = {"method": method.to_dict(), "tree_shape": shape, "temperature": temperature}
    is_told = verifier.samples_target_tokens or method.drafts is None
    is_told &= method.drafts != "path_relax" or temperature == 0  # which has a verifier of its own
    found, expected = records.substitutions, [0.0, 3.0] if is_told else [torch.nan] * 2
    assert found.tolist() == pytest.approx(expected, nan_ok=True), (name, temperature)
