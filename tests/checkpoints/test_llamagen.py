"""Published files, really written and really broken: what is read is right, what is wrong is one sentence.

Sources are files of the public code (tests/data/full_len). Numbers that the models give are in
tests/test_reference_full_len.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import DATA
from lantern.checkpoints.drafter import draft_places, read_draft
from lantern.checkpoints.files import WeightFile
from lantern.checkpoints.llamagen import check_original, read_target, target_places
from lantern.checkpoints.native import copy_tensors, save_model
from lantern.models.config import LLAMAGEN_SIZES
from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.target import TargetConfig, TargetModel
from published_layouts import (
    CONFIG,
    FOLDER,
    ORIGINAL,
    as_hugging_face,
    read_drafter_state,
    read_original,
    refusal,
    vq_state,
    write_hugging_face,
)

# --- what is right is read ------------------------------------------------------------------------------------------


def test_hugging_face_names_and_values_are_the_authors():
    """The public code's own file in that layout, tensor by tensor."""
    stored = json.loads((FOLDER / "target_hf_hashes.json").read_text())
    mine = as_hugging_face(read_original())
    hashes = {
        key: [list(tensor.shape), hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]]
        for key, tensor in mine.items()
    }
    assert hashes == stored


def test_layouts_list_the_published_tensors_of_xl():
    published = json.loads((FOLDER / "keys_gptxl.json").read_text())
    config = TargetConfig(
        **LLAMAGEN_SIZES["XL"], vocab_size=16384, grid=16, num_text_tokens=120, caption_dim=2048, ffn_multiple=256
    )
    with torch.device("meta"):
        target, draft = TargetModel(config), DraftModel(DraftConfig(1280, 20, 3584, 16384, 16, 120))
    mine = {
        "llamagen_t2i_XL": target_places(target, is_hugging_face=False),
        "lantern_hf": target_places(target, is_hugging_face=True),
        "drafter": draft_places(draft, has_bias=True),
    }
    for name, places in mine.items():
        assert len(places) == published[name]["count"]
        for key, shape in published[name]["shapes"].items():
            assert places[key].shape == tuple(shape), key


@pytest.mark.parametrize("kind", ["single", "sharded", "bin"])
def test_all_layouts_give_the_same_target(tmp_path, kind):
    original = read_target(ORIGINAL, CONFIG)
    folder = write_hugging_face(tmp_path / "hf", as_hugging_face(read_original()), kind)
    same = read_target(folder, CONFIG)
    assert same.config == original.config
    assert all(torch.equal(a, b) for a, b in zip(original.parameters(), same.parameters(), strict=True))
    save_model(tmp_path / "own.safetensors", same)
    own = read_target(tmp_path / "own.safetensors", CONFIG)
    assert all(torch.equal(a, b) for a, b in zip(original.parameters(), own.parameters(), strict=True))


@pytest.mark.parametrize("key", ["model", "module", "state_dict", None])
@pytest.mark.parametrize("is_new_format", [True, False], ids=["zip", "legacy"])
def test_top_level_keys_and_pickle_formats(tmp_path, key, is_new_format):
    state = read_original()
    args = argparse.Namespace(image_size=256, downsample_size=16, gpt_model="GPT-XL")
    whole = {"optimizer": {"state": {}}, "steps": 3, "args": args, key: state} if key else state
    path = tmp_path / "weights.pt"
    torch.save(whole, path, _use_new_zipfile_serialization=is_new_format)
    model = read_target(path, CONFIG)
    assert torch.equal(model.head.weight, state["output.weight"])


def test_half_precision_becomes_float32(tmp_path):
    state = {key: tensor.bfloat16() for key, tensor in as_hugging_face(read_original()).items()}
    model = read_target(write_hugging_face(tmp_path / "hf", state), CONFIG)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.head.weight, state["lm_head.weight"].float())


