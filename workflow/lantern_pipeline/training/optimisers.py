"""The optimisers of all trainers: Muon on matrices or convolution kernels, AdamW on the rest, or AdamW on all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

BETAS = (0.9, 0.95)
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the quintic of Jordan et al. 2024: steep at 0, about 1 from 0.3 to 1.1
_NUM_ITERATIONS = 5


class Optimiser:
    """PyTorch optimisers, each with parameters of its own, that share one course of the learning rate and one clipping
    of the gradient's norm (over `parameters`, by default those of all parts).
    """

    def __init__(
        self,
        parts: Sequence[torch.optim.Optimizer],
        max_norm: float = math.inf,
        parameters: Iterable[Tensor] | None = None,
    ) -> None:
        self.parts, self.max_norm = list(parts), max_norm
        own = [parameter for part in self.parts for group in part.param_groups for parameter in group["params"]]
        self.parameters = own if parameters is None else list(parameters)

    def step(self, loss: Tensor, rate_factor: float) -> float:
        """Backward pass of one loss and `update`."""
        self.zero_grad()
        loss.backward()
        return self.update(rate_factor)

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def update(self, rate_factor: float) -> float:
        """Clips the gradients that are there and updates with the highest learning rates times `rate_factor`; returns
        the gradient's norm before clipping.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * rate_factor
            part.step()
        return float(norm)

    def state_dict(self) -> list[dict[str, object]]:
        """States of all parts."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, object]]) -> None:
        """Restores what `state_dict` gave."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def make_muon(
    model: torch.nn.Module,
    matrix_learning_rate: float,
    learning_rate: float,
    max_norm: float = 1.0,
    weight_decay: float = 0.0,
) -> Optimiser:
    """Muon on the two-dimensional parameters inside `layers` or `layer`, AdamW on embeddings, head and norms.

    Source: Muon, Jordan et al. 2024, as in torch.optim.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    is_matrix = {  # a norm of queries and keys has a row of weights for each head
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
    """AdamW on every parameter of a model that is trained."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adamw = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=weight_decay, betas=BETAS, eps=1e-8)
    return Optimiser([adamw], max_norm)


class ConvolutionMuon(torch.optim.Optimizer):
    """Muon for convolutions (`torch.optim.Muon` takes matrices only): momentum of gradients whose kernels, as matrices
    (out, in * height * width), are made nearly orthogonal.

    The learning rate is in AdamW's scale: an update has root mean square 0.2 * learning_rate.

    Source: Muon, Jordan et al. 2024; the scale 0.2 * sqrt(max(rows, columns)) of Liu et al. 2025, section 2.2.
    """

    def __init__(self, kernels: Iterable[Tensor], learning_rate: float, momentum: float = 0.95) -> None:
        super().__init__(kernels, {"lr": learning_rate, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        """Updates every kernel that has a gradient."""
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
    """Brings the singular values of a float32 matrix near 1, about into [0.7, 1.2], by Newton-Schulz iterations."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
