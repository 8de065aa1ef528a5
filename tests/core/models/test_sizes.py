"""Tests that formulas for parameter counts give those of real models."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern.models.config import draft_parameters, target_parameters
from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern_models.cards.card import card_from
from lantern_models.cards.published import CARDS
from lantern_models.sizes import FFN_MULTIPLE, LLAMAGEN_SIZES, chameleon_draft
from lantern_pipeline.data.model_cards import card_sections, hub_entries, target_fields

XL = TargetConfig(
    **LLAMAGEN_SIZES["XL"], vocab_size=16384, grid=16, num_text_tokens=120, caption_dim=2048, ffn_multiple=FFN_MULTIPLE
)
IDS = TargetConfig(64, 2, 4, 32, 4, 8, rope="1d", num_prompt_ids=100, null_ids=(0, 1))


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    "config",
    [
        TargetConfig(),
        replace(XL, dim=96, num_layers=3, num_heads=4, vocab_size=64),
        replace(IDS, has_qk_norm=True),
        replace(IDS, has_qk_norm=True, num_kv_heads=2),
        replace(IDS, has_mlp_head=True, ffn_width=200),
    ],
    ids=range(5),
)
def test_parameters_are_those_of_the_models(config):
    target = TargetModel(config)
    assert target_parameters(config) == count(target)
    for draft in (DraftConfig.of(config), *([chameleon_draft(config)] if config.num_prompt_ids else [])):
        assert draft_parameters(draft) == count(DraftModel(draft))


def test_published_sizes():
    """Compared with counts of the public code.

    LlamaGen XL has 777,678,080 parameters without the null caption, and its drafter 44.6 million. The file of Anole's
    drafter has 504,393,728 parameters, among them one table for all ids. Lantern's draft model stores the rows of the
    codes a second time.
    """
    assert target_parameters(XL) == 777_678_080 + 120 * 2048
    assert draft_parameters(DraftConfig.of(XL)) == 44_567_040
    anole = TargetConfig(4096, 32, 32, 8192, 32, 128, num_prompt_ids=65536, ffn_width=11008, has_qk_norm=True)
    assert draft_parameters(chameleon_draft(anole)) == 504_393_728 + 8192 * 4096
    assert all(sizes["dim"] % (4 * sizes["num_heads"]) == 0 for sizes in LLAMAGEN_SIZES.values())
    billions = {name: target_parameters(replace(XL, **sizes)) / 1e9 for name, sizes in LLAMAGEN_SIZES.items()}
    stated = {"B": 0.111, "L": 0.343, "XL": 0.775, "XXL": 1.4, "XXXL": 3.9, "1B": 1.2, "3B": 3.1, "7B": 6.6}
    assert billions == pytest.approx(stated, rel=0.05)


def test_named_sizes():
    config = load_config([ROOT / "config.yaml"])
    config["target"]["checkpoint"] = None
    assert TargetConfig(**target_fields(typed_config(config))) == TargetConfig()
    config["target"]["size"] = "XL"
    found = TargetConfig(**target_fields(typed_config(config)))
    assert (found.dim, found.num_layers, found.num_heads, found.ffn_hidden) == (1280, 36, 20, XL.ffn_hidden)
    config["target"]["size"] = "XM"
    with pytest.raises(ValueError, match=r"target\.size .*XL, .* got 'XM'"):
        typed_config(config)


def test_cards_have_the_sizes_of_the_published_models():
    """Compared with the authors' counts in billions, of the part that generates images."""
    billions = {name: target_parameters(card.target_config()) / 1e9 for name, card in CARDS.items()}
    stated = {"llamagen_stage1": 0.775, "llamagen_c2i": 0.111, "llamagen_c2i_3B_384": 3.1, "anole-7b": 7, "emu3-gen": 8}
    assert {name: billions[name] for name in stated} == pytest.approx(stated, rel=0.12)
    assert billions["llamagen_stage2"] == billions["llamagen_stage1"]
    for name, card in CARDS.items():
        assert card.images.size % card.images.grid == 0 and card_from(json.loads(json.dumps(card.to_dict()))) == card
        assert card_sections(name)["target"]["checkpoint"] in hub_entries()
