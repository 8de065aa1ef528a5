"""What reading weights holds in memory: each of them once, in the run's number format."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conftest import DATA
from lantern.checkpoints.drafter import read_draft
from lantern.checkpoints.llamagen import read_target, target_places
from lantern.checkpoints.native import load_model, save_model
from lantern.generation import load_decoding_models
from lantern.models.draft import DraftModel
from lantern.models.target import TargetConfig, TargetModel

WIDE = TargetConfig(128, 12, 4, vocab_size=64, grid=4, num_text_tokens=8, caption_dim=24)
FAMILIES = {
    "anole": replace(WIDE, null_ids=(0, 69)),
    "janus": replace(WIDE, null_ids=(0, 7), null_filler=2),
    "llamagen": WIDE,
}


class LiveBytes(TorchDispatchMode):
    """Adds up the storages that operations allocate, while they live; what is mapped from a file is none of them.

    Attributes:
        peak: bytes, the most at any one time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._live = 0, {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        given = {id(value) for value in tree_leaves((arguments, options))}
        for tensor in tree_leaves(out):
            is_new = isinstance(tensor, torch.Tensor) and id(tensor) not in given and not function.is_view
            if is_new and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return out


def write_published(family: str, folder) -> None:
    """Random weights of a family in float32, in its published layout."""
    c = FAMILIES[family]
    shape = {"q": (c.dim, c.dim), "k": (c.dim, c.dim), "v": (c.dim, c.dim), "o": (c.dim, c.dim)}
    prefix = "language_model.model." if family == "janus" else "model."
    state = {f"{prefix}embed_tokens.weight": torch.randn(128, c.dim), f"{prefix}norm.weight": torch.ones(c.dim)}
    for layer in (f"{prefix}layers.{number}" for number in range(c.num_layers)):
        state |= {f"{layer}.self_attn.{name}_proj.weight": torch.randn(size) for name, size in shape.items()}
        state |= {f"{layer}.mlp.{name}_proj.weight": torch.randn(352, c.dim) for name in ("gate", "up")}
        state[f"{layer}.mlp.down_proj.weight"] = torch.randn(c.dim, 352)
        state |= {f"{layer}.{name}_layernorm.weight": torch.ones(c.dim) for name in ("input", "post_attention")}
        if family == "anole":
            state |= {f"{layer}.self_attn.{name}_norm.weight": torch.ones(4, c.head_dim) for name in "qk"}
            state |= {f"{layer}.self_attn.{name}_norm.bias": torch.zeros(4, c.head_dim) for name in "qk"}
    if family == "anole":
        state["lm_head.weight"] = torch.randn(128, c.dim)
    else:
        shapes = {"gen_aligner.layers.0": (c.dim, 8), "gen_head.vision_head": (64, c.dim)}
        shapes |= {name: (c.dim, c.dim) for name in ("gen_aligner.layers.2", "gen_head.output_mlp_projector")}
        state |= {f"{name}.weight": torch.randn(size) for name, size in shapes.items()}
        state |= {f"{name}.bias": torch.zeros(size[0]) for name, size in shapes.items()}
        state["gen_embed.weight"] = torch.randn(64, 8)
    save_file(state, folder / "model.safetensors")


def write_target(family: str, folder) -> None:
    """A target's file as it is published."""
    if family != "llamagen":
        return write_published(family, folder)
    torch.manual_seed(0)
    own = TargetModel(FAMILIES[family])
    torch.save({"model": {name: part.clone() for name, part in target_places(own, False).items()}}, folder / "t2i.pt")


def size_of(model: torch.nn.Module) -> int:
    return sum(part.nbytes for part in model.parameters())


def largest_of(model: torch.nn.Module) -> int:
    """Bytes of the largest matrix in float32."""
    return 4 * max(part.numel() for part in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_published_target_stands_in_memory_once(tmp_path, family, dtype):
    write_target(family, tmp_path)
    with LiveBytes() as memory:
        model = read_target(tmp_path, FAMILIES[family], dtype)
    assert model.layers[0].down.weight.dtype == dtype and model.head.weight.dtype == torch.float32
    assert size_of(model) <= memory.peak <= size_of(model) + 2 * largest_of(model)
    assert size_of(model) > 8 * largest_of(model)  # so that twice the model would be noticed
    save_model(tmp_path / "own.safetensors", model)
    with LiveBytes() as memory:
        models = load_decoding_models(tmp_path / "own.safetensors", dtype="bfloat16")
    assert size_of(models.target) <= memory.peak <= size_of(models.target) + 2 * largest_of(model)
    as_stored = load_model(tmp_path / "own.safetensors", TargetModel, dtype=None)
    for name, part in as_stored.named_parameters():
        assert part.dtype == model.get_parameter(name).dtype and torch.equal(part, model.get_parameter(name))


def test_what_is_read_in_bfloat16_is_what_was_cast_after_reading(tmp_path):
    write_target("anole", tmp_path)
    wide, narrow = (read_target(tmp_path, FAMILIES["anole"], dtype) for dtype in (torch.float32, torch.bfloat16))
    for name, part in narrow.named_parameters():
        assert torch.equal(part, wide.get_parameter(name).to(part.dtype))


def test_a_published_drafter_in_bfloat16(tmp_path):
    config = TargetConfig(64, 3, 4, vocab_size=64, grid=4, num_text_tokens=8, num_prompt_ids=0)
    folder = DATA / "reference"
    save_file(load_file(folder / "drafter.safetensors"), tmp_path / "model.safetensors")
    settings = (folder / "config.json").read_text()
    (tmp_path / "config.json").write_text(json.dumps(json.loads(settings)["drafter_config"]))
    model = read_draft(tmp_path, config, torch.bfloat16)
    assert {part.dtype for part in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.from_token.bias, read_draft(tmp_path, config).from_token.bias.bfloat16())
    save_model(tmp_path / "own.safetensors", model)
    assert load_model(tmp_path / "own.safetensors", DraftModel, torch.float32).from_token.bias.dtype == torch.float32
