"""Tests of the training of shift heads: what they are compared with, and that they learn."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_codes import make_dataset, make_target
from lantern.sampling import SamplingConfig
from lantern_methods.shift_heads import ShiftHeads
from lantern_pipeline.training.heads import HeadsTrainer, HeadsTraining, HeadsValidation
from lantern_pipeline.training.loop import run_training


def make_trainer(num_steps: int = 60, cfg_scale: float = 3.0) -> HeadsTrainer:
    target = make_target()
    training = HeadsTraining(num_steps, batch_size=8, learning_rate=0.01, cfg_scale=cfg_scale, warmup=5)
    return HeadsTrainer(ShiftHeads.from_target(target, 1, seed=0), target, make_dataset(), training, seed=0)


@pytest.mark.parametrize("cfg_scale", [1.0, 3.0])
def test_untrained_heads_predict_the_state_that_they_read(cfg_scale):
    """Entry n of a prediction belongs to token n + shift. The head to the right is run in the first line only."""
    trainer = make_trainer(cfg_scale=cfg_scale)
    codes, features, mask = trainer.dataset.batch(torch.tensor([0, 3]))
    with torch.no_grad():
        pairs = trainer.predict(trainer.dataset, torch.tensor([0, 3]))
        states = trainer.target(features, mask, codes[:, :-1])[:, mask.shape[1] - 1 :]
    assert trainer.model.config.shifts == (1, 2) and states.shape[1] == 4
    for (shift, end), (predicted, wanted) in zip([(1, 2), (2, 4)], pairs, strict=True):  # a line has two tokens
        assert len(predicted) == 1 + (cfg_scale > 1)
        # Batches of other sizes may take other kernels, which round the 32 terms of a sum in another order.
        torch.testing.assert_close(predicted[0], states[:, : end - shift], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(wanted[0], states[:, shift:end], atol=1e-5, rtol=1e-5)


def test_training_brings_the_heads_closer_to_the_target():
    trainer = make_trainer()
    validate = HeadsValidation(trainer, make_dataset(6), SamplingConfig(top_k=4, cfg_scale=3.0))
    before = validate()
    history = run_training(trainer, 60, name="heads", validate=validate)
    assert set(before) == {"val_loss", "val_overlap_1", "val_overlap_2"}
    assert history[-1]["val_loss"] < 0.3 * before["val_loss"]
    for name in ("val_overlap_1", "val_overlap_2"):
        assert 0 <= before[name] < history[-1][name] <= 1 + 1e-6
    assert not any(parameter.requires_grad for parameter in trainer.target.parameters())
