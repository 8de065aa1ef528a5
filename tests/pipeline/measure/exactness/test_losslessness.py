"""Tests of equality with autoregressive decoding: the target's samples are found again from the emitted codes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from helpers.tiny_models import make_models, make_prompts
from lantern.decoding import make_decoder
from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern.sampling import SamplingConfig
from lantern_pipeline.measure.exactness import likelihood
from lantern_pipeline.measure.exactness.losslessness import (
    NEAR_TIE_MARGIN,
    compare_with_autoregressive,
    drawn_tokens,
    substitution_row,
)


class _Encoder:
    """Encoder that returns given features. A text is the index of its feature."""

    def __init__(self, features: torch.Tensor, mask: torch.Tensor) -> None:
        self.parts = features, mask

    def encode(self, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(part[[int(text) for text in texts]] for part in self.parts)


def make_records(codes: torch.Tensor, is_substituted: torch.Tensor) -> GenerationRecords:
    count = torch.zeros(len(codes), dtype=torch.int32)
    ids = [f"p{i}" for i in range(len(codes))]
    return GenerationRecords(
        ids, codes, count, codes.short(), codes.short(), is_substituted, count.float(), count.float()[:, None], {}
    )


@pytest.mark.parametrize("images_at_once", [2, 5])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_draws_of_the_target_are_found_again(temperature, images_at_once, monkeypatch):
    monkeypatch.setattr(likelihood, "LOGITS_AT_ONCE", images_at_once * 16 * 12)
    models = make_models()
    sampling = SamplingConfig(temperature=temperature, top_k=6, cfg_scale=2.0)
    spec = MethodSpec.of(name="near", tree="chain3", drafts="coupled", acceptance="proximity", neighbours="l2", k=4)
    features, mask = make_prompts(models, 5)
    ids = [f"p{i}" for i in range(5)]
    decoder = make_decoder(models, spec, sampling)
    generation = decoder.generate(features, mask, [decoder.make_noise(7, i) for i in ids])
    prompts = [Prompt(i, i.removeprefix("p")) for i in ids]
    drawn = drawn_tokens(models.target, _Encoder(features, mask), prompts, generation.codes, sampling, run_seed=7)
    assert generation.is_substituted.any()
    assert torch.equal(drawn != generation.codes, generation.is_substituted)


def test_row_by_hand():
    codes, drawn = torch.tensor([[0, 1], [0, 0]]), torch.tensor([[0, 2], [0, 0]])
    codebook = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    row = substitution_row(make_records(codes, codes != drawn), drawn, codebook, {"num_resamples": 200, "seed": 0})
    assert row["substitution_rate"] == 0.25
    assert row["substitution_rate_low"] == 0 and row["substitution_rate_high"] == 0.5
    assert row["substitution_distance"] == pytest.approx(5)
    ends = torch.full((2, 1), 3)  # a line end is no code, so the rate is over codes only
    lined, drawn = torch.cat([codes, ends], dim=1), torch.cat([drawn, ends], dim=1)
    row = substitution_row(make_records(lined, lined != drawn), drawn, codebook, {"num_resamples": 20, "seed": 0})
    assert row["substitution_rate"] == 0.25
    none = substitution_row(make_records(codes, codes != codes), codes, codebook, {"num_resamples": 20, "seed": 0})
    assert none["substitution_rate"] == 0 and np.isnan(none["substitution_distance"])


def planted():
    """Return records: equal; different at 2; different at 1, a near-tie; different at 1 with a near-tie later."""
    base = torch.arange(20).view(4, 5)
    codes, margins = base.clone(), torch.ones(4, 5)
    codes[1, 2] = 99
    codes[2, 1:] = 99
    codes[3, [1, 4]] = 99
    margins[2, 1] = margins[3, 4] = 5e-5
    margins[0, 0] = 0.0  # a tie that did not change anything
    return codes, base, margins


def test_planted_differences_and_near_ties():
    codes, base, margins = planted()
    for found in (compare_with_autoregressive(kind, base, margins) for kind in (codes, codes.int())):
        assert found.is_equal.tolist() == [True, False, False, False]
        assert found.is_near_tie.tolist() == [False, False, True, False] and found.num_near_ties == 1
        assert found.first_difference.tolist() == [5, 2, 1, 1]
        assert found.margin_at_difference[1:].tolist() == [margins[1, 2], margins[2, 1], margins[3, 1]]
        assert found.margin_at_difference[0].isnan()
        assert found.share_equal == pytest.approx(1 / 3)
    assert compare_with_autoregressive(codes, codes, margins).share_equal == 1.0
    at_the_margin = compare_with_autoregressive(codes, base, torch.full((4, 5), NEAR_TIE_MARGIN))
    assert at_the_margin.num_near_ties == 0
    excepted = compare_with_autoregressive(codes[:1], codes[:1] + 1, torch.zeros(1, 5))
    assert math.isnan(excepted.share_equal)