def test_eps_and_feed_forward_width_come_from_config_json(tmp_path):
    state = as_hugging_face(read_original())
    model = read_target(write_hugging_face(tmp_path / "hf", state, rms_norm_eps=1e-6), CONFIG)
    assert model.config.norm_eps == model.final_norm.eps == 1e-6
    for key in list(state):
        if "gate_proj" in key or "up_proj" in key:
            state[key] = state[key].repeat(2, 1)[:300]
        if "down_proj" in key:
            state[key] = state[key].repeat(1, 2)[:, :300].contiguous()
    model = read_target(write_hugging_face(tmp_path / "wide", state, intermediate_size=300), CONFIG)
    assert model.config.ffn_hidden == 300


def test_null_caption_is_cut_only_where_the_file_says_so(tmp_path):
    """LlamaGen stores 120 rows whatever the model's number of caption rows."""
    small = replace(CONFIG, num_text_tokens=77)
    sentence = refusal(lambda: read_target(ORIGINAL, small))
    assert "cls_embedding.uncond_embedding should have shape (77, 16), found (120, 16)" in sentence
    path, args = tmp_path / "t2i_tiny.pt", argparse.Namespace(cls_token_num=77, image_size=256)
    torch.save({"model": read_original(), "args": args}, path)
    assert read_target(path, small).null_caption.shape == (77, 16)
    assert "args.cls_token_num should be 120" in refusal(lambda: read_target(path, CONFIG))
    folder = write_hugging_face(tmp_path / "hf", as_hugging_face(read_original()), cls_token_num=77)
    assert read_target(folder, small).null_caption.shape == (77, 16)


def test_the_one_file_of_a_folder(tmp_path):
    path = tmp_path / "resource" / "t2i_tiny.pt"
    path.parent.mkdir()
    path.write_bytes(ORIGINAL.read_bytes())
    (path.parent / "t2i_tiny.pt.sha256").write_text("0")
    assert read_target(path.parent, CONFIG).config == CONFIG


# --- what is wrong is one sentence ----------------------------------------------------------------------------------


