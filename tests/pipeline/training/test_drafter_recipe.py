"""Tests of the recipe: epochs and fractions in steps, learning-rate schedules, positions without loss."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_codes import make_recipe, make_target
from lantern.models.draft import DraftModel
from lantern_pipeline.training.drafter import make_optimiser


def test_epochs_and_shares_become_steps():
    recipe = make_recipe(num_epochs=20, batch_size=4, accumulation=8, warmup_share=0.03).resolve(95_000)
    assert (recipe.num_steps, recipe.warmup) == (59_375, 1781)  # 20 * 95000 / 32, and 3 % of it
    assert recipe == recipe.resolve(7)
    assert make_recipe(num_epochs=1, batch_size=4).resolve(9).num_steps == 3  # the last batch begins another epoch


def test_steps_stay_where_no_epochs_are_given():
    recipe = make_recipe(num_steps=350, warmup=50)
    assert recipe.resolve(1000) == recipe
    assert make_recipe(num_epochs=0.001).resolve(10).num_steps == 1


def test_the_rate_follows_the_schedule():
    cosine = make_recipe(num_steps=100, warmup=10)
    linear = make_recipe(num_steps=100, warmup=10, schedule="linear")
    assert cosine.rate(4) == linear.rate(4) == 0.5
    assert cosine.rate(55) == pytest.approx(0.51) and linear.rate(55) == pytest.approx(0.5)
    assert cosine.rate(100) == pytest.approx(0.02) and linear.rate(100) == 0


def test_adamw_takes_every_parameter_and_muon_the_layer_s_matrices():
    draft = DraftModel.from_target(make_target(), 0)
    count = sum(1 for _ in draft.parameters())
    adamw = make_optimiser(draft, make_recipe(optimiser="adamw", weight_decay=0.01, learning_rate=1e-4))
    assert len(adamw.parts) == 1 and len(adamw.parameters) == count
    settings = adamw.parts[0].param_groups[0]
    assert (settings["lr"], settings["betas"], settings["eps"], settings["weight_decay"]) == (
        1e-4,
        (0.9, 0.95),
        1e-8,
        0.01,
    )
    muon = make_optimiser(draft, make_recipe(weight_decay=0.02))
    assert isinstance(muon.parts[0], torch.optim.Muon) and len(muon.parameters) == count
    assert all(part.param_groups[0]["weight_decay"] == 0.02 for part in muon.parts)


def test_the_guided_loss_drops_no_captions():
    with pytest.raises(ValueError, match=r"drafter\.caption_dropout must be 0 under the guided loss, .* got 0\.1; set"):
        make_recipe(caption_dropout=0.1)
