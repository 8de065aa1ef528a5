"""Statistical tests of what was sampled."""

from __future__ import annotations

import torch

from lantern.auditing.statistics import chi_square


def assert_distribution(counts: torch.Tensor, probs: torch.Tensor) -> None:
    """Compare how often codes were drawn with their probabilities; fails once in 10^4 by chance."""
    assert chi_square(counts[None], probs[None].double() / probs.double().sum()).p_value > 1e-4, (counts, probs)
