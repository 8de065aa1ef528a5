"""The draft model: EAGLE's head, which continues the target model's hidden states.

For image token n it takes the token and the hidden state with which the target predicted it. It returns the hidden
state that predicts token n + 1, which the head of the target turns into logits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from lantern.kv_cache import KVCache
from lantern.models.config import DraftConfig
from lantern.models.stored import StoredModel
from lantern.models.target import Target
from lantern.models.transformer import DecodingLayer, Layer, gather_rotary, group_mask, prepare_layers, rotary_table


class DraftModel(StoredModel):
    """A linear layer fc(cat(token embedding, hidden state of the target)), then one decoder layer without input norm.

    The head of the target computes logits from the result. The layer fc is stored in two parts: `from_token`, with the
    bias, and `from_hidden`.

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
        # Row r of the drafter pairs (hidden r, token r + 1) and turns like the target's row r + 1: one text row fewer.
        num_text = config.num_text_tokens - 1
        table = rotary_table(num_text, config.lines, config.head_dim, config.rope_base, config.rope)
        self.register_buffer("rotary", table, persistent=False)
        self.decoding_layer: DecodingLayer | None = None  # of the weights once prepared for decoding
        self.token_table: torch.Tensor | None = None  # from_token of every code, once prepared for decoding

    @classmethod
    def from_target(cls, target: Target, seed: int) -> DraftModel:
        """Return an untrained draft model for a target, on its device.

        It copies the token embedding of the target. Its fc layer starts as the identity on the hidden state. The
        other weights are random normal numbers.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            draft = cls(DraftConfig.of(target.config))
            for part in (draft.layer.qkv, draft.layer.gate_up, draft.from_token):
                nn.init.normal_(part.weight, std=0.02)
            for part in (draft.layer.attention_out, draft.layer.down):
                nn.init.normal_(part.weight, std=0.01)
        with torch.no_grad():
            draft.from_hidden.weight.copy_(torch.eye(target.config.dim))
            draft.from_token.bias.zero_()
            draft.token_embedding.weight.copy_(target.token_embedding.weight)
        return draft.to(target.device)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Apply the token part of the fc layer to tokens, int64 (...): (..., dim)."""
        if self.token_table is not None:
            return F.embedding(tokens, self.token_table)
        return self.from_token(self.token_embedding(tokens))

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Run a teacher-forced pass over whole images.

        Args:
            tokens: int64 (rows, n), zeros at the num_text_tokens - 1 positions of the prompt.
            hidden: hidden states with which the target predicted the tokens, (rows, n, dim).
            mask: additive mask, (rows, 1, n, n).

        Returns:
            Predicted next hidden states, (rows, n, dim).
        """
        return self.layer(self.embed(tokens) + self.from_hidden(hidden), self.rotary[: tokens.shape[1], None], mask)

    def prefill(
        self, hidden: torch.Tensor, mask: torch.Tensor, num_slots: int, ids: torch.Tensor | None = None
    ) -> KVCache:
        """Run the prompts of a batch and return the cache, with which `extend` continues.

        Args:
            hidden: hidden states of the target, (branches, batch, num_text_tokens - 1, dim).
            mask: bool (branches, batch, num_text_tokens - 1), True for prompt tokens.
            num_slots: number of slots of the cache.
            ids: ids of the prompt tokens that follow these positions, read if the config has `num_embedded_ids`.
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
        """Return an empty cache for this model."""
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
        """Run new nodes with a cache, as `Target.extend` does.

        The argument `hidden`, (branches, batch, nodes, dim), is the hidden states that predicted the tokens.
        """
        return self._run(self.from_hidden(hidden).add_(self.embed(tokens)), slots, rotary_positions, mask, cache)

    def _run(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Run the layer in place on x, the output of fc, (branches, batch, nodes, dim)."""
        layer = self.decoding_layer or DecodingLayer(self.layer)
        rotary, flat_slots = gather_rotary(self.rotary, rotary_positions), cache.flat_slots(slots)
        layer(x.view(-1, x.shape[-1]), rotary, group_mask(mask, layer), cache.layers[0], flat_slots)
        return x

    def prepare_for_decoding(self) -> DraftModel:
        """Prepare the layer, see `prepare_layers`, and replace `from_token` by a table of all tokens."""
        with torch.no_grad():
            self.token_table = self.from_token(self.token_embedding.weight)
        (self.decoding_layer,) = prepare_layers(self, [self.layer])
        return self
