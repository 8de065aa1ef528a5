"""Published layouts: foreign and missing keys are named. Numbers are checked in tests/test_reference.py."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from conftest import DATA
from lantern.checkpoints.layouts import convert_draft, convert_target
from published_layouts import as_hugging_face


def test_foreign_and_missing_target_keys_are_named():
    state = load_file(DATA / "reference" / "target_llamagen.safetensors")
    with pytest.raises(ValueError, match=r"foreign tensor visual\.proj"):
        convert_target(state | {"visual.proj": torch.zeros(1)}, 8)
    with pytest.raises(ValueError, match=r"foreign tensor attention\.bias in layer 0"):
        convert_target(state | {"layers.0.attention.bias": torch.zeros(1)}, 8)
    state.pop("layers.1.feed_forward.w3.weight")
    with pytest.raises(ValueError, match=r"layer 1 lacks .*feed_forward\.w3\.weight"):
        convert_target(state, 8)


def test_null_caption_is_cut_to_the_models_rows():
    state = load_file(DATA / "reference" / "target_llamagen.safetensors")
    state["cls_embedding.uncond_embedding"] = torch.randn(120, 24)
    assert convert_target(state, 8)["null_caption"].shape == (8, 24)


def test_drafter_without_bias_and_with_foreign_keys():
    state = load_file(DATA / "reference" / "drafter.safetensors")
    bias = state.pop("fc.bias")
    assert (convert_draft(state)["from_token.bias"] == 0).all()
    assert convert_draft(state)["from_token.bias"].shape == bias.shape
    with pytest.raises(ValueError, match=r"foreign tensor norm\.weight"):
        convert_draft(state | {"norm.weight": bias})
    state.pop("fc.weight")
    with pytest.raises(ValueError, match=r"missing tensor fc\.weight"):
        convert_draft(state)


def test_both_published_layouts_hold_the_same_model():
    state = load_file(DATA / "reference" / "target_llamagen.safetensors")
    original, hugging_face = convert_target(state, 8), convert_target(as_hugging_face(state), 8)
    assert set(original) == set(hugging_face)
    assert all(torch.equal(original[name], hugging_face[name]) for name in original)
