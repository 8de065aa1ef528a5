"""The draft model: EAGLE's head, which continues the target model's hidden states.

Its row for image token n takes (token n, the target's hidden state that predicted it) and yields the hidden state that
predicts token n + 1, in the space that the target's own head reads.
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
    """fc(cat(token embedding, target hidden)) -> one decoder layer without input norm; the target's head reads the
    result. The fc layer is kept in two, `from_token` (with the bias) and `from_hidden`.

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
        """A draft model to be trained for a target, on its device: it has the target's token embedding, its fc layer
        passes the hidden state through, and the other weights are normal numbers of the seed.
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
        """The token half of the fc layer: int64 (...) -> (..., dim)."""
        if self.token_table is not None:
            return F.embedding(tokens, self.token_table)
        return self.from_token(self.token_embedding(tokens))

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Teacher-forced pass over whole images: tokens int64 (rows, n), zeros for the num_text_tokens - 1 rows of the
        prompt, the target's hidden states that predicted them, (rows, n, dim), and an additive mask (rows, 1, n, n) ->
        predicted next hidden states, (rows, n, dim).
        """
        return self.layer(self.embed(tokens) + self.from_hidden(hidden), self.rotary[: tokens.shape[1], None], mask)

    def prefill(
        self, hidden: torch.Tensor, mask: torch.Tensor, num_slots: int, ids: torch.Tensor | None = None
    ) -> KVCache:
        """Runs the prompts of a batch; `extend` goes on from there.

        `hidden`: the target's, (captions, batch, num_text_tokens - 1, dim). `mask`: bool, without dim, True where a
        token of the prompt is. `ids`: of the prompts' tokens behind these, read with `num_embedded_ids`.
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
        """An empty cache for this model."""
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
        """Runs new nodes behind what the cache holds; arguments and result as in `Target.extend`, but for
        `hidden`, (captions, batch, nodes, dim): the hidden states that predicted the tokens.
        """
        return self._run(self.from_hidden(hidden).add_(self.embed(tokens)), slots, rotary_positions, mask, cache)

    def _run(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """What fc made of nodes, (captions, batch, nodes, dim), which it changes into their hidden states."""
        layer = self.decoding_layer or DecodingLayer(self.layer)
        rotary, flat_slots = gather_rotary(self.rotary, rotary_positions), cache.flat_slots(slots)
        layer(x.view(-1, x.shape[-1]), rotary, group_mask(mask, layer), cache.layers[0], flat_slots)
        return x

    def prepare_for_decoding(self) -> DraftModel:
        """As the target's; `from_token` becomes a table."""
        with torch.no_grad():
            self.token_table = self.from_token(self.token_embedding.weight)
        (self.decoding_layer,) = prepare_layers(self, [self.layer])
        return self
