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
from published_layouts import FOLDER, as_hugging_face, read_original, refusal

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


@pytest.mark.parametrize("kept", [0, 3, 100, 0.3, 0.98])
@pytest.mark.parametrize("name", ["target_llamagen.pt", "drafter_pytorch_model.bin", "model.safetensors", "legacy.pt"])
def test_truncated_files(tmp_path, name, kept):
    whole = tmp_path / "whole"
    if name == "model.safetensors":
        save_file(as_hugging_face(read_original()), whole)
    elif name == "legacy.pt":
        torch.save({"model": read_original()}, whole, _use_new_zipfile_serialization=False)
    else:
        whole.write_bytes((FOLDER / name).read_bytes())
    content = whole.read_bytes()
    path = tmp_path / name
    path.write_bytes(content[: int(kept if kept >= 1 or kept == 0 else kept * len(content))])
    sentence = refusal(lambda: read_weights(path))
    assert str(path) in sentence
    assert "fetch it again" in sentence


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"<!DOCTYPE html><html>sign in</html>", "looks like a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a pointer to a file"),
    ],
)
def test_what_was_fetched_is_no_weight_file(tmp_path, content, hint):
    path = tmp_path / "t2i_XL_stage1_256.pt"
    path.write_bytes(content)
    assert hint in refusal(lambda: read_weights(path))


def test_missing_files_and_empty_folders(tmp_path):
    sentence = refusal(lambda: read_weights(tmp_path / "t2i_XL_stage1_256.pt"), FileNotFoundError)
    assert "there is no file or folder" in sentence
    (tmp_path / "README.md").write_text("")
    assert "found README.md" in refusal(lambda: read_weights(tmp_path), FileNotFoundError)


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
