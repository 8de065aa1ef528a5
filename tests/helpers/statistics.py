"""Statistical tests of sampled tokens."""

from __future__ import annotations

import torch


def assert_distribution(counts: torch.Tensor, probs: torch.Tensor) -> None:
    """Assert by a chi-square test that codes were sampled from a distribution.

    Codes with fewer than five expected samples count as one class. A correct sampler fails with probability 1e-4.

    Args:
        counts: number of samples of each code, (vocab,).
        probs: the distribution, (vocab,); it need not be normalised.
    """
    from scipy.stats import chisquare

    assert not counts[probs == 0].any(), counts
    counts, expected = counts.double(), probs.double() / probs.double().sum() * counts.sum()
    is_rare = (expected < 5) & (probs > 0)
    kept = (expected >= 5) & (probs > 0)
    cells = [
        torch.cat([part[kept], part[is_rare].sum()[None]][: 1 + bool(is_rare.any())]) for part in (counts, expected)
    ]
    assert len(cells[0]) > 1 and chisquare(*cells).pvalue > 1e-4, cells
