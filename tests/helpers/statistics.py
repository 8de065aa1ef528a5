"""Statistical tests of what was sampled."""

from __future__ import annotations

import torch


def assert_distribution(counts: torch.Tensor, probs: torch.Tensor) -> None:
    """Chi-square of how often codes were drawn, where fewer than five are expected together; fails once in 10^4 by
    chance.
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
