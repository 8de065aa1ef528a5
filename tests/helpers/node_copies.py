"""Monte Carlo estimates from many copies of each node. To sample copies together is faster than to sample in turn."""

from __future__ import annotations

import torch

from lantern_pipeline.measure.exactness.output_distribution import OutputDistribution, VerifiedNodes

NUM_COPIES = 100


def copies_of(nodes: VerifiedNodes) -> VerifiedNodes:
    """Return NUM_COPIES copies of each node."""
    return VerifiedNodes(**{name: _repeat(part) for name, part in vars(nodes).items()})


def _repeat(part: torch.Tensor | None) -> torch.Tensor | None:
    return None if part is None else part.repeat_interleave(NUM_COPIES, dim=0)


def mean_of_copies(found: OutputDistribution) -> OutputDistribution:
    """Return the mean estimate of each node from the estimates of its copies."""
    return OutputDistribution(
        **{name: part.unflatten(0, (-1, NUM_COPIES)).mean(1) for name, part in vars(found).items()}
    )