def break_target(tmp_path: Path, case: str) -> Path:
    """A target that is wrong in one way."""
    state, path = read_original(), tmp_path / "t2i_tiny.pt"
    if case == "stage 2 by name":
        path = tmp_path / "t2i_XL_stage2_512.pt"
    elif case == "lacks a tensor":
        state.pop("layers.1.feed_forward.w3.weight")
    elif case == "foreign tensor":
        state["layers.0.attention.wqkv.bias"] = torch.zeros(144)
    elif case == "for classes":
        state = {key: value for key, value in state.items() if not key.startswith("cls_embedding")}
        state["cls_embedding.embedding_table.weight"] = torch.zeros(1001, 48)
    elif case == "one layer more":
        state |= {key.replace("layers.1", "layers.2"): value for key, value in state.items() if "layers.1" in key}
    elif case == "wider":
        state["tok_embeddings.weight"] = torch.zeros(128, 64)
    elif case == "quantised":
        state["output.weight"] = state["output.weight"].to(torch.int8)
    elif case == "a drafter":
        state = read_drafter_state()
    elif case == "an image tokenizer":
        state = vq_state()
    extras = {"args": argparse.Namespace(image_size=512, downsample_size=16)} if case == "stage 2 by args" else {}
    whole = {"wrong": state, "ema": state} if case == "top-level key" else {"model": state, **extras}
    whole = {"model": {"a": 1}} if case == "no tensors" else [state] if case == "a list" else whole
    torch.save(whole, path)
    return path


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("stage 2 by name", ["t2i_XL_stage2_512.pt", "should be 256", "tokenizer.grid", "found 512"]),
        ("stage 2 by args", ["args.image_size should be 256", "tokenizer.grid", "found 512"]),
        ("lacks a tensor", ["lacks the tensor layers.1.feed_forward.w3.weight of shape (256, 48)", "found 19"]),
        ("foreign tensor", ["foreign tensor layers.0.attention.wqkv.bias", "expected 20 tensors, found 21"]),
        ("for classes", ["what it draws from should be captions", "text.encoder", "found classes"]),
        ("one layer more", ["foreign tensor layers.2.", "(7 such)"]),
        ("wider", ["tok_embeddings.weight should have shape (128, 48), found (128, 64)"]),
        ("quantised", ["output.weight should hold floating-point numbers, found torch.int8"]),
        ("a drafter", ["lacks the tensor tok_embeddings.weight", "foreign tensor embed_tokens.weight"]),
        ("an image tokenizer", ["lacks the tensor tok_embeddings.weight", "foreign tensor encoder.conv_in.weight"]),
        ("top-level key", ["top-level key should be one of model, module, state_dict, found wrong, ema"]),
        ("no tensors", ["model should hold tensors by name, found something else under 'a'"]),
        ("a list", ["should hold tensors by name, found a list"]),
    ],
)
def test_wrong_original_targets(tmp_path, case, words):
    path = break_target(tmp_path, case)
    sentence = refusal(lambda: read_target(path, CONFIG))
    for word in [path.name, *words]:
        assert word in sentence, sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_size": 1024}, ["block_size should be 256", "tokenizer.grid", "found 1024"]),
        ({"hidden_size": 64}, ["hidden_size should be 48", "target.dim", "found 64"]),
        ({"num_hidden_layers": 36}, ["num_hidden_layers should be 2", "target.num_layers", "found 36"]),
        ({"num_attention_heads": 6}, ["num_key_value_heads should be num_attention_heads = 6, found 4"]),
        ({"num_key_value_heads": 2}, ["num_key_value_heads should be num_attention_heads = 4, found 2"]),
        ({"vocab_size": 16384}, ["vocab_size should be 128", "tokenizer.codebook_size", "found 16384"]),
        ({"cls_token_num": 77}, ["cls_token_num should be 120", "text.max_tokens", "found 77"]),
        ({"caption_dim": 2048}, ["caption_dim should be 16", "text.caption_dim", "found 2048"]),
        ({"input_type": "c2i"}, ["input_type should be t2i", "found c2i"]),
        ({"rms_norm_eps": None}, ["lacks the key rms_norm_eps"]),
        ({"rms_norm_eps": "1e-5"}, ["rms_norm_eps should be a number above 0, found '1e-5'"]),
        ({"rope_base": "x"}, ["rope_base should be a number above 0, found 'x'"]),
        ({"block_size": 250}, ["block_size should be a square number of tokens, found 250"]),
        ({"intermediate_size": 512}, ["layers.0.mlp.gate_proj.weight should have shape (512, 48), found (256, 48)"]),
    ],
    ids=str,
)
def test_wrong_settings_of_hugging_face_targets(tmp_path, changes, words):
    folder = write_hugging_face(tmp_path / "hf", as_hugging_face(read_original()), **changes)
    sentence = refusal(lambda: read_target(folder, CONFIG))
    for word in [str(folder), *words]:
        assert word in sentence, sentence


