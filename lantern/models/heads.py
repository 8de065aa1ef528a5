"""Shift heads: small networks that predict the target's hidden states for later tokens of the image.

For image token n, a shift head takes the token, and the hidden state from which the target predicted it. The shift head
returns an estimate of the hidden state that predicts token n + shift. The output head of the target turns this estimate
into logits. A shift of 1 is the next token to the right. A shift of one line is the token below.

Source: SSD (arXiv 2606.20543), in notes by others. In SSD, heads read and predict the hidden state before the target's
last norm. Here they read and predict the state after this norm, as Lantern's draft model does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from lantern.models.config import TargetConfig
from lantern.models.linear import prepare_linears
from lantern.models.stored import StoredModel
from lantern.models.target import Target
from lantern.models.transformer import RMSNorm


@dataclass(frozen=True)
class HeadsConfig:
    """Sizes of shift heads.

    Attributes:
        dim: channels of a hidden state.
        ffn_hidden: channels of the hidden layer of a head.
        line_width: number of tokens of an image line. It is the shift of the last head, which predicts the token below.
        num_right: number of heads for tokens to the right. Their shifts are 1 to `num_right`.
        norm_eps: small number that an RMS norm adds to the mean square.
    """

    dim: int
    ffn_hidden: int
    line_width: int
    num_right: int
    norm_eps: float = 1e-5

    @classmethod
    def of(cls, target: TargetConfig, num_right: int) -> HeadsConfig:
        """Return the sizes of the heads that Lantern trains for a target.

        Args:
            target: sizes of the target.
            num_right: number of heads for tokens to the right.
        """
        return cls(target.dim, target.ffn_hidden, target.line_width, num_right, target.norm_eps)

    @property
    def shifts(self) -> tuple[int, ...]:
        """Shift of each head, in image tokens: 1 to `num_right`, then one line."""
        return (*range(1, self.num_right + 1), self.line_width)


class ShiftHead(nn.Module):
    """Network of one shift. For an input x, it returns W x + f(norm(W x)) with a linear map W and a SwiGLU network f.

    Args:
        config: sizes of the heads.
    """

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.combine = nn.Linear(2 * config.dim, config.dim, bias=False)
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.gate_up = nn.Linear(config.dim, 2 * config.ffn_hidden, bias=False)
        self.down = nn.Linear(config.ffn_hidden, config.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Predict hidden states, (..., dim).

        Args:
            x: hidden states and token embeddings, concatenated along the last axis, (..., 2 * dim).
        """
        combined = self.combine(x)
        gate, up = self.gate_up(self.norm(combined)).chunk(2, dim=-1)
        return combined + self.down(F.silu(gate) * up)


class ShiftHeads(StoredModel):
    """The shift heads of a target: several for the next tokens to the right, and one for the token below.

    Args:
        config: the sizes.
    """

    kind = "shift_heads"
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
        """Make untrained heads for a target, on its device. Each head returns the hidden state that it reads.

        Args:
            target: the target.
            num_right: number of heads for tokens to the right.
            seed: random seed.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            heads = cls(HeadsConfig.of(target.config, num_right))
            for head in heads.heads:
                nn.init.eye_(head.combine.weight)
                nn.init.normal_(head.gate_up.weight, std=0.02)
                nn.init.zeros_(head.down.weight)
        return heads.to(target.device)

    def right(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict the hidden states for the next tokens to the right, (..., num_right, dim).

        Args:
            hidden: hidden states from which the target predicted some tokens, (..., dim).
            embedded: the target's embeddings of these tokens, (..., dim).
        """
        x = torch.cat([hidden, embedded], dim=-1)
        return torch.stack([head(x) for head in self.heads[:-1]], dim=-2)

    def below(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict the hidden states for the tokens one line below, (..., dim). The arguments are those of `right`."""
        return self.heads[-1](torch.cat([hidden, embedded], dim=-1))

    def prepare_for_decoding(self) -> ShiftHeads:
        """Replace the linear maps by faster ones, in place, and return the model, which can no longer be trained."""
        prepare_linears(self)
        return self
