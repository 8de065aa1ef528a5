"""Tests of the test of whole images: samples of the target pass, others fail."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from helpers.tiny_models import make_models
from lantern.decoding import make_decoder
from lantern.generation import generate_records
from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.measure.exactness import goodness_of_fit, likelihood
from lantern_pipeline.measure.exactness.goodness_of_fit import ImageTest, points_of


def test_points_by_hand():
    probs = torch.tensor([0.2, 0.4, 0.2, 0.0, 0.2]).expand(4, 5)
    tokens, uniforms = torch.tensor([1, 0, 2, 3]), torch.tensor([0.5, 0.0, 0.5, 0.5])
    assert points_of(probs, tokens, uniforms).tolist() == pytest.approx([0.2, 0.4, 0.7, 1.0])


# Not prepared for decoding: the test casts the target.
MODELS, ENCODER = make_models(is_prepared=False), WordEmbeddingEncoder(None, caption_dim=16, max_tokens=5)
PROMPTS = [Prompt(f"p{i}", "a red ring") for i in range(60)]
TESTED = SamplingConfig(temperature=1.0, top_k=6, cfg_scale=2.0)


def draw(temperature):
    decoder = make_decoder(MODELS, MethodSpec.of("autoregressive"), replace(TESTED, temperature=temperature))
    return generate_records(decoder, PROMPTS, ENCODER, run_seed=0, batch_size=60).codes


@pytest.mark.parametrize(("drawn_at", "is_refuted"), [(1.0, False), (0.6, True)])
def test_draws_of_the_target_pass_and_those_at_another_temperature_do_not(drawn_at, is_refuted):
    found = ImageTest(MODELS.target, ENCODER, PROMPTS, seed=0).p_value(draw(drawn_at), TESTED)
    assert (found < 1e-6) if is_refuted else (found > 0.01)


@pytest.mark.parametrize(("dtype", "run_in"), [(torch.float32, torch.float64), (torch.bfloat16, torch.bfloat16)])
def test_a_float32_target_is_run_in_float64_and_a_narrower_one_as_it_is(dtype, run_in):
    target = copy.deepcopy(MODELS.target).to(dtype)
    assert ImageTest(target, ENCODER, PROMPTS, seed=0).target.dtype == run_in and target.dtype == dtype


@pytest.mark.sensitive
def test_rounding_moves_no_point_and_shared_images_are_tested_once(monkeypatch):
    """Other batches use other kernels, whose float32 results differ in the last digits, as on another CPU."""
    codes, points, find = draw(1.0), [], points_of
    monkeypatch.setattr(goodness_of_fit, "points_of", lambda *parts: points.append(find(*parts)) or points[-1])
    found = []
    for most in (2**27, 7 * MODELS.target.config.vocab_size * codes.shape[1]):
        monkeypatch.setattr(likelihood, "LOGITS_AT_ONCE", most)
        test = ImageTest(MODELS.target, ENCODER, PROMPTS, seed=0)
        found.append(test.p_value(codes, TESTED))
        number = len(points)
        assert test.p_value(codes.clone(), TESTED) == found[-1] and len(points) == number
    assert found[0] == found[1] and number == 4 + 9  # 60 images, sixteen and seven at a time
    assert (torch.cat(points[:4]) - torch.cat(points[4:])).abs().max() < 1e-12
    assert MODELS.target.dtype == torch.float32  # the caller's model stays


def test_probabilities_add_up_to_1_within_float64(monkeypatch):
    sums = []
    monkeypatch.setattr(
        goodness_of_fit, "points_of", lambda probs, *rest: sums.append(probs.sum(-1)) or points_of(probs, *rest)
    )
    ImageTest(copy.deepcopy(MODELS.target).bfloat16(), ENCODER, PROMPTS, seed=0).p_value(draw(1.0), TESTED)
    assert (torch.cat(sums) - 1).abs().max() < 1e-12


def test_a_point_at_1_is_in_the_last_bin_and_another_temperature_is_tested_anew(monkeypatch):
    test, codes = ImageTest(MODELS.target, ENCODER, PROMPTS, seed=0), draw(1.0)
    assert test.p_value(codes, TESTED) != test.p_value(codes, replace(TESTED, temperature=0.6))
    monkeypatch.setattr(goodness_of_fit, "points_of", lambda probs, tokens, _: torch.ones(tokens.shape))
    assert test.p_value(codes, replace(TESTED, temperature=0.7)) < 1e-6
