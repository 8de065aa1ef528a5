"""Shift heads: small networks that predict the target's hidden states for later tokens of the image.

For image token n, a head of a *shift* takes the token, and the hidden state h_n from which the target predicted it. It
returns an estimate of the hidden state that predicts token n + shift, which the target's output head turns into logits:

    h_(n + shift) = W x + f(norm(W x)),  x = [h_n, embedding of token n]

W is a linear map and f a SwiGLU network. Shifts are 1 to num_right, for the next tokens to the right, then one line,
for the token below.

Source: SSD (arXiv 2606.20543), in notes by others. In SSD, heads read and predict the hidden state before the target's
last norm. Here they read and predict the state after this norm, as Lantern's draft model does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from lantern.models.config import TargetConfig
from lantern.models.linear import prepare_linears
from lantern.models.stored import StoredModel
from lantern.models.target import Target
from lantern.models.transformer import RMSNorm


@dataclass(frozen=True)
class HeadsConfig:
    """Sizes of shift heads. `line_width` counts the tokens of a line, including a line end."""

    dim: int
    ffn_hidden: int
    line_width: int
    num_right: int
    norm_eps: float = 1e-5

    @classmethod
    def of(cls, target: TargetConfig, num_right: int) -> HeadsConfig:
        """Return the sizes of the heads that Lantern trains for a target."""
        return cls(target.dim, target.ffn_hidden, target.line_width, num_right, target.norm_eps)

    @property
    def shifts(self) -> tuple[int, ...]:
        """Shift of each head, in tokens."""
        return (*range(1, self.num_right + 1), self.line_width)


class ShiftHead(nn.Module):
    """W and f of one shift."""

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.combine = nn.Linear(2 * config.dim, config.dim, bias=False)
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.gate_up = nn.Linear(config.dim, 2 * config.ffn_hidden, bias=False)
        self.down = nn.Linear(config.ffn_hidden, config.dim, bias=False)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # x: (..., 2 * dim)
        combined = self.combine(x)
        gate, up = self.gate_up(self.norm(combined)).chunk(2, dim=-1)
        return combined + self.down(F.silu(gate) * up)


class ShiftHeads(StoredModel):
    """All heads of a target. The last one is that of the token below."""

    kind = "shift_heads"
    label = "shift heads"
    remedy = "run the workflow with heads.kind shift"
    config_class = HeadsConfig
    config: HeadsConfig
    heads: Sequence[ShiftHead]

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.config = config
        parts = nn.ModuleList(ShiftHead(config) for _ in config.shifts)
        self.heads = parts  # pyright: ignore[reportAttributeAccessIssue]  torch's ModuleList states no item type

    @classmethod
    def from_target(cls, target: Target, num_right: int, seed: int) -> ShiftHeads:
        """Make untrained heads for a target, on its device. Each head returns the hidden state that it reads."""
        with torch.random.fork_rng(devices=[]):  # leaves the caller's generator as it is
            torch.manual_seed(seed)
            heads = cls(HeadsConfig.of(target.config, num_right))
            for head in heads.heads:
                # W x = h_n, as the hidden state is the first half of x, and f = 0.
                nn.init.eye_(head.combine.weight)
                nn.init.normal_(head.gate_up.weight, std=0.02)
                nn.init.zeros_(head.down.weight)
        return heads.to(target.device)

    def right(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict the hidden states for the next tokens to the right, (..., num_right, dim).

        hidden and embedded are (..., dim): hidden states, and the target's embeddings of the tokens predicted from
        them.
        """
        x = torch.cat([hidden, embedded], dim=-1)
        return torch.stack([head(x) for head in self.heads[:-1]], dim=-2)

    def below(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict the hidden states for the tokens below, (..., dim), from the same arguments."""
        return self.heads[-1](torch.cat([hidden, embedded], dim=-1))

    @override
    def prepare_for_decoding(self) -> ShiftHeads:
        prepare_linears(self)
        return self
