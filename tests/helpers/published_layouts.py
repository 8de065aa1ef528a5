"""Files in published layouts with the small models of tests/data/full_len, and a check of error messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.paths import DATA
from lantern.models.stored import copy_tensors
from lantern.models.target import TargetConfig, TargetModel
from lantern_models.checkpoints.target import map_target_parameters
from lantern_models.images.vq16 import VQ16, VQ16Config

FOLDER = DATA / "full_len"
STORED = json.loads((FOLDER / "config.json").read_text())
ORIGINAL = FOLDER / "target_llamagen.pt"
CONFIG = TargetConfig(
    dim=48,
    num_layers=2,
    num_heads=4,
    vocab_size=128,
    grid=16,
    num_text_tokens=120,
    caption_dim=16,
    ffn_multiple=256,
    norm_eps=1e-5,
)


def as_hugging_face(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename LlamaGen's original weights to the names of LANTERN's authors.

    A test compares the result with the authors' file.
    """
    model = TargetModel(CONFIG)
    copy_tensors(state, map_target_parameters(model, is_hugging_face=False), ORIGINAL)
    return {name: part.clone() for name, part in map_target_parameters(model, is_hugging_face=True).items()}


def read_original() -> dict[str, torch.Tensor]:
    """Return the weights of the small target in LlamaGen's original layout."""
    return torch.load(ORIGINAL, weights_only=True)["model"]


def write_hugging_face(
    folder: Path, state: dict[str, torch.Tensor], kind: str = "single", name: str = "hf_config", **changes: object
) -> Path:
    """Write a model folder like one on the hub, and return it.

    Args:
        folder: the folder.
        state: the weights.
        kind: "bin" for one pickled file, "single" for one safetensors file, any other value for two shards.
        name: config in tests/data/full_len/config.json to start from.
        changes: changes to config.json; None removes a key.
    """
    folder.mkdir(exist_ok=True)
    settings = {key: value for key, value in {**STORED[name], **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(settings))
    if kind == "bin":
        torch.save(state, folder / "pytorch_model.bin")
    elif kind == "single":
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        keys = sorted(state)
        shards = {"one.safetensors": keys[::2], "two.safetensors": keys[1::2]}
        for shard, names in shards.items():
            save_file({key: state[key] for key in names}, folder / shard, metadata={"format": "pt"})
        places = {key: shard for shard, names in shards.items() for key in names}
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def read_drafter_state() -> dict[str, torch.Tensor]:
    """Return the weights of the small draft model of LANTERN's authors."""
    return torch.load(FOLDER / "drafter_pytorch_model.bin", weights_only=True)


def write_drafter(folder: Path, state: dict[str, torch.Tensor] | None = None, **changes: object) -> Path:
    """Write a draft-model folder. Args as `write_hugging_face`; the stored weights are the default."""
    return write_hugging_face(folder, state or read_drafter_state(), "bin", "drafter_config", **changes)


def vq_state() -> dict[str, torch.Tensor]:
    """Return random weights of a tiny VQ-16 tokenizer under LlamaGen's names."""
    torch.manual_seed(0)
    model = VQ16(VQ16Config(4, 16, 8, 32, (1, 2), 2, 32))
    return {**model.state_dict(), "quantize.codebook_used": torch.zeros(65536)}


def write_vq(path: Path, **changes: object) -> Path:
    """Write a tiny VQ-16 file with some weights replaced, and return its path."""
    torch.save({"model": {**vq_state(), **changes}}, path)
    return path


def refusal(call: object, kind: type[Exception] = ValueError) -> str:
    """Assert that a call raises an error whose message is one line, and return the message.

    Args:
        call: function without arguments.
        kind: class of the error.
    """
    with pytest.raises(kind) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence
