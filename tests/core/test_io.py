"""Tests of files: they are complete or absent, and unreadable ones are named."""

import errno
import os

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from lantern.io import DamagedFileError, atomic_path, load_tensors, read_json, save_tensors, write_json, write_text


@pytest.mark.parametrize("mask, mode", [(0o022, 0o644), (0o007, 0o660), (0o077, 0o600)])
def test_files_have_the_mode_that_the_umask_leaves(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        save_tensors(tmp_path / "codes.safetensors", {"codes": torch.zeros(2)})
        write_text(tmp_path / "table.csv", "a")
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {mode}


def test_a_file_appears_whole_in_a_new_folder_and_a_killed_writers_alone_is_removed(tmp_path):
    target = tmp_path / "a" / "codes.npy"
    with atomic_path(target) as temporary:
        assert temporary.parent == target.parent
        assert temporary.name.startswith(".") and temporary.suffix == ".npy"
        temporary.write_bytes(b"half")
        assert not target.exists()
        (target.parent / ".codes.0123abcd.npy").write_bytes(b"left behind")
        (target.parent / ".codes.other.npy").write_bytes(b"mine")
    assert target.read_bytes() == b"half"
    with atomic_path(target) as temporary:
        temporary.write_bytes(b"whole")
    assert target.read_bytes() == b"whole"
    assert sorted(os.listdir(target.parent)) == [".codes.other.npy", "codes.npy"]


def test_an_error_while_writing_keeps_the_old_file_and_removes_the_new(tmp_path):
    target = tmp_path / "table.csv"
    target.write_text("old")
    with pytest.raises(KeyError), atomic_path(target) as temporary:
        temporary.write_text("half")
        raise KeyError("boom")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["table.csv"]


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_disk_under_safetensors(*_, **__):  # the message; tests/workflow/test_faults.py fills a disk
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("name", "fail"), [("os.fsync", full_disk), ("safetensors.torch.save_file", full_disk_under_safetensors)]
)
def test_a_full_disk_is_one_sentence_naming_the_file(tmp_path, monkeypatch, name, fail):
    monkeypatch.setattr(name, fail)
    with pytest.raises(
        OSError, match=r"could not write .*codes\.safetensors: No space left on device; no incomplete"
    ) as caught:
        save_tensors(tmp_path / "codes.safetensors", {"codes": torch.arange(3)})
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == []


def test_tensors_of_every_kind_and_metadata_come_back_and_the_same_content_makes_the_same_bytes(tmp_path):
    kinds = (torch.bool, torch.int16, torch.bfloat16, torch.float64, torch.complex64)
    tensors = {str(kind): torch.ones(3, 2).to(kind) for kind in kinds} | {"scalar": torch.tensor(1.0)}
    tensors["codes"] = torch.arange(6, dtype=torch.int32).view(2, 3).T
    # A converted model keeps the hash of the file that it comes from.
    metadata = {"prompt_ids": ["seen-00000", "ß"], "method": {"k": 20, "delta": None}, "sha256": "ab" * 32}
    for name in "abcd":
        save_tensors(tmp_path / name, tensors, metadata)
    assert len({(tmp_path / name).read_bytes() for name in "abcd"}) == 1
    loaded, found = load_tensors(tmp_path / "a")
    assert found == metadata and loaded.keys() == tensors.keys()
    assert all(
        torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty"])
def test_a_damaged_tensor_file_is_named(tmp_path, damage):
    path = tmp_path / "model.safetensors"
    save_tensors(path, {"w": torch.randn(100)})
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[:-50], "foreign": b"PK\x03\x04 a zip file", "empty": b""}[damage])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or is not a safetensors file"):
        load_tensors(path)


@pytest.mark.parametrize("part", ["tensors", "metadata", "shape", "name"])
def test_a_single_changed_bit_is_found_wherever_it_is(tmp_path, part):
    path = tmp_path / "codes.safetensors"
    save_tensors(path, {"codes": torch.arange(6).view(2, 3), "none": torch.zeros(4, 0)}, {"prompt_ids": ["seen-1"]})
    content = bytearray(path.read_bytes())
    place = {"tensors": -8, "metadata": content.index(b"seen-1"), "shape": content.index(b"[4,0]") + 1}
    content[place.get(part, content.index(b"codes"))] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DamagedFileError, match=r"codes\.safetensors is damaged: its SHA-256 should be .*fetch it again"
    ):
        load_tensors(path)


def test_a_file_of_another_program_is_read_without_a_checksum_and_a_missing_one_is_named(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    tensors, metadata = load_tensors(tmp_path / "w.safetensors")
    assert tensors["w"].tolist() == [1, 1] and metadata == {}
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing\.safetensors"):
        load_tensors(tmp_path / "nothing.safetensors")


def test_metadata_and_json_refuse_nan(tmp_path):
    with pytest.raises(ValueError, match=r"report\.json is not JSON"):
        write_json(tmp_path / "report.json", {"loss": float("nan")})
    with pytest.raises(ValueError, match="is not JSON"):
        save_tensors(tmp_path / "m.safetensors", {}, {"loss": float("inf")})
    assert os.listdir(tmp_path) == []


def test_json_keeps_insertion_order(tmp_path):
    write_json(tmp_path / "v.json", {"b": 1, "a": [1.5, None]})
    assert list(read_json(tmp_path / "v.json")) == ["b", "a"]
    write_text(tmp_path / "v.json", '{"b": 1')
    with pytest.raises(ValueError, match=r"v\.json is not valid JSON"):
        read_json(tmp_path / "v.json")
