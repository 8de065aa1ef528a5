"""Statistical tests of sampled tokens."""

from __future__ import annotations

import torch

from lantern_audit.statistics import chi_square


def assert_distribution(counts: torch.Tensor, probs: torch.Tensor) -> None:
    """Assert by a chi-square test that codes were sampled from a distribution.

    Codes with fewer than five expected samples count as one class. A correct sampler fails with probability 1e-4.

    Args:
        counts: number of samples of each code, (vocab,).
        probs: the distribution, (vocab,); it need not be normalised.
    """
    assert chi_square(counts[None], probs[None].double() / probs.double().sum()).p_value > 1e-4, (counts, probs)
