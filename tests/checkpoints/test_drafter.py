"""The LANTERN authors' drafters in every form that a repository may have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import DATA
from lantern.checkpoints.drafter import fill_draft, find_embedding, read_draft
from lantern.checkpoints.llamagen import read_target
from lantern.checkpoints.native import save_model
from lantern.models.draft import DraftConfig, DraftModel
from published_layouts import (
    CONFIG,
    ORIGINAL,
    as_hugging_face,
    read_drafter_state,
    read_original,
    refusal,
    write_drafter,
    write_hugging_face,
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_drafter_in_half_precision_becomes_float32(tmp_path, dtype):
    state = {name: tensor.to(dtype) for name, tensor in read_drafter_state().items()}
    model = read_draft(write_drafter(tmp_path / "drafter", state, torch_dtype="float16"), CONFIG)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.token_embedding.weight, state["embed_tokens.weight"].float())


def test_a_drafter_knows_its_grid_by_its_input_type_alone(tmp_path):
    missing = dict.fromkeys(["block_size", "cls_token_num", "caption_dim", "rope_base", "num_key_value_heads", "bias"])
    assert read_draft(write_drafter(tmp_path / "drafter", **missing), CONFIG).config.grid == 16


def test_a_drafter_in_the_old_pickle_format(tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    torch.save(read_drafter_state(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    model = read_draft(folder, CONFIG)
    assert torch.equal(model.token_embedding.weight, read_drafter_state()["embed_tokens.weight"])


def test_a_drafter_in_safetensors_alone_and_beside_a_pickle(tmp_path):
    state = read_drafter_state()
    alone = write_hugging_face(tmp_path / "alone", state, "single", "drafter_config")
    assert torch.equal(read_draft(alone, CONFIG).token_embedding.weight, state["embed_tokens.weight"])
    both = write_drafter(tmp_path / "both")
    save_file({**state, "embed_tokens.weight": state["embed_tokens.weight"] + 1}, both / "model.safetensors")
    assert torch.equal(read_draft(both, CONFIG).token_embedding.weight, state["embed_tokens.weight"] + 1)
    given = read_draft(both / "pytorch_model.bin", CONFIG)
    assert torch.equal(given.token_embedding.weight, state["embed_tokens.weight"])


@pytest.mark.parametrize(
    ("copied", "expected"),
    [("output.weight", "head.weight"), ("tok_embeddings.weight", "token_embedding.weight"), (None, None)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_matrix_that_a_drafters_embedding_was_copied_from(tmp_path, copied, expected, dtype):
    original, state = read_original(), read_drafter_state()
    torch.manual_seed(0)
    source = torch.randn_like(original["output.weight"]) if copied is None else original[copied]
    drafter = write_drafter(tmp_path / "drafter", {**state, "embed_tokens.weight": source.to(dtype)})
    save_model(tmp_path / "target.safetensors", read_target(ORIGINAL, CONFIG))
    assert find_embedding(read_draft(drafter, CONFIG), tmp_path / "target.safetensors") == expected


def test_drafter_from_a_folder_and_from_a_file(tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    model = read_draft(folder, CONFIG)
    assert model.config.num_text_tokens == 120
    assert not model.config.masks_text_padding
    assert len(model.rotary) == 119 + 256 + 32
    assert (model.rotary[:119] == 0).all() and (model.rotary[119] == 1).all()
    assert torch.equal(model.token_embedding.weight, read_drafter_state()["embed_tokens.weight"])
    (folder / "pytorch_model.bin").rename(folder / "anything.bin")
    again = read_draft(folder / "anything.bin", CONFIG)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    save_model(tmp_path / "own.safetensors", model)
    assert read_draft(tmp_path / "own.safetensors", CONFIG).config == model.config


def test_drafter_without_bias_and_of_another_input_type(tmp_path):
    state = read_drafter_state()
    state.pop("fc.bias")
    folder = write_drafter(tmp_path / "drafter", state, bias=False, input_type="other", cls_token_num=119)
    model = read_draft(folder, CONFIG)
    assert (model.from_token.bias == 0).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_type": "t2i2"}, ["input_type should be t2i to draft for this target, found t2i2"]),
        ({"input_type": "c2i"}, ["input_type should be t2i or t2i2, found c2i"]),
        ({"hidden_size": 64}, ["hidden_size should be 48", "found 64"]),
        ({"vocab_size": 64}, ["vocab_size should be 128", "found 64"]),
        ({"num_hidden_layers": 2}, ["num_hidden_layers should be 1", "found 2"]),
        ({"bias": False}, ["foreign tensor fc.bias", "expected 10 tensors, found 11"]),
        ({"input_type": "other", "block_size": 1024}, ["block_size should be 256", "found 1024"]),
        ({"input_type": "other", "cls_token_num": 7}, ["position offset", "should be 119", "found 7"]),
    ],
    ids=str,
)
def test_wrong_drafters(tmp_path, changes, words):
    folder = write_drafter(tmp_path / "drafter", **changes)
    sentence = refusal(lambda: read_draft(folder, CONFIG))
    for word in [str(folder), *words]:
        assert word in sentence, sentence


def test_drafter_of_another_stage_bias_and_files(tmp_path):
    stage_2 = replace(CONFIG, grid=32)
    folder = write_drafter(tmp_path / "drafter")
    assert "input_type should be t2i2" in refusal(lambda: read_draft(folder, stage_2))
    state = read_drafter_state()
    state.pop("fc.bias")
    without = write_drafter(tmp_path / "without", state)
    assert "lacks the tensor fc.bias of shape (48,)" in refusal(lambda: read_draft(without, CONFIG))
    target = write_hugging_face(tmp_path / "target", as_hugging_face(read_original()), "bin")
    assert "num_hidden_layers should be 1" in refusal(lambda: read_draft(target, CONFIG))
    (folder / "config.json").unlink()
    sentence = refusal(lambda: read_draft(folder, CONFIG), FileNotFoundError)
    assert "config.json: pytorch_model.bin needs the config.json" in sentence


def test_drafter_without_bias_and_with_foreign_keys():
    state = load_file(DATA / "reference" / "drafter.safetensors")
    bias = state.pop("fc.bias")
    model = DraftModel(DraftConfig(64, 4, 256, 64, 4, 8))
    assert (fill_draft(model, state, Path("drafter"), has_bias=False).from_token.bias == 0).all()
    assert model.from_token.bias.shape == bias.shape
    foreign = state | {"norm.weight": bias}
    assert "foreign tensor norm.weight" in refusal(lambda: fill_draft(model, foreign, Path("drafter"), False))
    state.pop("fc.weight")
    assert "lacks the tensor fc.weight" in refusal(lambda: fill_draft(model, state, Path("drafter"), False))
