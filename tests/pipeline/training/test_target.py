"""Tests of the training of the target model on codes that follow from the caption."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_codes import CONFIG, make_dataset
from lantern.models.target import TargetModel
from lantern_pipeline.data.code_dataset import step_indices
from lantern_pipeline.training.loop import run_training
from lantern_pipeline.training.target import TargetTrainer, TargetTraining, evaluate_target


def make_trainer(num_steps: int = 60) -> TargetTrainer:
    torch.manual_seed(0)
    training = TargetTraining(
        num_steps, 8, caption_dropout=0.1, matrix_learning_rate=0.02, learning_rate=0.01, warmup=5
    )
    return TargetTrainer(TargetModel(CONFIG), make_dataset(), training, seed=0)


def test_it_learns_what_the_caption_decides():
    trainer = make_trainer()
    before = evaluate_target(trainer.model, make_dataset())
    run_training(trainer, 60, name="target")
    after = evaluate_target(trainer.model.eval(), make_dataset())
    assert before == pytest.approx(torch.log(torch.tensor(8.0)).item(), abs=0.2)  # uniform over 8 codes at first
    assert after < 0.1  # the caption decides everything


def test_resumed_training_equals_an_undisturbed_one():
    whole = make_trainer(6)
    for i in range(6):
        whole.step(i)
    half = make_trainer(6)
    for i in range(3):
        half.step(i)
    resumed = make_trainer(6)
    resumed.load_state_dict(half.state_dict())
    for i in range(3, 6):
        resumed.step(i)
    for mine, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_every_epoch_sees_every_image_once():
    seen = torch.cat([step_indices(10, 4, seed=3, i=i) for i in range(5)])
    assert sorted(seen[:10].tolist()) == list(range(10))
    assert sorted(seen[10:].tolist()) == list(range(10))
    assert seen[:10].tolist() != seen[10:].tolist()
