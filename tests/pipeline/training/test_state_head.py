"""Tests of the training of a state head: what is recorded of decoding, and that the head learns from it."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_models import make_models
from lantern.decoding import make_decoder
from lantern.generation import generate_records
from lantern.methods import make_method
from lantern.models.target import guide
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_methods.state_head import StateHead
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.training.heads import HeadsTraining
from lantern_pipeline.training.loop import run_training
from lantern_pipeline.training.state_head import StateHeadTrainer, StateHeadValidation, record_steps

ENCODER = WordEmbeddingEncoder(None, caption_dim=16, max_tokens=5)
PROMPTS = [Prompt(f"prompt-{i}", text) for i, text in enumerate(("red ring", "blue dot", "big dot", "a red dot"))]


def record(prompts=PROMPTS, *, cfg_scale=2.0, batch_size=3):
    sampling = SamplingConfig(top_k=8, cfg_scale=cfg_scale)
    models = make_models()
    return models, sampling, record_steps(models, prompts, ENCODER, sampling, seed=3, batch_size=batch_size)


@pytest.mark.parametrize("cfg_scale", [1.0, 2.0])
def test_recorded_states_are_those_of_teacher_forcing(cfg_scale):
    """The images are the autoregressive ones, and the states those that the target computes from their tokens."""
    models, sampling, steps = record(cfg_scale=cfg_scale)
    decoder = make_decoder(models, make_method("autoregressive"), sampling)
    assert torch.equal(steps.codes, generate_records(decoder, PROMPTS, ENCODER, run_seed=3, batch_size=4).codes.long())
    target = make_models(is_prepared=False).target
    features, mask = ENCODER.encode([prompt.text for prompt in PROMPTS])
    with torch.no_grad():
        states = target(features, mask, steps.codes[:, :-1])[:, mask.shape[1] - 1 :]
        if cfg_scale > 1:
            null = target(*target.null_prompt(mask), steps.codes[:, :-1])[:, mask.shape[1] - 1 :]
            states = guide(torch.cat([states, null]), cfg_scale)
    torch.testing.assert_close(steps.states, states, atol=2e-4, rtol=2e-4)  # sums of 32 terms up to 6, in another order


def test_a_step_is_recorded_for_every_position_at_which_a_draft_is_made():
    _, _, steps = record()
    assert steps.outdated.shape == (len(steps.image), 2, 32) and steps.before.shape == (len(steps.image), 2)
    for image in range(len(PROMPTS)):
        positions = steps.position[steps.image == image].tolist()
        assert positions[0] == 1 and positions == sorted(set(positions)) and positions[-1] <= 16 - 2
    is_first = steps.position == 1
    assert not steps.outdated[is_first].any() and (steps.before[is_first] == -1).all()
    assert steps.outdated[~is_first].abs().sum(-1).gt(0).float().mean() > 0.5


def test_training_brings_the_head_closer_to_the_target():
    _, sampling, steps = record([Prompt(f"prompt-{i}", "red ring") for i in range(16)], batch_size=8)
    target = make_models(is_prepared=False).target
    head = StateHead.from_target(target.config, seed=0)
    training = HeadsTraining(60, batch_size=4, learning_rate=0.005, cfg_scale=2.0, warmup=5)
    trainer = StateHeadTrainer(head, target, steps, training, seed=0)
    validate = StateHeadValidation(trainer, steps, sampling)
    before = validate()
    history = run_training(trainer, 60, name="state head", validate=validate)
    assert set(before) == {"val_loss", "val_overlap_1", "val_overlap_2"}
    assert history[-1]["val_loss"] < 0.7 * before["val_loss"]
    for name in ("val_overlap_1", "val_overlap_2"):
        assert 0 <= before[name] < history[-1][name] <= 1 + 1e-6
    assert not any(parameter.requires_grad for parameter in trainer.target.parameters())
    assert float(head.state_scale) > 0 and 0 < float(head.token_scale) != 1


def test_a_training_that_was_interrupted_ends_with_the_same_weights():
    _, _, steps = record()

    def train(num_steps, checkpoint=None):
        target = make_models(is_prepared=False).target
        training = HeadsTraining(6, batch_size=2, learning_rate=0.005, cfg_scale=2.0, warmup=2)
        trainer = StateHeadTrainer(StateHead.from_target(target.config, 0), target, steps, training, seed=0)
        if checkpoint:
            trainer.load_state_dict(checkpoint)
        for i in range(*num_steps):
            trainer.step(i)
        return trainer

    whole = train((0, 6)).model.state_dict()
    resumed = train((3, 6), train((0, 3)).state_dict()).model.state_dict()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
