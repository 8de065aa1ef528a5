"""Tests of one training step of the LANTERN authors' recipe against numbers of their code (tests/data/train_step)."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from helpers.paths import DATA
from helpers.tiny_codes import make_recipe
from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.stored import copy_tensors
from lantern.models.target import TargetConfig, TargetModel
from lantern_models.checkpoints.drafter import fill_draft
from lantern_models.checkpoints.target import map_target_parameters
from lantern_pipeline.training.drafter import make_optimiser
from lantern_pipeline.training.drafter_loss import DraftLoss, unroll

NUM_TEXT, NUM_TOKENS = 8, 16
CONFIG = TargetConfig(64, 3, 4, 64, 4, NUM_TEXT, 24, 256)
RECIPE = json.loads((DATA / "train_step" / "step.json").read_text())


@pytest.fixture
def step() -> SimpleNamespace:
    """Return the models before the step, and the batch as the authors' collator made it."""
    stored = load_file(DATA / "train_step" / "step.safetensors")
    reference = DATA / "reference"
    target = TargetModel(CONFIG)
    state = load_file(reference / "target_llamagen.safetensors")
    copy_tensors(state, map_target_parameters(target, is_hugging_face=False), reference)
    target.eval()
    before = {name.removeprefix("before."): part for name, part in stored.items() if name.startswith("before.")}
    before["embed_tokens.weight"] = load_file(reference / "drafter.safetensors")["embed_tokens.weight"]  # frozen
    draft = DraftModel(DraftConfig(64, 4, 256, 64, 4, NUM_TEXT, masks_text_padding=False))
    fill_draft(draft, before, reference, has_bias=True)
    draft.token_embedding.requires_grad_(False)
    # Row r of theirs holds hidden state r and token r + 1: 7 zeros, the 16 image tokens, a zero. They also train the
    # hidden state after the last token, which predicts nothing; Lantern needs an image with one more token.
    codes = stored["in.input_ids"][:, NUM_TEXT - 1 :].long()
    noisy = stored["in.hidden_states"]
    wanted = stored["in.target"][:, NUM_TEXT - 1 : -1]  # row n predicts token n + 1
    return SimpleNamespace(target=target, draft=draft, codes=codes, noisy=noisy, wanted=wanted, stored=stored)


def row_losses(step) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (SmoothL1, cross-entropy) of each predicted token, (rows, tokens - 1)."""
    mask = torch.zeros(len(step.codes), NUM_TEXT, dtype=torch.bool)  # their drafter masks no padding, nor does ours
    predicted = unroll(step.draft, step.codes, mask, step.noisy, 1)[0]
    regression = F.smooth_l1_loss(predicted, step.wanted, reduction="none").mean(-1)
    probs = step.target.head(step.wanted).softmax(-1)
    return regression, -(probs * step.target.head(predicted).log_softmax(-1)).sum(-1)


@pytest.mark.sensitive
def test_losses_and_parameters_after_one_step(step):
    """Their mask leaves out the first draft position, which Lantern trains; AdamW follows clipping by value."""
    mask = step.stored["in.loss_mask"]
    assert mask[:, NUM_TEXT:-1].all() and int(mask.sum()) == 3 * (NUM_TOKENS - 1)
    regression, entropy = (part[:, 1:].mean() for part in row_losses(step))
    assert regression.item() == pytest.approx(RECIPE["vloss"], rel=1e-5)
    assert entropy.item() == pytest.approx(RECIPE["ploss"], rel=1e-5)
    loss = regression + RECIPE["p_w"] * entropy
    assert loss.item() == pytest.approx(RECIPE["loss"], rel=1e-5)
    recipe = make_recipe(
        loss="published",
        optimiser="adamw",
        learning_rate=RECIPE["lr"],
        weight_decay=RECIPE["weight_decay"],
        max_norm=float("inf"),
    )
    optimiser = make_optimiser(step.draft, recipe)
    settings = optimiser.parts[0].param_groups[0]
    assert settings["betas"] == tuple(RECIPE["betas"]) and settings["eps"] == RECIPE["eps"]
    loss.backward()
    torch.nn.utils.clip_grad_value_(optimiser.parameters, RECIPE["grad_clip_value"])
    gradient = step.stored["clipped_grad.layers.0.post_attention_layernorm.weight"]
    torch.testing.assert_close(step.draft.layer.ffn_norm.weight.grad, gradient, atol=1e-5, rtol=1e-4)
    optimiser.update(1.0)
    after = {name.removeprefix("after."): part for name, part in step.stored.items() if name.startswith("after.")}
    layer, mine = step.draft.layer, {"fc.bias": step.draft.from_token.bias}
    mine["fc.weight"] = torch.cat([step.draft.from_token.weight, step.draft.from_hidden.weight], dim=1)
    mine |= {
        f"layers.0.self_attn.{c}_proj.weight": part for c, part in zip("qkv", layer.qkv.weight.chunk(3), strict=True)
    }
    mine["layers.0.self_attn.o_proj.weight"] = layer.attention_out.weight
    gate, up = layer.gate_up.weight.chunk(2)
    mine |= {"layers.0.mlp.gate_proj.weight": gate, "layers.0.mlp.up_proj.weight": up}
    mine["layers.0.mlp.down_proj.weight"] = layer.down.weight
    mine["layers.0.post_attention_layernorm.weight"] = layer.ffn_norm.weight
    assert set(mine) == set(after)
    for name, wanted in after.items():
        found = mine[name].detach()[: len(wanted)]
        # A first AdamW step moves each weight by about the learning rate, whatever the gradient's size: where the
        # gradient is rounding noise, so is the sign of the step.
        is_close = (found - wanted).abs() < 2e-5
        assert is_close.float().mean() > 0.999, name
        assert float((found - wanted).abs().max()) <= 2.1 * RECIPE["lr"], name


def test_draft_loss_is_theirs_with_the_first_position_added(step):
    """The mean covers all 16 positions; the authors' code leaves out the first."""
    hidden = torch.cat([torch.zeros(3, NUM_TEXT, 64), step.wanted], dim=1)
    mask = torch.ones(3, NUM_TEXT, dtype=torch.bool)
    with torch.no_grad():
        loss, _ = DraftLoss(step.draft, step.target, make_recipe(loss="published"))(
            step.codes, mask, hidden, step.noisy
        )
        regression, entropy = row_losses(step)
    first = float((regression + RECIPE["p_w"] * entropy)[:, 0].mean())
    count = regression.shape[1]
    assert float(loss) == pytest.approx((first + (count - 1) * RECIPE["loss"]) / count, rel=1e-5)
