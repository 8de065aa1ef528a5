"""Training of the draft model: what it unrolls is what decoding runs, and both losses learn."""

from __future__ import annotations

import pytest
import torch
from tiny_codes import CONFIG, make_dataset

from lantern.draft_tree import slide_window, window_table
from lantern.models.target import TargetModel, additive
from lantern.training.drafter import DrafterTrainer, DrafterTraining, new_draft_model, unroll
from lantern.training.loop import run_training


@pytest.fixture(scope="module")
def target() -> TargetModel:
    torch.manual_seed(1)
    model = TargetModel(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
    return model


def test_unrolled_passes_are_the_chain_that_decoding_drafts(target):
    """Row 2 of pass 3: tokens 0 with the target's hidden state, then tokens 1 and 2 with the draft model's own."""
    draft = new_draft_model(target, 0).eval()
    torch.nn.init.normal_(draft.layer.attention_out.weight, std=0.5)
    codes = torch.tensor([[3, 1, 4, 1]])
    mask = torch.tensor([[False, True, True]])
    features = torch.randn(1, 3, 16)
    with torch.inference_mode():
        hidden = target(features, mask, codes[:, :-1])  # (1, 6, dim)
        passes = unroll(draft, codes, mask, hidden, 3)
        cache = draft.new_cache(1, 8)
        text = torch.nn.functional.pad(additive(mask[:, :2], torch.float32), (0, 6))[:, None, None]
        own = torch.nn.functional.pad(torch.eye(3, dtype=torch.bool), (0, 5))

        def run(token, state, slot):
            slots = torch.arange(slot, slot + len(token))[None]
            causal = torch.ones(1, len(token), len(token), dtype=torch.bool).tril()
            table = window_table(causal, 8, torch.float32)
            attention = slide_window(table, torch.tensor([slot]), 8)[:, None] + text
            if slot == 0:
                attention = attention.masked_fill(own, 0.0)
            cache.place(slots)
            return draft.run_cached(token[None], state, slots, attention, cache)

        first = run(torch.tensor([0, 0, 3]), hidden[:, :3], 0)[:, -1:]
        second = run(codes[0, 1:2], first, 3)
        third = run(codes[0, 2:3], second, 4)
    torch.testing.assert_close(passes[0][:, 0], first[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(passes[1][:, 1], second[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(passes[2][:, 2], third[:, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("loss", ["guided", "published"])
def test_training_raises_the_overlap_with_the_target(target, loss):
    """Overlap of the two distributions at the first draft, mean of the first and of the last steps."""
    training = DrafterTraining(num_steps=80, batch_size=8, warmup=5, loss=loss, learning_rate=0.01, noise=0.0)
    trainer = DrafterTrainer(new_draft_model(target, 0), target, make_dataset(), training, seed=0)
    overlaps = [entry["overlap_1"] for entry in run_training(trainer, 80, name="drafter", log_every=1)]
    assert sum(overlaps[-5:]) > sum(overlaps[:5]) + 0.5


def test_accumulated_batches_are_averaged(target):
    """One step of two batches of 4 has the gradient of one batch of the same 8 images."""
    norms = []
    for batch_size, accumulation in ((4, 2), (8, 1)):
        training = DrafterTraining(num_steps=1, batch_size=batch_size, accumulation=accumulation)
        trainer = DrafterTrainer(new_draft_model(target, 0), target, make_dataset(), training, seed=0)
        norms.append(trainer.step(0)["gradient_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_target_stays_frozen(target):
    before = [parameter.clone() for parameter in target.parameters()]
    trainer = DrafterTrainer(new_draft_model(target, 0), target, make_dataset(), DrafterTraining(num_steps=2), seed=0)
    trainer.step(0)
    assert all(torch.equal(a, b) for a, b in zip(before, target.parameters(), strict=True))


def test_unknown_loss_is_named():
    with pytest.raises(ValueError, match=r"drafter\.loss must be one of guided, published, got 'mse'"):
        DrafterTraining(loss="mse")
