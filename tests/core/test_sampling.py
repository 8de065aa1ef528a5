"""Guidance and filters by eye."""

from __future__ import annotations

import pytest
import torch

from lantern.sampling import SamplingConfig, filter_logits, guide

LOGITS = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05]).log()


def test_top_k_keeps_ties_with_the_last_kept():
    logits = torch.tensor([3.0, 1.0, 2.0, 2.0, 0.0])
    kept = filter_logits(logits, SamplingConfig(top_k=2)).isfinite()
    assert kept.tolist() == [True, False, True, True, False]


def test_top_p_keeps_the_token_that_crosses():
    kept = filter_logits(LOGITS, SamplingConfig(top_p=0.6)).isfinite()
    assert kept.tolist() == [True, True, False, False, False]


def test_filter_orders_differ_when_both_filter():
    """Top-k first renormalises over three tokens, so that 0.5 / 0.85 and 0.2 / 0.85 already hold 0.8."""
    both = {"top_k": 3, "top_p": 0.8}
    first_k = filter_logits(LOGITS, SamplingConfig(**both)).isfinite()
    first_p = filter_logits(LOGITS, SamplingConfig(**both, filter_order="top_p_first")).isfinite()
    assert first_k.tolist() == [True, True, False, False, False]
    assert first_p.tolist() == [True, True, True, False, False]


def test_temperature_divides_logits():
    torch.testing.assert_close(filter_logits(LOGITS, SamplingConfig(temperature=0.5)), LOGITS * 2)


def test_guidance_extrapolates_from_the_null_half():
    doubled = torch.tensor([[2.0], [10.0], [1.0], [4.0]])
    assert guide(doubled, 3.0).tolist() == [[4.0], [22.0]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("filter_order", "both"),
        ("cfg_scale", 0.5),
    ],
)
def test_out_of_range_values_name_the_field(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be .*got"):
        SamplingConfig(**{field: value})
