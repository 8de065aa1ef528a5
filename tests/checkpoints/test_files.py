"""Weight files: damage, numbers that are none, and what training leaves beside and around the weights."""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lantern.checkpoints.files import read_weights
from published_layouts import FOLDER, as_hugging_face, read_original, refusal, write_hugging_face

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
def test_numbers_that_are_not_finite_are_refused(tmp_path, name):
    save = save_file if name.endswith(".safetensors") else torch.save
    save({**STATE, "b.weight": torch.tensor([[1, torch.nan], [1, 1], [-torch.inf, 1]])}, tmp_path / name)
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


@pytest.mark.parametrize("key", ["model", "module", "state_dict"])
@pytest.mark.parametrize("is_new_format", [True, False], ids=["zip", "legacy"])
def test_what_training_keeps_beside_the_weights_is_no_obstacle(tmp_path, key, is_new_format):
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
    torch.save({**extras, key: STATE}, path, _use_new_zipfile_serialization=is_new_format)
    weights = read_weights(path)
    assert same(weights.tensors)
    assert weights.args == {"image_size": 256}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"wrong": STATE, "ema": STATE}, "top-level key should be one of model, module, state_dict, found wrong, ema"),
        (
            {"model": {"a.weight": np.ones(3)}},
            "model should hold tensors by name, found something else under 'a.weight'",
        ),
        ({"model": {}}, "top-level key model should hold tensors by name, found {}"),
        ([STATE], "should hold tensors by name, found a list"),
    ],
    ids=["keys", "numpy", "empty", "list"],
)
def test_pickles_of_something_else_than_weights(tmp_path, value, words):
    torch.save(value, tmp_path / "weights.pt")
    assert words in refusal(lambda: read_weights(tmp_path / "weights.pt"))


class Malice:
    """Unpickled carelessly, this makes a file."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple:
        return self.function, self.arguments


@pytest.mark.parametrize("is_new_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("function", [os.system, exec, eval, print])
def test_code_in_a_pickle_is_not_run(tmp_path, function, is_new_format):
    trace = tmp_path / "trace"
    order = f"touch {trace}" if function is os.system else f"open({str(trace)!r}, 'w').close()"
    path = tmp_path / "t2i_tiny.pt"
    whole = {"model": read_original(), "args": Malice(function, order)}
    torch.save(whole, path, _use_new_zipfile_serialization=is_new_format)
    sentence = refusal(lambda: read_weights(path))
    assert not trace.exists()
    for word in [str(path), "wants to run", function.__name__, "do not trust"]:
        assert word in sentence, sentence


def test_bare_pickles_are_not_run(tmp_path):
    trace, path = tmp_path / "trace", tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Malice(os.system, f"touch {trace}")))
    assert "pytorch_model.bin" in refusal(lambda: read_weights(path))
    assert not trace.exists()


@pytest.mark.parametrize("name", ["target_llamagen.pt", "drafter_pytorch_model.bin", "model.safetensors", "legacy.pt"])
def test_truncated_files(tmp_path, name):
    path = tmp_path / name
    if name == "model.safetensors":
        save_file(as_hugging_face(read_original()), path)
    elif name == "legacy.pt":
        torch.save({"model": read_original()}, path, _use_new_zipfile_serialization=False)
    else:
        path.write_bytes((FOLDER / name).read_bytes())
    content = path.read_bytes()
    for kept in (0, 3, 100, int(0.3 * len(content)), int(0.98 * len(content))):
        path.write_bytes(content[:kept])
        sentence = refusal(lambda: read_weights(path))
        assert str(path) in sentence and "fetch it again" in sentence


@pytest.mark.parametrize(
    ("content", "hint"),
    [(b"<!DOCTYPE html><html>", "looks like a web page"), (b"version https://git-lfs.gi", "a pointer to a file")],
)
def test_what_was_fetched_is_no_weight_file(tmp_path, content, hint):
    (tmp_path / "t2i.pt").write_bytes(content)
    assert hint in refusal(lambda: read_weights(tmp_path / "t2i.pt"))


def test_the_weights_of_a_folder(tmp_path):
    path = tmp_path / "t2i_XL_stage1_256.pt"
    assert "there is no file or folder" in refusal(lambda: read_weights(path), FileNotFoundError)
    (tmp_path / "README.md").write_text("")
    assert "found README.md" in refusal(lambda: read_weights(tmp_path), FileNotFoundError)
    torch.save(STATE, path)
    assert same(read_weights(tmp_path).tensors)
    torch.save(STATE, tmp_path / "other.pt")
    assert "should hold one weight file, found other.pt, t2i_XL_stage1_256.pt" in refusal(
        lambda: read_weights(tmp_path)
    )
    torch.save(STATE, tmp_path / "pytorch_model.bin")
    assert read_weights(tmp_path).path.name == "pytorch_model.bin"
    save_file(STATE, tmp_path / "model.safetensors")
    assert read_weights(tmp_path).path.name == "model.safetensors"


def test_damaged_shards(tmp_path):
    folder = write_hugging_face(tmp_path / "hf", as_hugging_face(read_original()), "sharded")
    shard = folder / "two.safetensors"
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    assert "two.safetensors is truncated" in refusal(lambda: read_weights(folder))
    save_file({"other": torch.zeros(1)}, shard)
    assert "two.safetensors lacks the tensor" in refusal(lambda: read_weights(folder))
    shard.unlink()
    sentence = refusal(lambda: read_weights(folder), FileNotFoundError)
    assert "two.safetensors, which model.safetensors.index.json names" in sentence
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "should hold the key weight_map" in refusal(lambda: read_weights(folder))


@pytest.mark.parametrize("is_new_format", [True, False], ids=["zip", "legacy"])
def test_a_pickle_with_the_name_of_another_format_is_refused_by_name(tmp_path, is_new_format):
    torch.save({"model": STATE}, tmp_path / "t.safetensors", _use_new_zipfile_serialization=is_new_format)
    sentence = refusal(lambda: read_weights(tmp_path / "t.safetensors"))
    assert sentence.startswith(f"{tmp_path / 't.safetensors'} is a pickle") and "rename it to .bin" in sentence


def test_a_header_whose_length_begins_like_a_pickle_is_one(tmp_path):
    """Lengths are multiples of 8: one in 32 begins with the byte 128."""
    for number in range(32):
        save_file(STATE, tmp_path / "weights.bin", metadata={"note": "x" * 8 * number})
        if (tmp_path / "weights.bin").read_bytes()[0] == 0x80:
            break
    assert number < 31 and same(read_weights(tmp_path / "weights.bin").tensors)
