"""Tests of models with random weights: published sizes, and the sizes of a folder."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.tiny_transformers import make_tiny
from lantern.models.config import target_parameters
from lantern_models.adapter import TransformersTarget
from lantern_models.cards.published import CARDS
from lantern_pipeline.measure.speed.random_models import find_card, random_model, target_config

CPU = torch.device("cpu")


def test_the_sizes_are_the_published_ones():
    same = ("dim", "num_layers", "num_heads", "vocab_size", "grid", "small_grid", "ffn_hidden", "num_image_tokens")
    for name, card in CARDS.items():
        published, found = card.target_config(), target_config(card)
        assert {key: getattr(found, key) for key in same} == {key: getattr(published, key) for key in same}, name
        found = replace(found, num_text_tokens=published.num_text_tokens)
        assert target_parameters(found) == target_parameters(published), name


def test_a_card_is_found_by_its_name_family_or_hub_id():
    assert find_card("glm-image") is find_card("glm_image") is find_card("zai-org/GLM-Image") is CARDS["glm-image"]
    assert find_card("janus") is CARDS["janus-pro-1b"]
    with pytest.raises(ValueError, match=r"must be one of llamagen_stage1, .* got 'embedded'"):
        find_card("embedded")


@pytest.mark.parametrize("name", ["llamagen_stage1", "llamagen_c2i", "janus-pro-7b"])
def test_tiny_models_keep_the_settings_of_the_published_one(name):
    model = random_model(name, CPU, torch.bfloat16, is_tiny=True)
    assert (model.models.target.config.num_image_tokens, model.models.target.dtype) == (16, torch.bfloat16)
    assert model.sampling.cfg_scale == CARDS[name].sampling["cfg_scale"] and model.models.draft is not None
    codes = model.generate("any text", "jacobi", cfg_scale=1.0).codes
    assert torch.equal(codes, model.generate("any text", "autoregressive", cfg_scale=1.0).codes)


@pytest.mark.parametrize("name", ["glm_image", "emu3"])
def test_of_a_folder_the_config_is_enough(name, tmp_path):
    tiny, _ = make_tiny(name)
    tiny.config.architectures = [type(tiny).__name__]
    tiny.config.save_pretrained(tmp_path)
    target = random_model(str(tmp_path), CPU, torch.float32).models.target
    assert isinstance(target, TransformersTarget) and not (tmp_path / "model.safetensors").exists()
    text = tiny.config.get_text_config()
    found = target.config
    assert (found.dim, found.num_layers, found.ffn_width) == (64, 2, 96) and found.num_codes == 20
    assert found.grid == CARDS[{"emu3": "emu3-gen"}.get(name, "glm-image")].images.grid
    assert target.layers.config.to_diff_dict().items() >= {"num_key_value_heads": text.num_key_value_heads}.items()


def test_a_folder_of_another_model_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(ValueError, match=r"a model of transformers must be one of .*, got BertModel"):
        random_model(str(tmp_path), CPU, torch.float32)
