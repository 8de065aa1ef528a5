"""The optimisers of target and draft model: Muon on the layers' matrices and AdamW on the rest, or AdamW on all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lantern_pipeline.training.loop import set_learning_rate

BETAS = (0.9, 0.95)


class ClippedOptimiser:
    """Optimisers that share one gradient clipping and one course of the learning rate.

    Args:
        parts: PyTorch optimisers, each with parameters of its own.
        max_norm: gradients are clipped to this norm over all parameters.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer], max_norm: float) -> None:
        self.parts, self.max_norm = list(parts), max_norm
        self.parameters = [p for part in self.parts for group in part.param_groups for p in group["params"]]

    def step(self, loss: torch.Tensor, rate_factor: float) -> float:
        """Backward pass of one loss, clipping and update; returns the gradient norm before clipping."""
        self.zero_grad()
        loss.backward()
        return self.update(rate_factor)

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def update(self, rate_factor: float) -> float:
        """Clips the gradients that are there and updates; returns their norm before clipping.

        Args:
            rate_factor: what the highest learning rates are multiplied with.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        for part in self.parts:
            set_learning_rate(part, rate_factor)
            part.step()
        return float(norm)

    def state_dict(self) -> list[dict[str, Any]]:
        """States of all parts."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restores what `state_dict` gave."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)


class MuonAdamW(ClippedOptimiser):
    """Muon and AdamW behind one step.

    Args:
        model: its two-dimensional parameters inside `layers` or `layer` go to Muon; embeddings, head, norms to AdamW.
        matrix_learning_rate: Muon's.
        learning_rate: AdamW's.
        max_norm: gradients are clipped to this global norm.
        weight_decay: of both, decoupled.

    Source: Muon, Jordan et al. 2024, as in torch.optim.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        matrix_learning_rate: float,
        learning_rate: float,
        max_norm: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        matrices = [p for name, p in named if p.dim() == 2 and name.startswith(("layers.", "layer."))]
        is_matrix = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in is_matrix]
        muon = torch.optim.Muon(
            matrices, lr=matrix_learning_rate, weight_decay=weight_decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        )
        adamw = torch.optim.AdamW(others, lr=learning_rate, weight_decay=weight_decay, betas=BETAS)
        super().__init__([muon, adamw], max_norm)


class AdamW(ClippedOptimiser):
    """AdamW on every parameter of a model that is trained; arguments as those of `MuonAdamW`."""

    def __init__(
        self, model: torch.nn.Module, learning_rate: float, max_norm: float = 1.0, weight_decay: float = 0.0
    ) -> None:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        adamw = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=weight_decay, betas=BETAS, eps=1e-8)
        super().__init__([adamw], max_norm)
