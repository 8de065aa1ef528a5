"""Tests of the LANTERN authors' draft models, in every form in which a repository may store them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from helpers.families import LLAMA, anole_drafter
from helpers.published_layouts import CONFIG, ORIGINAL, read_drafter_state, read_original, refusal, write_drafter
from lantern.models.draft import DraftModel
from lantern.models.stored import load_model, save_model
from lantern.models.target import TargetConfig
from lantern_models.checkpoints.drafter import find_embedding, read_draft
from lantern_models.checkpoints.target import read_target

EMBEDDING = "embed_tokens.weight"


def test_a_drafter_from_a_folder_from_a_file_and_from_our_own_layout(tmp_path):
    state = read_drafter_state()
    # Its grid and its prompt positions follow from input_type only.
    missing = dict.fromkeys(["block_size", "cls_token_num", "caption_dim", "rope_base", "num_key_value_heads", "bias"])
    folder = write_drafter(tmp_path / "drafter", **missing)
    model = read_draft(folder, CONFIG)
    assert (model.config.grid, model.config.num_text_tokens) == (16, 120)
    assert not model.config.masks_text_padding and model.config.rope_base == 1e4
    assert len(model.rotary) == 119 + 256 + 32
    assert (model.rotary[:119] == 0).all() and (model.rotary[119] == 1).all()
    assert torch.equal(model.token_embedding.weight, state[EMBEDDING])
    from_token, from_hidden = state["fc.weight"].chunk(2, dim=1)
    assert torch.equal(model.from_token.weight, from_token) and torch.equal(model.from_hidden.weight, from_hidden)
    (folder / "pytorch_model.bin").rename(folder / "anything.bin")
    torch.save(state, folder / "legacy.bin", _use_new_zipfile_serialization=False)
    save_model(folder / "own.safetensors", model)
    for name in ("anything.bin", "legacy.bin", "own.safetensors"):
        again = read_draft(folder / name, CONFIG)
        assert again.config == model.config
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_number_formats(tmp_path, dtype):
    """A file in half precision becomes float32, unless another dtype is requested."""
    state = {name: tensor.to(dtype) for name, tensor in read_drafter_state().items()}
    folder = write_drafter(tmp_path / "drafter", state, torch_dtype="float16")
    model, narrow = read_draft(folder, CONFIG), read_draft(folder, CONFIG, torch.bfloat16)
    assert torch.equal(model.token_embedding.weight, state[EMBEDDING].float())
    for name, part in model.named_parameters():
        assert part.dtype == torch.float32
        assert torch.equal(narrow.get_parameter(name), part.bfloat16())
    save_model(tmp_path / "own.safetensors", narrow)
    assert load_model(tmp_path / "own.safetensors", DraftModel, torch.float32).from_token.bias.dtype == torch.float32


@pytest.mark.parametrize(
    ("copied", "expected", "dtype"),
    [
        ("output.weight", "head.weight", torch.float16),
        ("tok_embeddings.weight", "token_embedding.weight", torch.bfloat16),
        ("tok_embeddings.weight", "token_embedding.weight", torch.float32),
        (None, None, torch.float32),
    ],
)
def test_the_matrix_that_a_drafters_embedding_was_copied_from(tmp_path, copied, expected, dtype):
    original, state = read_original(), read_drafter_state()
    torch.manual_seed(0)
    source = torch.randn_like(original["output.weight"]) if copied is None else original[copied]
    drafter = write_drafter(tmp_path / "drafter", {**state, EMBEDDING: source.to(dtype)})
    save_model(tmp_path / "target.safetensors", read_target(ORIGINAL, CONFIG))
    assert find_embedding(read_draft(drafter, CONFIG), tmp_path / "target.safetensors") == expected


def test_a_drafter_without_bias_and_of_another_input_type(tmp_path):
    state = read_drafter_state()
    state.pop("fc.bias")
    folder = write_drafter(tmp_path / "drafter", state, bias=False, input_type="other", cls_token_num=119)
    model = read_draft(folder, CONFIG)
    assert (model.from_token.bias == 0).all()
    assert torch.equal(model.from_hidden.weight, state["fc.weight"][:, 48:])
    without = write_drafter(tmp_path / "without", state)
    assert "lacks the tensor fc.bias of shape (48,)" in refusal(lambda: read_draft(without, CONFIG))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_type": "t2i2"}, "input_type should be t2i to draft for this target, found t2i2"),
        ({"input_type": "c2i"}, "input_type should be t2i or t2i2, found c2i"),
        ({"hidden_size": 64}, "hidden_size should be 48 to draft for this target, found 64"),
        ({"num_attention_heads": 6}, "num_attention_heads should be 4 to draft for this target, found 6"),
        ({"vocab_size": 64}, "vocab_size should be 128 to draft for this target, found 64"),
        ({"num_hidden_layers": 2}, "num_hidden_layers should be 1 to draft for this target, found 2"),
        ({"bias": False}, "unexpected tensor fc.bias (1 such); expected 10 tensors, found 11"),
        ({"input_type": "other", "block_size": 1024}, "block_size should be 256 to draft for this target, found 1024"),
        ({"input_type": "other", "cls_token_num": 7}, "cls_token_num should be 119 to draft for this target, found 7"),
    ],
    ids=str,
)
def test_wrong_drafters(tmp_path, changes, words):
    folder = write_drafter(tmp_path / "drafter", **changes)
    sentence = refusal(lambda: read_draft(folder, CONFIG))
    assert str(folder) in sentence and words in sentence, sentence


def test_a_drafter_for_chameleon(tmp_path):
    """Its numbers are tested in tests/core/test_reference_families.py, its config.json here."""
    settings = json.loads((LLAMA / "anole_drafter.json").read_text())
    target = TargetConfig(64, 3, 4, vocab_size=64, grid=6, num_text_tokens=14, num_prompt_ids=160, null_ids=(0, 69))
    save_file(anole_drafter(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(settings | {"rope_theta": 500, "rms_norm_eps": 1e-3}))
    config = read_draft(tmp_path, target).config
    assert (config.rope_base, config.norm_eps, config.num_embedded_ids) == (500, 1e-3, 160)
    for key in ("hidden_size", "num_attention_heads"):
        (tmp_path / "config.json").write_text(json.dumps(settings | {key: 2}))
        expected = f"{key} should be {settings[key]} to draft for this target, found 2"
        assert expected in refusal(lambda: read_draft(tmp_path, target))


@pytest.mark.parametrize("is_shared", [False, True], ids=["a row per head", "one row"])
def test_a_drafter_for_chameleon_with_fewer_key_than_query_heads(tmp_path, is_shared):
    sizes = {"vocab_size": 64, "grid": 6, "num_text_tokens": 14, "num_prompt_ids": 160, "null_ids": (0, 69)}
    target = TargetConfig(64, 3, 4, num_kv_heads=2, ffn_width=176, **sizes)
    layer = {"q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
    layer |= {"q_norm": (1 if is_shared else 4, 16), "k_norm": (1 if is_shared else 2, 16)}
    tensors = {name: value for name, value in anole_drafter().items() if ".self_attn." not in name}
    for name, shape in layer.items():
        tensors[f"layers.0.self_attn.{name}.weight"] = torch.full(shape, 2.0 if name[0] == "q" else 3.0)
        if "norm" in name:
            tensors[f"layers.0.self_attn.{name}.bias"] = torch.zeros(shape)
    save_file(tensors, tmp_path / "model.safetensors")
    settings = json.loads((LLAMA / "anole_drafter.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"num_key_value_heads": 2}))
    found = read_draft(tmp_path, target).layer
    assert found.qk_norm.weight[:, 0].tolist() == [2, 2, 2, 2, 3, 3]
    assert found.qkv.weight[:, 0].tolist() == [2] * 64 + [3] * 64


def test_drafters_of_another_target_and_files_that_are_none(tmp_path):
    folder = write_drafter(tmp_path / "drafter")
    assert "input_type should be t2i2" in refusal(lambda: read_draft(folder, replace(CONFIG, grid=32)))
    other = refusal(lambda: read_draft(folder, replace(CONFIG, num_text_tokens=77)))
    assert "cls_token_num (position offset) should be 76 to draft for this target, found 119" in other
    (folder / "config.json").unlink()
    sentence = refusal(lambda: read_draft(folder, CONFIG), FileNotFoundError)
    assert "config.json: pytorch_model.bin needs the config.json" in sentence
