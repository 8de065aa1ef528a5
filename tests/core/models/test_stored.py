"""Tests of Lantern's checkpoint format: files are read as written, errors are named, weights are in memory once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import transformers
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.families import settings_of
from helpers.published_layouts import refusal
from helpers.tiny_codes import CONFIG
from lantern.io import load_tensors, save_tensors
from lantern.models.draft import DraftModel
from lantern.models.stored import load_model, load_weights, save_model
from lantern.models.target import TargetConfig, TargetModel
from lantern_models.checkpoints.decoding_models import load_decoding_models
from lantern_models.checkpoints.target import load_target, map_target_parameters, read_target
from lantern_models.images.code_colours import CodeColours, CodeColoursConfig

DEEP = TargetConfig(128, 12, 4, vocab_size=64, grid=4, num_text_tokens=8, caption_dim=24, ffn_width=352)
FAMILIES = {
    "anole": replace(DEEP, num_prompt_ids=128, null_ids=(0, 69), has_qk_norm=True),
    "janus": replace(DEEP, num_prompt_ids=128, null_ids=(0, 7), null_filler=2, has_mlp_head=True),
    "llamagen": replace(DEEP, ffn_width=0),
}


def test_wrong_files_and_weights_are_named(tmp_path):
    path, model = tmp_path / "t.safetensors", TargetModel(CONFIG)
    state = dict(model.state_dict())
    save_model(path, model)
    assert "should hold a draft_model, found target_model" in refusal(lambda: load_model(path, DraftModel))
    head = state.pop("head.weight")
    for changes, words in (
        ({}, "t.safetensors lacks the tensor head.weight of shape (8, 32)"),
        ({"head.weight": head[:4]}, "head.weight should have shape (8, 32), found (4, 32)"),
        ({"head.weight": head, "extra": head}, "unexpected tensor extra"),
    ):
        assert words in refusal(lambda changes=changes: load_weights(model, state | changes, path))
    broken = TargetModel(CONFIG)
    torch.nn.init.constant_(broken.final_norm.weight, torch.nan)
    save_model(path, broken)
    assert "final_norm.weight should hold finite numbers, found 32" in refusal(lambda: load_model(path, TargetModel))


def test_the_names_of_a_compiled_model_are_removed_in_writing_and_in_reading(tmp_path):
    path, model = tmp_path / "t.safetensors", TargetModel(CONFIG)
    save_model(path, torch.compile(model))
    tensors, metadata = load_tensors(path)
    assert tensors.keys() == model.state_dict().keys()
    wrapped = {
        f"module._orig_mod.{name}".replace("layers.", "layers._orig_mod."): part for name, part in tensors.items()
    }
    save_tensors(path, wrapped, metadata)
    found = load_target(path).state_dict()
    assert all(torch.equal(found[name], part) for name, part in tensors.items()) and found.keys() == tensors.keys()


def test_a_weight_that_is_not_trained_is_not_trained_when_it_is_read(tmp_path):
    for model in (CodeColours(CodeColoursConfig(2, codebook_size=5, code_dim=3)), TargetModel(CONFIG)):
        for parameter in model.parameters():
            parameter.data.fill_(0.5)
        save_model(tmp_path / "model.safetensors", model)
        found = load_model(tmp_path / "model.safetensors", type(model))
        expected = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        assert {name: parameter.requires_grad for name, parameter in found.named_parameters()} == expected


def test_a_model_that_another_thread_makes_meanwhile_keeps_its_weights(tmp_path):
    path, made = tmp_path / "t.safetensors", []
    save_model(path, TargetModel(CONFIG))

    class SlowTarget(TargetModel):
        def __init__(self, config):
            super().__init__(config)
            with ThreadPoolExecutor(1) as pool:
                made.append(pool.submit(TargetModel, config).result())

    loaded = load_model(path, SlowTarget)
    assert not any(part.is_meta for model in (loaded, *made) for part in model.parameters())


class LiveBytes(TorchDispatchMode):
    """Sum of the storages that operations allocate, as long as they live. Memory-mapped files do not count.

    `peak` is the largest sum at any time.
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
    """Write random float32 weights of a family in its published layout."""
    torch.manual_seed(0)
    if family == "llamagen":
        places = map_target_parameters(TargetModel(FAMILIES[family]), False)
        return torch.save({"model": {name: part.clone() for name, part in places.items()}}, folder / "t2i.pt")
    sizes = {"hidden_size": 128, "num_hidden_layers": 12, "intermediate_size": 352}
    settings = json.loads(settings_of(family, **sizes))
    model_class = getattr(transformers, settings["architectures"][0])
    model_class(model_class.config_class.from_dict(settings)).save_pretrained(folder)


def size_of(model: torch.nn.Module) -> int:
    return sum(part.nbytes for part in model.parameters())


@pytest.mark.parametrize("family", ["llamagen", pytest.param("janus", marks=pytest.mark.slow)])
def test_a_published_target_stands_in_memory_once(tmp_path, family):
    """The dtype is that of the run. If the file has another one, the cast copy is the only one."""
    write_published(family, tmp_path)
    models = {}
    for dtype in (torch.float32, torch.bfloat16):
        with LiveBytes() as memory:
            model = models[dtype] = read_target(tmp_path, FAMILIES[family], dtype, family)
        for name, part in model.named_parameters():
            assert part.dtype == (torch.float32 if name.startswith("head") else dtype), name
        largest = 4 * max(part.numel() for part in model.parameters())  # in float32
        assert memory.peak <= size_of(model) + 2 * largest
        assert size_of(model) <= memory.peak or family != "llamagen"  # transformers reads in threads of its own
        assert size_of(model) > 8 * largest  # so that twice the model would be noticed
        save_model(tmp_path / f"{dtype}.own", model)
        with LiveBytes() as memory:
            loaded = load_decoding_models(tmp_path / f"{dtype}.own", dtype="bfloat16").target
        assert size_of(loaded) <= memory.peak <= size_of(loaded) + 2 * largest
        as_stored = load_target(tmp_path / f"{dtype}.own")
        wide = load_target(tmp_path / f"{dtype}.own", torch.float32)
        assert as_stored.config == wide.config == model.config and not as_stored.training
        for name, part in as_stored.named_parameters():
            assert part.dtype == model.get_parameter(name).dtype and torch.equal(part, model.get_parameter(name))
            assert wide.get_parameter(name).dtype == torch.float32 and torch.equal(
                wide.get_parameter(name), part.float()
            )
    for name, part in models[torch.bfloat16].named_parameters():
        assert torch.equal(part, models[torch.float32].get_parameter(name).to(part.dtype))
