"""Tests of filters with tied codes and of their bounds.

Numbers of filters and guidance are tested in tests/core/test_reference.py.
"""

from __future__ import annotations

import pytest
import torch

from lantern.models.target import guide
from lantern.sampling import SamplingConfig, filter_logits


def test_top_k_keeps_ties_with_the_last_kept():
    logits = torch.tensor([3.0, 1.0, 2.0, 2.0, 0.0])
    kept = filter_logits(logits, SamplingConfig(top_k=2)).isfinite()
    assert kept.tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("k", [1, 7, 63])
def test_top_k_is_the_same_in_both_ways_of_finding_the_kth_largest(k):
    """numpy finds it in float32 on a CPU, torch elsewhere. A fifth of the logits is filtered out; others tie."""
    logits = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0)).mul_(4).round_()
    logits[..., ::5] = float("-inf")
    found = filter_logits(logits, SamplingConfig(top_k=k))
    assert torch.equal(found.double(), filter_logits(logits.double(), SamplingConfig(top_k=k)))
    assert (found.isfinite().sum(-1) >= min(k, 51)).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("top_k", -1),
        ("top_k", 2.0),
        ("cfg_scale", float("nan")),
        ("temperature", float("inf")),
        ("top_p", "0.9"),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("filter_order", "both"),
        ("cfg_scale", 0.5),
    ],
)
def test_out_of_range_values_name_the_field(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be .*got"):
        SamplingConfig(**{field: value})


def test_guidance_of_narrow_numbers_is_not_rounded_to_their_format():
    """In bfloat16, 257.9 would be rounded to 258."""
    doubled = torch.tensor([[256.0, 1.0], [255.0, 0.0]], dtype=torch.bfloat16)
    assert guide(doubled, 2.9).dtype == torch.float32
    torch.testing.assert_close(guide(doubled, 2.9), torch.tensor([[257.9, 2.9]]), rtol=1e-6, atol=0)


def test_top_p_keeps_the_token_that_reaches_the_mass_and_drops_what_exceeds_it():
    kept = {top_p: filter_logits(torch.zeros(4), SamplingConfig(top_p=top_p)).isfinite() for top_p in (0.4, 0.5, 0.6)}
    assert {top_p: int(mask.sum()) for top_p, mask in kept.items()} == {0.4: 2, 0.5: 3, 0.6: 3}


def test_temperature_divides_and_0_divides_by_nothing():
    logits = torch.tensor([1.0, 2.0])
    for temperature, expected in ((2.0, [0.5, 1.0]), (1.0, [1.0, 2.0]), (0.0, [1.0, 2.0])):
        assert filter_logits(logits, SamplingConfig(temperature)).tolist() == expected
