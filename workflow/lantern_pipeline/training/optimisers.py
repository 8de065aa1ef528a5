"""Optimisers of all trainers: Muon on matrices or convolution kernels and AdamW on the rest, or AdamW on all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

BETAS = (0.9, 0.95)
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic of Jordan et al. 2024: steep at 0, about 1 from 0.3 to 1.1
_NUM_ITERATIONS = 5


class Optimiser:
    """Several PyTorch optimisers with separate parameters, one learning-rate schedule and one gradient clipping.

    Attributes:
        parts: the optimisers.
        max_norm: largest norm of the gradient; larger gradients are scaled down.
        parameters: parameters over which the norm is computed, by default those of all parts.
    """

    def __init__(
        self,
        parts: Sequence[torch.optim.Optimizer],
        max_norm: float = math.inf,
        parameters: Iterable[Tensor] | None = None,
    ) -> None:
        self.parts, self.max_norm = list(parts), max_norm
        in_parts = [parameter for part in self.parts for group in part.param_groups for parameter in group["params"]]
        self.parameters = in_parts if parameters is None else list(parameters)

    def step(self, loss: Tensor, rate_factor: float) -> float:
        """Run the backward pass of one loss, and `update`."""
        self.zero_grad()
        loss.backward()
        return self.update(rate_factor)

    def zero_grad(self) -> None:
        """Delete the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def update(self, rate_factor: float) -> float:
        """Clip the gradients and update the parameters, with each peak learning rate times `rate_factor`.

        Returns:
            Norm of the gradient before clipping.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * rate_factor
            part.step()
        return float(norm)

    def state_dict(self) -> list[dict[str, object]]:
        """Return the states of all parts."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, object]]) -> None:
        """Restore a result of `state_dict`."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def make_muon(
    model: torch.nn.Module,
    matrix_learning_rate: float,
    learning_rate: float,
    max_norm: float = 1.0,
    weight_decay: float = 0.0,
) -> Optimiser:
    """Create Muon for the matrices inside `layers` or `layer`, and AdamW for embeddings, head and norms.

    Source: Muon, Jordan et al. 2024, as in torch.optim.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    is_matrix = {  # a norm of queries and keys is two-dimensional too: it has weights per head
        name: p.dim() == 2 and name.startswith(("layers.", "layer.")) and "norm." not in name for name, p in named
    }
    muon = torch.optim.Muon(
        [p for name, p in named if is_matrix[name]],
        lr=matrix_learning_rate,
        weight_decay=weight_decay,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    others = [p for name, p in named if not is_matrix[name]]
    adamw = torch.optim.AdamW(others, lr=learning_rate, weight_decay=weight_decay, betas=BETAS)
    return Optimiser([muon, adamw], max_norm)


def make_adamw(
    model: torch.nn.Module, learning_rate: float, max_norm: float = 1.0, weight_decay: float = 0.0
) -> Optimiser:
    """Create AdamW for every trained parameter of a model."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adamw = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=weight_decay, betas=BETAS, eps=1e-8)
    return Optimiser([adamw], max_norm)


class ConvolutionMuon(torch.optim.Optimizer):
    """Muon for convolution kernels (`torch.optim.Muon` takes matrices only).

    The momentum of a kernel's gradient, as a matrix (out, in * height * width), is made nearly orthogonal. The learning
    rate is on AdamW's scale: an update has root mean square 0.2 * learning_rate.

    Source: Muon, Jordan et al. 2024. The scale 0.2 * sqrt(max(rows, columns)) is from Liu et al. 2025, section 2.2.
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
    """Move the singular values of a float32 matrix close to 1, into about [0.7, 1.2], by Newton-Schulz iterations."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