def test_damaged_hugging_face_folders(tmp_path):
    state = as_hugging_face(read_original())
    folder = write_hugging_face(tmp_path / "hf", state, "sharded")
    whole = (folder / "two.safetensors").read_bytes()
    (folder / "two.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "two.safetensors is truncated" in refusal(lambda: read_target(folder, CONFIG))
    save_file({"other": torch.zeros(1)}, folder / "two.safetensors")
    assert "two.safetensors lacks the tensor" in refusal(lambda: read_target(folder, CONFIG))
    (folder / "two.safetensors").unlink()
    sentence = refusal(lambda: read_target(folder, CONFIG), FileNotFoundError)
    assert "two.safetensors, which model.safetensors.index.json names" in sentence
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "should hold the key weight_map" in refusal(lambda: read_target(folder, CONFIG))
    (folder / "model.safetensors.index.json").unlink()
    (folder / "two.safetensors").write_bytes(whole)
    assert "should hold one weight file, found one.safetensors, two.saf" in refusal(lambda: read_target(folder, CONFIG))
    folder = write_hugging_face(tmp_path / "bare", state)
    (folder / "config.json").write_text("{")
    assert "config.json is not valid JSON" in refusal(lambda: read_target(folder, CONFIG))
    (folder / "config.json").unlink()
    assert "there is no file" in refusal(lambda: read_target(folder, CONFIG), FileNotFoundError)
    state.pop("lm_head.weight")
    folder = write_hugging_face(tmp_path / "headless", state)
    assert "lacks the tensor lm_head.weight of shape (128, 48)" in refusal(lambda: read_target(folder, CONFIG))


def test_wrong_files_of_our_own_layout(tmp_path):
    model = read_target(ORIGINAL, CONFIG)
    save_model(tmp_path / "model.safetensors", model)
    sentence = refusal(lambda: read_target(tmp_path / "model.safetensors", replace(CONFIG, grid=32)))
    assert "grid should be 32 as tokenizer.grid says, found 16" in sentence
    sentence = refusal(lambda: read_draft(tmp_path / "model.safetensors", CONFIG))
    assert "should hold a draft_model, found target_model" in sentence


def test_reference_set_in_our_names_is_also_read(tmp_path):
    """The published names in a safetensors file, as some mirrors keep them."""
    path = tmp_path / "mirror.safetensors"
    save_file(load_file(DATA / "reference" / "target_llamagen.safetensors"), path)
    config = TargetConfig(64, 3, 4, 64, 4, 8, 24, 256)
    assert read_target(path, config).config == config


def config_of(size: str, **changes: int) -> TargetConfig:
    sizes = {**LLAMAGEN_SIZES[size], **changes}
    return TargetConfig(**sizes, vocab_size=16384, grid=16, num_text_tokens=120, caption_dim=2048, ffn_multiple=256)


def test_a_renamed_file_is_read_with_the_note_that_its_stage_was_not_checked(tmp_path, caplog):
    shutil.copy(ORIGINAL, tmp_path / "mine.pt")
    read_target(tmp_path / "mine.pt", CONFIG)
    assert "mine.pt: neither the file's name nor its training's arguments say" in caplog.text
    assert "images of 16 x 16 tokens" in caplog.text


@pytest.mark.parametrize("where", ["name", "arguments"])
def test_a_stage_that_was_checked_needs_no_note(tmp_path, caplog, where):
    path = tmp_path / ("t2i_XL_stage1_256.pt" if where == "name" else "mine.pt")
    args = argparse.Namespace(image_size=256) if where == "arguments" else None
    torch.save({"model": read_original(), "args": args}, path)
    read_target(path, CONFIG)
    assert "of stage 1 or 2" not in caplog.text


def test_heads_follow_from_a_named_size(caplog):
    weights = WeightFile(Path("t2i_XL_stage1_256.pt"), {})
    for size in LLAMAGEN_SIZES:
        check_original(weights, config_of(size))
    assert not caplog.records
    sentence = refusal(lambda: check_original(weights, config_of("XL", num_heads=16)))
    for words in ("t2i_XL_stage1_256.pt: num_heads should be 20", "LlamaGen-XL", "found 16", "target.num_heads"):
        assert words in sentence
    check_original(weights, config_of("XL", num_layers=35, num_heads=16))
    assert "the 16 heads of target.num_heads were not checked" in caplog.text


def fill(state: dict[str, torch.Tensor], is_hugging_face: bool = False) -> TargetModel:
    """A model of tests/data/reference with the numbers of `state`."""
    model = TargetModel(TargetConfig(64, 3, 4, 64, 4, 8, 24, 256))
    copy_tensors(state, target_places(model, is_hugging_face), Path("target"))
    return model


def test_foreign_and_missing_target_keys_are_named():
    state = load_file(DATA / "reference" / "target_llamagen.safetensors")
    assert "foreign tensor visual.proj" in refusal(lambda: fill(state | {"visual.proj": torch.zeros(1)}))
    sentence = refusal(lambda: fill(state | {"layers.0.attention.bias": torch.zeros(1)}))
    assert "foreign tensor layers.0.attention.bias" in sentence
    state.pop("layers.1.feed_forward.w3.weight")
    assert "lacks the tensor layers.1.feed_forward.w3.weight" in refusal(lambda: fill(state))


def test_both_published_layouts_hold_the_same_model():
    state = load_file(DATA / "reference" / "target_llamagen.safetensors")
    original, hugging_face = fill(state).state_dict(), fill(as_hugging_face(state), True).state_dict()
    assert all(torch.equal(original[name], hugging_face[name]) for name in original)
