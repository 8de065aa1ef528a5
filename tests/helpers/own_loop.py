"""A decoding loop in a user's file: autoregressive decoding that feeds each token at its image position."""

from __future__ import annotations

import torch

from lantern.drafters.base import NoDrafter
from lantern_methods.parallel_lines import LinesDecoder


class Newest(NoDrafter):
    """Declaration of the loop."""

    trees = ()
    loop = "helpers.own_loop:OneByOne"


class OneByOne(LinesDecoder):
    """Decoder whose steps feed the newest token of each image."""

    def __init__(self, options):
        super().__init__(options, NoDrafter(options.models.target.device), max_depth=0)

    @torch.inference_mode()
    def step(self, state):
        predicted = state.lengths[:, None]
        newest = predicted - 1
        visible = torch.arange(self.num_tokens) <= newest[..., None]
        hidden = self.run_target(state, state.tokens.gather(1, newest), newest, visible)
        best, tokens = self.score(state, hidden, predicted).keys.max(-1)
        state.tokens.scatter_(1, predicted, tokens)
        none = torch.zeros_like(state.lengths)
        self.log_step(state, none, none, best.isfinite().all(1))
