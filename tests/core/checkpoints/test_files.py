"""Tests of weight files: damage, values that are not finite, and other content of training checkpoints."""

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

from helpers.published_layouts import FOLDER, as_hugging_face, read_original, refusal, write_hugging_face
from lantern_models.checkpoints.weight_files import read_weights

STATE = {"a.weight": torch.arange(40000.0), "b.weight": torch.ones(3, 2)}
NOT_FINITE = {**STATE, "b.weight": torch.tensor([[1, torch.nan], [1, 1], [-torch.inf, 1]])}


def same(found: dict[str, torch.Tensor]) -> bool:
    return found.keys() == STATE.keys() and all(torch.equal(found[name], STATE[name]) for name in STATE)


def save_legacy(value: object, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize(("key", "save"), [("model", torch.save), ("module", save_legacy), ("state_dict", torch.save)])
def test_what_training_keeps_beside_the_weights_is_no_obstacle(tmp_path, key, save):
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
    save({**extras, key: STATE}, tmp_path / "weights.pt")
    weights = read_weights(tmp_path / "weights.pt")
    assert same(weights.tensors)
    assert weights.args == {"image_size": 256}


def test_names_of_a_parallel_wrapper_and_tables_of_positions(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    tables = {"freqs_cis": torch.ones(4, 2), "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    wrapped = {f"module.{name}": tensor for name, tensor in {**STATE, **tables}.items()}
    torch.save({"model": wrapped}, tmp_path / "weights.pt")
    assert same(read_weights(tmp_path / "weights.pt").tensors)
    assert "left out 2 tables of positions, such as freqs_cis" in caplog.text
    torch.save({**STATE, "module.c": torch.ones(1)}, tmp_path / "mixed.pt")
    assert "module.c" in read_weights(tmp_path / "mixed.pt").tensors


@pytest.mark.parametrize(
    ("wrap", "inner"),
    [
        ("_orig_mod.{}", "{}"),
        ("module._orig_mod.{}", "model._orig_mod.{}"),
        ("_orig_mod.module.{}", "model.module._orig_mod.{}"),
        ("_orig_mod._orig_mod.{}", "{}"),
        ("module.module.{}", "model._orig_mod.module.{}"),
        ("_fsdp_wrapped_module._orig_mod.{}", "{}"),
    ],
)
def test_names_of_compiled_models_and_of_compiled_parts(tmp_path, wrap, inner):
    prefix = "" if inner == "{}" else "model."
    torch.save({wrap.format(inner.format(name)): tensor for name, tensor in STATE.items()}, tmp_path / "weights.pt")
    found = read_weights(tmp_path / "weights.pt").tensors
    assert same({name.removeprefix(prefix): tensor for name, tensor in found.items()})
    assert all(name.startswith(prefix) for name in found)


def test_a_tensor_with_and_without_a_wrapper_is_refused(tmp_path):
    (name, value), *_ = STATE.items()
    torch.save({name: value, f"_orig_mod.{name}": value}, tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=rf"holds the tensor {name} twice, as {name} and _orig_mod.{name}; keep one"):
        read_weights(tmp_path / "weights.pt")


def test_a_zip_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, tmp_path / "weights.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    with zipfile.ZipFile(tmp_path / "weights.pt") as archive:
        assert archive.testzip() is not None
    assert same(read_weights(tmp_path / "weights.pt").tensors)


def test_a_header_whose_length_begins_like_a_pickle_is_one(tmp_path):
    """Header lengths are multiples of 8, so one in 32 begins with the byte 128, as pickles do."""
    for number in range(32):
        save_file(STATE, tmp_path / "weights.bin", metadata={"note": "x" * 8 * number})
        if (tmp_path / "weights.bin").read_bytes()[0] == 0x80:
            break
    assert number < 31 and same(read_weights(tmp_path / "weights.bin").tensors)


def write_with_changed_bytes(path: Path) -> None:
    torch.save({"model": STATE}, path)
    content = bytearray(path.read_bytes())
    content[80000:84096] = bytes(4096)
    path.write_bytes(content)
    assert torch.load(path, mmap=True)["model"]["a.weight"].shape == (40000,)  # PyTorch would not have noticed


def saving(value: object, save=torch.save):
    return lambda path: save(value, path)


def writing(content: bytes):
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("t2i.pt", write_with_changed_bytes, "is damaged (Bad CRC-32 for file"),
        ("nan.pt", saving(NOT_FINITE), "tensor b.weight should hold finite numbers, found 2 of 6"),
        ("nan.safetensors", saving(NOT_FINITE, save_file), "found 2 of 6 that are nan or infinite"),
        ("a.pt", saving({"wrong": STATE, "ema": STATE}), "state_dict, found wrong, ema"),
        ("a.pt", saving({"model": {"a": np.ones(3)}}), "found something else under 'a'"),
        ("a.pt", saving({"model": {}}), "key model should hold tensors by name, found {}"),
        ("a.pt", saving([STATE]), "should hold tensors by name, found a list"),
        ("a.pt", writing(b"<!DOCTYPE html><html>sign in"), "looks like a web page"),
        ("a.pt", writing(b"version https://git-lfs.github.com"), "a pointer to a file"),
        ("a.safetensors", saving(STATE), "is a pickle, not what its name says; rename it to .bin"),
        ("a.safetensors", saving(STATE, save_legacy), "a pickle, not what its name says; rename it to .bin"),
        ("model.safetensors.index.json", writing(b"[]"), "keys and values, found list"),
        ("model.safetensors.index.json", writing(b"{}"), "should hold the key weight_map"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence_with_its_name(tmp_path, name, write, words):
    write(tmp_path / name)
    sentence = refusal(lambda: read_weights(tmp_path / name))
    assert sentence.startswith(str(tmp_path / name)) and words in sentence, sentence


@pytest.mark.parametrize("name", ["target_llamagen.pt", "drafter_pytorch_model.bin", "model.safetensors", "legacy.pt"])
def test_truncated_files(tmp_path, name):
    path = tmp_path / name
    if name == "model.safetensors":
        save_file(as_hugging_face(read_original()), path)
    elif name == "legacy.pt":
        save_legacy({"model": read_original()}, path)
    else:
        path.write_bytes((FOLDER / name).read_bytes())
    content = path.read_bytes()
    for kept in (0, 3, 100, int(0.3 * len(content)), int(0.98 * len(content))):
        path.write_bytes(content[:kept])
        sentence = refusal(lambda: read_weights(path))
        assert str(path) in sentence and "fetch it again" in sentence


class Malice:
    """An object that writes a file if it is unpickled without care."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple:
        return self.function, self.arguments


@pytest.mark.parametrize(("function", "save"), [(os.system, torch.save), (exec, save_legacy), (print, torch.save)])
def test_code_in_a_pickle_is_not_run(tmp_path, function, save):
    trace, path = tmp_path / "trace", tmp_path / "t2i_tiny.pt"
    order = f"touch {trace}" if function is os.system else f"open({str(trace)!r}, 'w').close()"
    save({"model": read_original(), "args": Malice(function, order)}, path)
    sentence = refusal(lambda: read_weights(path))
    assert not trace.exists()
    for word in [str(path), "wants to run", function.__name__, "do not trust"]:
        assert word in sentence, sentence
    path.write_bytes(pickle.dumps(Malice(function, order)))  # without PyTorch's frame
    assert str(path) in refusal(lambda: read_weights(path))
    assert not trace.exists()


def test_the_weights_of_a_folder(tmp_path):
    path = tmp_path / "t2i_XL_stage1_256.pt"
    assert "there is no file or folder" in refusal(lambda: read_weights(path), FileNotFoundError)
    (tmp_path / "README.md").write_text("")
    assert "found README.md" in refusal(lambda: read_weights(tmp_path), FileNotFoundError)
    torch.save(STATE, path)
    assert same(read_weights(tmp_path).tensors)
    torch.save(STATE, tmp_path / "other.pt")
    assert "should hold one weight file, found other.pt, t2i_XL" in refusal(lambda: read_weights(tmp_path))
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
