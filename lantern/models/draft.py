"""The draft model: EAGLE's head, which continues the target model's hidden states.

Its row for image token n takes (token n, the target's hidden state that predicted it) and yields the hidden state that
predicts token n + 1, in the space that the target's own head reads.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from lantern.checkpoints.native import load_checkpoint, load_weights, save_checkpoint
from lantern.kv_cache import KVCache
from lantern.models.config import DraftConfig
from lantern.models.target import gather_rotary
from lantern.models.transformer import Layer, rotary_table, store_column_major


class DraftModel(nn.Module):
    """fc(cat(token embedding, target hidden)) -> one decoder layer without input norm; the target's head reads the
    result.

    The fc layer is kept as its two halves, `from_token` (with the bias) and `from_hidden`.

    Source: SafeAILab/EAGLE model/cnets.py and jadohu/LANTERN models/drafters/cnets_llamagen.py, convention of their
    weights.
    """

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.dim)
        self.from_token = nn.Linear(config.dim, config.dim)
        self.from_hidden = nn.Linear(config.dim, config.dim, bias=False)
        self.layer = Layer(config.dim, config.num_heads, config.ffn_hidden, config.norm_eps, has_attention_norm=False)
        # Row r of the drafter pairs (hidden r, token r + 1) and turns like the target's row r + 1: one text row fewer.
        table = rotary_table(config.num_text_tokens - 1, config.grid, config.dim // config.num_heads, config.rope_base)
        self.register_buffer("rotary", table, persistent=False)
        self.token_table: torch.Tensor | None = None  # from_token of every code, once prepared for decoding

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The token half of the fc layer: int64 (...) -> (..., dim)."""
        if self.token_table is not None:
            return F.embedding(tokens, self.token_table)
        return self.from_token(self.token_embedding(tokens))

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Teacher-forced pass over a whole image.

        Args:
            tokens: int64, (rows, n): zeros for the num_text_tokens - 1 caption rows, then the image tokens.
            hidden: target hidden states, (rows, n, dim); row r predicted the token of row r.
            mask: additive, (rows, 1, n, n).

        Returns:
            Predicted next hidden states, (rows, n, dim).
        """
        return self.layer(
            self.embed(tokens) + self.from_hidden(hidden), self.rotary[: tokens.shape[1], None, None], mask
        )

    def run_cached(
        self, tokens: torch.Tensor, hidden: torch.Tensor, rotary_rows: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Runs new nodes against the cache, whose slots were chosen with `cache.place`.

        Args:
            tokens: int64, (batch, nodes).
            hidden: (rows, nodes, dim); rows = batch, or twice the batch under guidance (both halves draft the same
                tokens).
            rotary_rows: int64, (batch, nodes).
            mask: additive, (rows, 1, nodes, slots).
            cache: one layer.

        Returns:
            Predicted next hidden states, (rows, nodes, dim).
        """
        embedded = self.embed(tokens)
        if hidden.shape[0] != embedded.shape[0]:
            embedded = embedded.repeat(hidden.shape[0] // embedded.shape[0], 1, 1)
        x = embedded + self.from_hidden(hidden)
        return self.layer(x, gather_rotary(self.rotary, rotary_rows, x.shape[0]), mask, cache)

    def prepare_for_decoding(self) -> DraftModel:
        """As the target's: faster to decode with, no longer to be trained or saved. Tabulates `from_token` on any
        device.
        """
        with torch.no_grad():
            self.token_table = self.from_token(self.token_embedding.weight)
        if self.token_table.device.type == "cpu" and self.token_table.dtype == torch.float32:
            self.layer.fold_norms()
            store_column_major(self)
        return self

    def new_cache(self, num_rows: int, num_slots: int) -> KVCache:
        """An empty cache of num_slots slots for num_rows rows on the model's device, in its dtype."""
        c, weight = self.config, self.from_hidden.weight
        head_dim = c.dim // c.num_heads
        return KVCache(1, num_rows, num_slots, c.num_heads, head_dim, device=weight.device, dtype=weight.dtype)


def save_draft(path: Path, model: DraftModel, metadata: dict | None = None) -> None:
    """Writes a draft model; metadata (training record) is kept beside the weights."""
    save_checkpoint(path, model, "draft_model", metadata)


def load_draft(path: Path) -> DraftModel:
    """Reads a draft model written by `save_draft`, in evaluation mode.

    Raises:
        ValueError: the file is truncated, foreign, or its tensors do not fit its config.
    """
    state, metadata = load_checkpoint(path, "draft_model")
    return load_weights(DraftModel(DraftConfig(**metadata["config"])), state, path)
