"""Weight files: damage, numbers that are none, and what training leaves beside and around the weights."""

from __future__ import annotations

import argparse
import datetime
import logging
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lantern.checkpoints.files import read_weights
from published_layouts import refusal

STATE = {"a.weight": torch.arange(40000.0), "b.weight": torch.ones(3, 2)}


def same(found: dict[str, torch.Tensor]) -> bool:
    return found.keys() == STATE.keys() and all(torch.equal(found[name], STATE[name]) for name in STATE)


def test_bytes_changed_in_the_middle_of_a_zip_are_noticed(tmp_path):
    path = tmp_path / "t2i.pt"
    torch.save({"model": STATE}, path)
    content = bytearray(path.read_bytes())
    content[80000:84096] = bytes(4096)
    path.write_bytes(content)
    assert torch.load(path, mmap=True)["model"]["a.weight"].shape == (40000,)  # PyTorch would not have noticed
    sentence = refusal(lambda: read_weights(path))
    assert str(path) in sentence and "is damaged (Bad CRC-32 for file" in sentence and "fetch it again" in sentence


def test_a_zip_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, tmp_path / "weights.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    with zipfile.ZipFile(tmp_path / "weights.pt") as archive:
        assert archive.testzip() is not None
    assert same(read_weights(tmp_path / "weights.pt").tensors)


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_numbers_that_are_not_finite_are_refused(tmp_path, name, value):
    state = {**STATE, "b.weight": torch.tensor([[1, value], [1, 1], [value, 1]])}
    save = save_file if name.endswith(".safetensors") else torch.save
    save(state, tmp_path / name)
    sentence = refusal(lambda: read_weights(tmp_path / name))
    assert f"{name}: tensor b.weight should hold finite numbers, found 2 of 6 that are nan or infinite" in sentence


def test_names_of_a_parallel_wrapper_and_tables_of_positions(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    tables = {"freqs_cis": torch.ones(4, 2), "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    wrapped = {f"module.{name}": tensor for name, tensor in {**STATE, **tables}.items()}
    torch.save({"model": wrapped}, tmp_path / "weights.pt")
    assert same(read_weights(tmp_path / "weights.pt").tensors)
    assert "left out 2 tables of positions, such as freqs_cis" in caplog.text
    torch.save({**STATE, "module.c": torch.ones(1)}, tmp_path / "mixed.pt")
    assert "module.c" in read_weights(tmp_path / "mixed.pt").tensors


@pytest.mark.parametrize("is_new_format", [True, False], ids=["zip", "legacy"])
def test_what_training_keeps_beside_the_weights_is_no_obstacle(tmp_path, is_new_format):
    args = argparse.Namespace(
        image_size=256, lr=np.float64(1e-4), out=Path("runs") / "one", seen=np.arange(3), names=np.array(["a"])
    )
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    extras = {
        "args": args,
        "optimizer": optimizer.state_dict(),
        "steps": np.int64(3),
        "begun": datetime.datetime(2024, 6, 30),
        "rng": np.random.RandomState(0).get_state(),
    }
    path = tmp_path / "weights.pt"
    torch.save({"model": STATE, **extras}, path, _use_new_zipfile_serialization=is_new_format)
    weights = read_weights(path)
    assert same(weights.tensors)
    assert weights.args == {"image_size": 256}


def test_numbers_of_numpy_are_no_weights(tmp_path):
    torch.save({"model": {"a.weight": np.ones(3)}}, tmp_path / "weights.pt")
    assert "found something else under 'a.weight'" in refusal(lambda: read_weights(tmp_path / "weights.pt"))
