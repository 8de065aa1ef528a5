"""Muon for convolutions: momentum with orthogonalised updates; `torch.optim.Muon` takes matrices only."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the quintic of Jordan et al. 2024: steep at 0, about 1 from 0.3 to 1.1
_NUM_ITERATIONS = 5


class ConvolutionMuon(torch.optim.Optimizer):
    """Momentum of gradients whose kernels, as matrices (out, in * height * width), are made nearly orthogonal.

    Args:
        kernels: parameters of two or more dimensions.
        learning_rate: in AdamW's scale: an update has root mean square 0.2 * learning_rate.
        momentum: of the gradients' moving average.

    Source: Muon, Jordan et al. 2024; the scale 0.2 * sqrt(max(rows, columns)) of Liu et al. 2025, section 2.2.
    """

    def __init__(self, kernels: Iterable[Tensor], learning_rate: float, momentum: float = 0.95) -> None:
        super().__init__(kernels, {"lr": learning_rate, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        """Update every kernel that has a gradient."""
        for group in self.param_groups:
            for kernel in group["params"]:
                if kernel.grad is None:
                    continue
                state = self.state[kernel]
                average = state.setdefault("average", torch.zeros_like(kernel))
                average.lerp_(kernel.grad, 1.0 - group["momentum"])
                ahead = kernel.grad.lerp(average, group["momentum"])
                matrix = orthogonalise(ahead.flatten(1))
                scale = 0.2 * max(matrix.shape) ** 0.5
                kernel.add_(matrix.view_as(kernel), alpha=-group["lr"] * scale)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Bring all singular values near 1 by Newton-Schulz iterations.

    Args:
        matrix: (rows, columns) float32.

    Returns:
        (rows, columns), same singular vectors, singular values about in [0.7, 1.2].
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
