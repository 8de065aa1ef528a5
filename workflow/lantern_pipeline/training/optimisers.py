"""Optimisers of all trainers: AdamW alone, or Muon together with AdamW.

Muon updates the matrices of a transformer or the kernels of a convolutional network. AdamW then updates all other
parameters. A *rate factor* in [0, 1] multiplies the highest learning rates of all of them.

Muon (Jordan et al. 2024) replaces the averaged gradient of a matrix by a nearly orthogonal matrix with the same
singular vectors. Times 0.2 sqrt(max(rows, columns)), its entries have a root mean square of 0.2, as updates of AdamW do
(Liu et al. 2025, section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from typing_extensions import override

BETAS = (0.9, 0.95)
# a, b, c of a x + b x^3 + c x^5 (Jordan et al. 2024): steep at 0, and in [0.68, 1.21] for x from 0.22 to 1.2
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_ITERATIONS = 5  # as in Jordan et al.


class Optimiser:
    """Several PyTorch optimisers of different parameters, with one learning-rate schedule and one clipping.

    Gradients are scaled down if their norm over `parameters`, by default those of all `parts`, is above `max_norm`.
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
        """Compute the gradients of a scalar loss, then `update`."""
        self.zero_grad()
        loss.backward()
        return self.update(rate_factor)

    def zero_grad(self) -> None:
        """Delete the gradients, as `step` does itself. Needed before gradients of several batches add up."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def update(self, rate_factor: float) -> float:
        """Clip the gradients, update the parameters, and return the norm before clipping."""
        # With a `max_norm` of inf this only measures.
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        for part in self.parts:
            for group in part.param_groups:
                # "lr" is overwritten in every step. The highest rate stays beside it, also in checkpoints.
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * rate_factor
            part.step()
        return float(norm)

    def state_dict(self) -> list[dict[str, object]]:
        """Return the state of each optimiser in `parts`."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, object]]) -> None:
        """Restore states that `state_dict` returned."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


def make_muon(
    model: torch.nn.Module,
    matrix_learning_rate: float,
    learning_rate: float,
    max_norm: float = 1.0,
    weight_decay: float = 0.0,
) -> Optimiser:
    """Create an optimiser with Muon for the matrices of the transformer layers, and AdamW for all other parameters.

    Parameters with requires_grad=False are left out. The weight decay is decoupled.
    """
    # Targets have submodules `layers`, draft models a `layer`. Embeddings and heads outside of them get AdamW.
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    # Norms are excluded by name: that of queries and keys has weights per head, and so is two-dimensional.
    is_matrix = {
        name: p.dim() == 2 and name.startswith(("layers.", "layer.")) and "norm." not in name for name, p in named
    }
    muon = torch.optim.Muon(
        [p for name, p in named if is_matrix[name]],
        lr=matrix_learning_rate,
        weight_decay=weight_decay,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",  # the factor 0.2 sqrt(max(rows, columns))
    )
    others = [p for name, p in named if not is_matrix[name]]
    adamw = torch.optim.AdamW(others, lr=learning_rate, weight_decay=weight_decay, betas=BETAS)
    return Optimiser([muon, adamw], max_norm)


def make_adamw(
    model: torch.nn.Module, learning_rate: float, max_norm: float = 1.0, weight_decay: float = 0.0
) -> Optimiser:
    """Create an optimiser with AdamW for all parameters of a model that require gradients."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adamw = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=weight_decay, betas=BETAS, eps=1e-8)
    return Optimiser([adamw], max_norm)


class ConvolutionMuon(torch.optim.Optimizer):
    """Muon for convolution kernels, because `torch.optim.Muon` accepts matrices only.

    A kernel (out, in, height, width) is updated as a matrix (out, in * height * width). `momentum` is the decay of the
    averaged gradient per step.
    """

    def __init__(self, kernels: Iterable[Tensor], learning_rate: float, momentum: float = 0.95) -> None:
        super().__init__(kernels, {"lr": learning_rate, "momentum": momentum})

    @torch.no_grad()
    @override
    def step(self) -> None:
        for group in self.param_groups:
            for kernel in group["params"]:
                if kernel.grad is None:
                    continue
                state = self.state[kernel]
                average = state.setdefault("average", torch.zeros_like(kernel))
                average.lerp_(kernel.grad, 1.0 - group["momentum"])
                # Nesterov's momentum, as in `torch.optim.Muon`.
                ahead = kernel.grad.lerp(average, group["momentum"])
                matrix = orthogonalise(ahead.flatten(1))
                scale = 0.2 * max(matrix.shape) ** 0.5
                kernel.add_(matrix.view_as(kernel), alpha=-group["lr"] * scale)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Make a float32 matrix nearly orthogonal, by Newton-Schulz iterations.

    The singular values of the result are in about [0.7, 1.2]. Those below 0.15 % of the Frobenius norm remain smaller.
    """
    a, b, c = _COEFFICIENTS
    # The Gram matrix is formed on the shorter side.
    is_tall = matrix.shape[0] > matrix.shape[1]
    # The norm is at least the largest singular value, so all of them begin in [0, 1]. 1e-7: a gradient may be 0.
    x = (matrix.T if is_tall else matrix) / (matrix.norm() + 1e-7)
    for _ in range(_NUM_ITERATIONS):
        gram = x @ x.T
        # Applies the polynomial to each singular value, without computing any.
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x
