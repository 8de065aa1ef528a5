"""The optimiser of target and draft model: Muon on the layers' matrices, AdamW on everything else."""

from __future__ import annotations

from typing import Any

import torch

from lantern.training.loop import set_learning_rate


class MuonAdamW:
    """Muon and AdamW behind one step.

    Args:
        model: its two-dimensional parameters inside `layers` or `layer` go to Muon; embeddings, head, norms to AdamW.
        matrix_learning_rate: Muon's.
        learning_rate: AdamW's.
        max_norm: gradients are clipped to this global norm.

    Source: Muon, Jordan et al. 2024, as in torch.optim.
    """

    def __init__(
        self, model: torch.nn.Module, matrix_learning_rate: float, learning_rate: float, max_norm: float = 1.0
    ) -> None:
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        matrices = [p for name, p in named if p.dim() == 2 and name.startswith(("layers.", "layer."))]
        is_matrix = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in is_matrix]
        self.parameters, self.max_norm = matrices + others, max_norm
        self.parts = [
            torch.optim.Muon(
                matrices, lr=matrix_learning_rate, weight_decay=0.0, momentum=0.95, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.95)),
        ]

    def step(self, loss: torch.Tensor, rate_factor: float) -> float:
        """Backward pass, clipping and update; returns the gradient norm before clipping."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)
            set_learning_rate(part, rate_factor)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        for part in self.parts:
            part.step()
        return float(norm)

    def state_dict(self) -> list[dict[str, Any]]:
        """States of both optimisers."""
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Restores what `state_dict` gave."""
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
