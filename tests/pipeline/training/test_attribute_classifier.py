"""Tests of the training of the attribute classifier: it learns, and resumes exactly."""

import copy

import pytest
import torch

from helpers.tiny_fashion import write_fashion
from lantern_pipeline.data.fashion_images import FashionSource
from lantern_pipeline.data.image_sources import SceneSource
from lantern_pipeline.training.attribute_classifier import (
    AttributeClassifierTrainer,
    AttributeClassifierTraining,
    degrade,
)
from lantern_pipeline.world.attribute_classifier import AttributeClassifierConfig


def make_trainer(num_steps=6, **settings):
    usual = {"learning_rate": 3e-3, "weight_decay": 0.02, "blur_share": 0.5, "shape_weight": 4.0}
    settings = AttributeClassifierTraining(num_steps=num_steps, batch_size=16, **usual | settings)
    return AttributeClassifierTrainer(SceneSource(0, 48, 1000), AttributeClassifierConfig(width=8), settings, seed=0)


@pytest.mark.slow
def test_all_but_shapes_are_learnt_within_seconds():
    trainer = make_trainer(num_steps=60, shape_weight=0.0)
    values = [trainer.step(i) for i in range(60)]
    assert values[-1]["loss"] < 0.8 * values[0]["loss"]
    assert values[-1]["accuracy"] > values[0]["accuracy"] + 0.2


def test_photographs_of_clothes_are_read_by_heads_of_their_own(tmp_path):
    source = FashionSource(write_fashion(tmp_path), 32, 100)
    settings = AttributeClassifierTraining(num_steps=40, batch_size=24, blur_share=0.0)
    trainer = AttributeClassifierTrainer(source, AttributeClassifierConfig(32, 8, world="fashion"), settings, seed=0)
    first, *_, last = [trainer.step(i) for i in range(40)]
    assert set(trainer.model.heads) == {"tone", "pattern", "class"}
    assert last["loss"] < 0.8 * first["loss"] and last["accuracy"] > first["accuracy"]


def test_resumed_training_equals_undisturbed_training():
    whole = make_trainer()
    for i in range(5):
        if i == 2:
            saved = copy.deepcopy(whole.state_dict())
        expected = whole.step(i)
    resumed = make_trainer()
    resumed.load_state_dict(saved)
    for i in range(2, 5):
        found = resumed.step(i)
    assert found == expected
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_degrading_changes_a_share_and_is_reproducible():
    images = torch.rand(64, 3, 16, 16)
    first = degrade(images, 0.5, torch.Generator().manual_seed(0))
    assert torch.equal(first, degrade(images, 0.5, torch.Generator().manual_seed(0)))
    changed = (first != images).flatten(1).any(1).float().mean()
    assert 0.25 < changed < 0.75
    assert torch.equal(images, degrade(images, 0.0, torch.Generator().manual_seed(0)))
