"""Tests of LlamaGen's published targets: real files are read correctly, and broken ones give one sentence.

Files are those of the public code (tests/data/full_len). Numbers are tested in tests/core/test_reference.py.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from helpers.published_layouts import (
    CONFIG,
    FOLDER,
    ORIGINAL,
    as_hugging_face,
    read_original,
    refusal,
    write_hugging_face,
)
from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.stored import save_model
from lantern.models.target import TargetConfig, TargetModel
from lantern_models.checkpoints.drafter import map_draft_parameters
from lantern_models.checkpoints.target import map_target_parameters, read_target
from lantern_models.sizes import LLAMAGEN_SIZES


def save_original(path, state=None, **args):
    torch.save({"model": state or read_original(), "args": argparse.Namespace(**args)}, path)
    return path


def test_names_shapes_and_values_are_the_published_ones():
    """Compared with the public code's file in the LANTERN authors' layout, and with the list of XL's tensors."""
    stored = json.loads((FOLDER / "target_hf_hashes.json").read_text())
    mine = as_hugging_face(read_original())
    assert stored == {
        key: [list(tensor.shape), hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]]
        for key, tensor in mine.items()
    }
    published = json.loads((FOLDER / "keys_gptxl.json").read_text())
    text = {"num_text_tokens": 120, "caption_dim": 2048}
    config = TargetConfig(**LLAMAGEN_SIZES["XL"], **text, vocab_size=16384, grid=16, ffn_multiple=256)
    with torch.device("meta"):
        target, draft = TargetModel(config), DraftModel(DraftConfig(1280, 20, 3584, 16384, 16, 120))
    mine = {
        "llamagen_t2i_XL": map_target_parameters(target, is_hugging_face=False),
        "lantern_hf": map_target_parameters(target, is_hugging_face=True),
        "drafter": map_draft_parameters(draft, has_bias=True),
    }
    for name, places in mine.items():
        assert len(places) == published[name]["count"]
        for key, shape in published[name]["shapes"].items():
            assert places[key].shape == tuple(shape), key


@pytest.mark.parametrize("kind", ["single", "sharded", "bin", "mirror", "own"])
def test_all_layouts_give_the_same_target(tmp_path, kind):
    original = read_target(ORIGINAL, CONFIG)
    if kind == "mirror":  # the original names in another format
        path = tmp_path / "t2i.safetensors"
        save_file(read_original(), path)
    elif kind == "own":
        path = tmp_path / "own.safetensors"
        save_model(path, original)
    else:
        path = write_hugging_face(tmp_path / "hf", as_hugging_face(read_original()), kind)
    same = read_target(path, CONFIG)
    assert same.config == original.config == CONFIG
    assert all(torch.equal(a, b) for a, b in zip(original.parameters(), same.parameters(), strict=True))


def test_what_config_json_says_and_numbers_in_half_precision(tmp_path):
    state = {key: tensor.bfloat16() for key, tensor in as_hugging_face(read_original()).items()}
    for key in list(state):
        if "gate_proj" in key or "up_proj" in key:
            state[key] = state[key].repeat(2, 1)[:300]
        if "down_proj" in key:
            state[key] = state[key].repeat(1, 2)[:, :300].contiguous()
    changes = {"rms_norm_eps": 1e-6, "rope_base": 500, "intermediate_size": 300}
    model = read_target(write_hugging_face(tmp_path / "hf", state, **changes), CONFIG)
    assert model.config.norm_eps == model.final_norm.eps == 1e-6
    assert (model.config.rope_base, model.config.ffn_hidden) == (500, 300)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.head.weight, state["lm_head.weight"].float())


