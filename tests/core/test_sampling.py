"""Filters where codes tie, and their bounds; tests/core/test_reference.py has their numbers and those of guidance."""

from __future__ import annotations

import pytest
import torch

from lantern.sampling import SamplingConfig, filter_logits


def test_top_k_keeps_ties_with_the_last_kept():
    logits = torch.tensor([3.0, 1.0, 2.0, 2.0, 0.0])
    kept = filter_logits(logits, SamplingConfig(top_k=2)).isfinite()
    assert kept.tolist() == [True, False, True, True, False]


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
