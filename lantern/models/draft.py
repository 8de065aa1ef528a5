"""The draft model of EAGLE, which predicts the target's next hidden states.

For image token n, it takes the token, and the hidden state h_n from which the target predicted it. It returns an
estimate of the hidden state that predicts token n + 1, which the target's head turns into logits:

    h_(n + 1) = layer(fc [embedding of token n, h_n]),  fc [e, h] = from_token(e) + from_hidden(h)

`fc` is the name in EAGLE's code. It is stored in two parts, and only `from_token` has a bias. At prompt positions,
hidden state r goes with prompt token r + 1. Hence the draft model has num_text_tokens - 1 of them: the last hidden
state goes with the first image token.

Axes: branches = 1, or 2 with classifier-free guidance; nodes = new tokens of a pass; slots = entries of the cache.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from lantern.kv_cache import KVCache
from lantern.models.config import DraftConfig
from lantern.models.stored import StoredModel
from lantern.models.target import Target
from lantern.models.transformer import DecodingLayer, Layer, gather_rotary, group_mask, prepare_layers, rotary_table


class DraftModel(StoredModel):
    """The draft model. Its one decoder layer has no norm before the attention, except in Chameleon's.

    Source: SafeAILab/EAGLE model/cnets.py and jadohu/LANTERN models/drafters/cnets_llamagen.py.
    """

    kind = "draft_model"
    config_class = DraftConfig
    config: DraftConfig
    rotary: torch.Tensor

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.dim)
        self.from_token = nn.Linear(config.dim, config.dim)
        self.from_hidden = nn.Linear(config.dim, config.dim, bias=False)
        if config.num_embedded_ids:
            self.prompt_embedding = nn.Embedding(config.num_embedded_ids, config.dim)
        self.layer = Layer(config, has_attention_norm=config.has_attention_norm)
        # Position r embeds token r + 1. With kind "2d" it is rotated like the target's position r + 1. With "1d" it is
        # rotated like r, which changes nothing, since attention depends on differences of positions.
        num_text = config.num_text_tokens - 1
        table = rotary_table(num_text, config.lines, config.head_dim, config.rope_base, config.rope)
        self.register_buffer("rotary", table, persistent=False)
        self.decoding_layer: DecodingLayer | None = None  # None before `prepare_for_decoding`
        # Output of `from_token` for every token. None before `prepare_for_decoding`.
        self.token_table: torch.Tensor | None = None

    @classmethod
    def from_target(cls, target: Target, seed: int) -> DraftModel:
        """Make an untrained draft model for a target, on its device. `from_hidden` is the identity."""
        with torch.random.fork_rng(devices=[]):  # leaves the caller's generator as it is
            torch.manual_seed(seed)
            # Made on a CPU, so that a seed gives the same weights on every device.
            draft = cls(DraftConfig.of(target.config))
            for part in (draft.layer.qkv, draft.layer.gate_up, draft.from_token):
                nn.init.normal_(part.weight, std=0.02)
            # Residual branches start smaller, as in `TargetModel`.
            for part in (draft.layer.attention_out, draft.layer.down):
                nn.init.normal_(part.weight, std=0.01)
        with torch.no_grad():
            draft.from_hidden.weight.copy_(torch.eye(target.config.dim))
            draft.from_token.bias.zero_()
            draft.token_embedding.weight.copy_(target.token_embedding.weight)
        return draft.to(target.device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the part of `fc` that tokens determine, (..., dim). The caller adds `from_hidden`."""
        if self.token_table is not None:
            return F.embedding(tokens, self.token_table)
        return self.from_token(self.token_embedding(tokens))

    @override
    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Predict the next hidden states at all positions of whole images, (sequences, n, dim) (teacher forcing).

        Args:
            tokens: int64 (sequences, n), 0 at the first num_text_tokens - 1 positions. Image tokens follow.
            hidden: hidden states from which the target predicted the tokens, (sequences, n, dim).
            mask: additive mask, (sequences, 1, n, n). It hides later positions and the padding of prompts.
        """
        # The added axis of the rotary table is that of heads.
        return self.layer(self.embed(tokens) + self.from_hidden(hidden), self.rotary[: tokens.shape[1], None], mask)

    def prefill(
        self, hidden: torch.Tensor, mask: torch.Tensor, num_slots: int, ids: torch.Tensor | None = None
    ) -> KVCache:
        """Run the draft model over prompts, and return their key/value cache, with which `extend` continues.

        Args:
            hidden: hidden states of the target at all prompt positions except the last, (branches, batch,
                num_text_tokens - 1, dim).
            mask: True for prompt tokens, at the positions of `hidden`, bool (branches, batch, num_text_tokens - 1).
            ids: for each hidden state, the prompt id at the next position, int64, shaped like `mask`. Read only if
                `num_embedded_ids` is not 0.
        """
        visible = mask if self.config.masks_text_padding else torch.ones_like(mask)
        cache = self.make_cache(visible, num_slots)
        rows = torch.arange(mask.shape[2], device=mask.device).expand(mask.shape[1:])
        if self.config.num_embedded_ids:
            tokens = self.from_token(self.prompt_embedding(ids))
        else:
            tokens = self.embed(torch.zeros_like(rows))
        self._run(self.from_hidden(hidden).add_(tokens), rows, rows, cache.text_mask(visible), cache)
        return cache

    def make_cache(self, visible: torch.Tensor, num_slots: int) -> KVCache:
        """Make an empty key/value cache of `num_slots` slots per image.

        `visible` marks the prompt positions that may be attended to, bool (branches, batch, positions).
        """
        head_shape = (self.layer.num_kv_heads, self.layer.head_dim)
        return KVCache(visible, 1, num_slots, head_shape, self.token_embedding.weight.dtype)

    def extend(
        self,
        cache: KVCache,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        slots: torch.Tensor,
        rotary_positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Predict the next hidden states for new tokens, (branches, batch, nodes, dim), and fill their slots.

        Args:
            tokens: int64 (batch, nodes).
            hidden: hidden states that predicted the tokens, (branches, batch, nodes, dim).
            slots: slots for their keys and values, int64 (batch, nodes).
            rotary_positions: positions in the rotary table, int64 (batch, nodes).
            mask: additive mask, (branches * batch, 1, nodes, slots), from `KVCache.mask`.
        """
        # The branches have the same tokens and different hidden states. add_ repeats the embeddings for them.
        return self._run(self.from_hidden(hidden).add_(self.embed(tokens)), slots, rotary_positions, mask, cache)

    def _run(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Replace x, (branches, batch, nodes, dim), the output of `fc`, by the output of the layer in place."""
        layer = self.decoding_layer or DecodingLayer(self.layer)  # not kept: the weights may still change
        rotary, flat_slots = gather_rotary(self.rotary, rotary_positions), cache.flat_slots(slots)
        mask = group_mask(mask, layer.num_heads // layer.num_kv_heads)
        layer(x.view(-1, x.shape[-1]), rotary, mask, cache.layers[0], flat_slots)
        return x

    @override
    def prepare_for_decoding(self) -> DraftModel:
        """Make decoding faster, in place, and return the model. It can then no longer be trained."""
        with torch.no_grad():
            # A lookup in this table replaces the product with `from_token` in every pass.
            self.token_table = self.from_token(self.token_embedding.weight)
        (self.decoding_layer,) = prepare_layers(self, [self.layer])
        return self
