"""The test of whole images against the target's law: draws of the target pass, others do not."""

from __future__ import annotations

import pytest
import torch

from conftest import make_models
from lantern.decoding import Decoder
from lantern.generation import generate_records
from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_pipeline.data.text_encoders import WordEmbeddingEncoder
from lantern_pipeline.metrics.image_law import p_value_of_images, points_of


def test_points_by_hand():
    probs = torch.tensor([0.2, 0.4, 0.2, 0.0, 0.2]).expand(4, 5)
    tokens, uniforms = torch.tensor([1, 0, 2, 3]), torch.tensor([0.5, 0.0, 0.5, 0.5])
    assert points_of(probs, tokens, uniforms).tolist() == pytest.approx([0.2, 0.4, 0.7, 1.0])


@pytest.mark.parametrize(("drawn_at", "is_refuted"), [(1.0, False), (0.6, True)])
def test_draws_of_the_target_pass_and_those_at_another_temperature_do_not(drawn_at, is_refuted):
    models, encoder = make_models(), WordEmbeddingEncoder(None, caption_dim=16, max_tokens=5)
    prompts = [Prompt(f"p{i}", "a red ring") for i in range(60)]
    tested, drawn = (SamplingConfig(temperature=t, top_k=6, cfg_scale=2.0) for t in (1.0, drawn_at))
    decoder = Decoder(models, MethodSpec("autoregressive"), drawn)
    codes = generate_records(decoder, prompts, encoder, run_seed=0, batch_size=60).codes
    found = p_value_of_images(models.target, encoder, prompts, codes, tested, seed=0)
    assert (found < 1e-6) if is_refuted else (found > 0.01)
