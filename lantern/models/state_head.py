"""State head: a small network that corrects the hidden state of a position after the tokens before it have changed.

In Jacobi decoding, every step computes the target's hidden states for the next positions, after drafts of the tokens
before them. Some of these drafts are then replaced by other tokens. The state head predicts the hidden states that the
target would compute after the new tokens:

    W x + f(x),  x = [state of the position before, outdated state, embeddings of NUM_TOKENS tokens]

W is a linear map and f a SwiGLU network. The target's output head turns the prediction into logits.

A state head has no cache, unlike EAGLE's draft model. With classifier-free guidance, its hidden states are guided ones,
u + s (c - u), where c and u are the target's hidden states with and without the prompt. The target's output head must
therefore be linear, and the guidance scale s must be the one of training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from lantern.models.config import TargetConfig
from lantern.models.linear import prepare_linears
from lantern.models.stored import StoredModel

NUM_STATES = 2  # hidden states: of the position before, and the outdated one of the position
NUM_TOKENS = 5  # the token before, what it was in the earlier step, and the tokens above, above right and above left


@dataclass(frozen=True)
class StateHeadConfig:
    """Sizes of a state head.

    line_width is the distance to the token above. dropout is the fraction of the hidden layer that training sets to 0.
    """

    dim: int
    ffn_hidden: int
    line_width: int
    dropout: float = 0.2

    @classmethod
    def of(cls, target: TargetConfig) -> StateHeadConfig:
        """Return the sizes of the state head that Lantern trains for a target."""
        return cls(target.dim, target.ffn_hidden, target.line_width)


class StateHead(StoredModel):
    """W, f and the scales of their inputs.

    `state_scale` and `token_scale` are root mean squares of the target's hidden states and token embeddings, which
    training measures. Until then they are 1.
    """

    kind = "state_head"
    label = "a state head"
    remedy = "run the workflow with heads.kind state"
    config_class = StateHeadConfig
    # Every name begins with "": all weights stay float32, as guided hidden states are.
    wide = ("",)
    config: StateHeadConfig
    state_scale: torch.Tensor
    token_scale: torch.Tensor
    above: torch.Tensor

    def __init__(self, config: StateHeadConfig) -> None:
        super().__init__()
        self.config = config
        inputs = (NUM_STATES + NUM_TOKENS) * config.dim
        self.combine = nn.Linear(inputs, config.dim, bias=False)
        self.gate_up = nn.Linear(inputs, 2 * config.ffn_hidden, bias=False)
        self.down = nn.Linear(config.ffn_hidden, config.dim, bias=False)
        self.register_buffer("state_scale", torch.ones(()))
        self.register_buffer("token_scale", torch.ones(()))
        width = config.line_width
        # To the tokens above, above right and above left, as in NUM_TOKENS.
        self.register_buffer("above", torch.tensor([-width, -width + 1, -width - 1]), persistent=False)

    @classmethod
    def from_target(cls, target: TargetConfig, seed: int) -> StateHead:
        """Make an untrained state head. It returns the outdated hidden state that it reads."""
        with torch.random.fork_rng(devices=[]):  # leaves the caller's generator as it is
            torch.manual_seed(seed)
            head = cls(StateHeadConfig.of(target))
        dim = target.dim
        with torch.no_grad():
            head.combine.weight.zero_()
            # W picks the second part of x, the outdated state, and f = 0.
            nn.init.eye_(head.combine.weight[:, dim : 2 * dim])
            nn.init.zeros_(head.down.weight)
        return head

    def tokens_above(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the tokens above, above right and above left, int64 (n, 3), or -1 before the image's first token.

        tokens is int64 (n, tokens), the image for each of the positions (n,).
        """
        index = positions[:, None] + self.above
        # Raster order wraps around at the sides: before a line comes the last token of the line above it.
        return tokens.gather(1, index.clamp(min=0)).masked_fill(index < 0, -1)

    @override
    def forward(self, previous: torch.Tensor, outdated: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict hidden states of some positions, float32 (..., dim).

        Args:
            previous: hidden states of the positions before, float32 (..., dim).
            outdated: hidden states of the positions, from an earlier step, float32 (..., dim). 0 if there was none.
            embedded: the target's embeddings of the tokens in the order of `NUM_TOKENS`, (..., NUM_TOKENS, dim). 0 for
                a token outside of the image.
        """
        # The division gives states and embeddings the same size, a root mean square of 1.
        states = torch.cat([previous, outdated], dim=-1) / self.state_scale
        x = torch.cat([states, embedded.flatten(-2).float() / self.token_scale], dim=-1)
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        hidden = F.dropout(F.silu(gate) * up, self.config.dropout, self.training)
        # The result has the scale of the target's hidden states, as its head expects.
        return (self.combine(x) + self.down(hidden)) * self.state_scale

    @override
    def prepare_for_decoding(self) -> StateHead:
        prepare_linears(self)
        return self