def test_null_caption_is_cut_only_where_the_file_says_so(tmp_path):
    """LlamaGen stores 120 null-caption positions, even if the model has fewer prompt positions."""
    small = replace(CONFIG, num_text_tokens=77)
    sentence = refusal(lambda: read_target(ORIGINAL, small))
    assert "cls_embedding.uncond_embedding should have shape (77, 16), found (120, 16)" in sentence
    path = save_original(tmp_path / "t2i_tiny.pt", cls_token_num=77, image_size=256)
    assert read_target(path, small).null_caption.shape == (77, 16)
    assert "args.cls_token_num should be 120" in refusal(lambda: read_target(path, CONFIG))
    folder = write_hugging_face(tmp_path / "hf", as_hugging_face(read_original()), cls_token_num=77)
    assert read_target(folder, small).null_caption.shape == (77, 16)


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("layers.1.feed_forward.w3.weight", None, "lacks the tensor layers.1.feed_forward.w3.weight of shape (256,"),
        ("layers.1.feed_forward.w3.weight", None, "expected 20 tensors, found 19"),
        ("layers.0.attention.wqkv.bias", torch.zeros(144), "the unexpected tensor layers.0.attention.wqkv.bias"),
        ("layers.2.ffn_norm.weight", torch.zeros(48), "tensor layers.2.ffn_norm.weight (1 such); expected"),
        ("cls_embedding.embedding_table.weight", torch.zeros(1001, 48), "what it is prompted with should be captions"),
        ("tok_embeddings.weight", torch.zeros(128, 64), "weight should have shape (128, 48), found (128, 64)"),
        ("output.weight", torch.zeros(128, 48).to(torch.int8), "hold floating-point numbers, found torch.int8"),
    ],
)
def test_wrong_tensors_of_original_targets(tmp_path, name, tensor, words):
    state = {key: part for key, part in {**read_original(), name: tensor}.items() if part is not None}
    path = save_original(tmp_path / "t2i_tiny.pt", state)
    sentence = refusal(lambda: read_target(path, CONFIG))
    assert sentence.startswith(str(path)) and words in sentence, sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_size": 1024}, ["block_size should be 256", "(grid)", "found 1024"]),
        ({"hidden_size": 64}, ["hidden_size should be 48", "(dim)", "found 64"]),
        ({"num_hidden_layers": 36}, ["num_hidden_layers should be 2", "(num_layers)", "found 36"]),
        ({"num_attention_heads": 6}, ["num_attention_heads should be 4", "(num_heads)", "found 6"]),
        ({"vocab_size": 16384}, ["vocab_size should be 128", "(vocab_size)", "found 16384"]),
        ({"cls_token_num": 77}, ["cls_token_num should be 120", "(num_text_tokens)", "found 77"]),
        ({"caption_dim": 2048}, ["caption_dim should be 16", "(caption_dim)", "found 2048"]),
        ({"input_type": "c2i"}, ["input_type should be t2i", "found c2i"]),
        ({"rms_norm_eps": None}, ["lacks the key rms_norm_eps"]),
        ({"rms_norm_eps": "1e-5"}, ["rms_norm_eps should be a number above 0, found '1e-5'"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps should be a number above 0, found 0"]),
        ({"vocab_size": True}, ["vocab_size should be an integer above 0, found True"]),
        ({"input_type": 2}, ["input_type should be text, found 2"]),
        ({"intermediate_size": 512}, ["layers.0.mlp.gate_proj.weight should have shape (512, 48), found (256, 48)"]),
    ],
    ids=str,
)
def test_wrong_settings_of_hugging_face_targets(tmp_path, changes, words):
    folder = write_hugging_face(tmp_path / "hf", as_hugging_face(read_original()), **changes)
    sentence = refusal(lambda: read_target(folder, CONFIG))
    assert all(word in sentence for word in [str(folder), *words]), sentence


def test_a_folder_without_a_sound_config_json_is_named(tmp_path):
    folder = write_hugging_face(tmp_path / "bare", as_hugging_face(read_original()))
    (folder / "config.json").write_text("[]")
    assert "config.json should hold keys and values, found list" in refusal(lambda: read_target(folder, CONFIG))
    (folder / "config.json").unlink()
    assert "there is no file" in refusal(lambda: read_target(folder, CONFIG), FileNotFoundError)


def test_stages_are_told_by_arguments_or_name_or_not_at_all(tmp_path, caplog):
    for name, args in (("t2i_XL_stage1_256.pt", {}), ("mine.pt", {"image_size": 256})):
        read_target(save_original(tmp_path / name, **args), CONFIG)
    assert "of stage 1 or 2" not in caplog.text
    for name, args, key in (
        ("t2i_XL_stage2_512.pt", {}, "the image size in the file's name"),
        ("mine.pt", {"image_size": 512, "downsample_size": 16}, "args.image_size"),
    ):
        path = save_original(tmp_path / name, **args)
        sentence = refusal(lambda path=path: read_target(path, CONFIG))
        assert f"{name}: {key} should be 256 to fit the model (image size), found 512" in sentence
    shutil.copy(ORIGINAL, tmp_path / "mine.pt")
    read_target(tmp_path / "mine.pt", CONFIG)
    assert "mine.pt: neither the file's name nor its training's arguments state" in caplog.text
    assert "images of 16 x 16 codes" in caplog.text


@pytest.mark.parametrize("size", ["B", "XL"])
def test_heads_follow_from_a_named_size(size):
    """Shapes do not depend on the number of heads, so the number must come from the name of the size."""
    sizes = {**LLAMAGEN_SIZES[size], "num_heads": 4}
    sentence = refusal(lambda: read_target(ORIGINAL, replace(CONFIG, **sizes)))
    for words in (f"num_heads should be {LLAMAGEN_SIZES[size]['num_heads']}", f"LlamaGen-{size}", "got 4"):
        assert words in sentence
    assert "should have shape" in refusal(lambda: read_target(ORIGINAL, replace(CONFIG, **LLAMAGEN_SIZES[size])))
