"""The target model: LlamaGen's text-to-image transformer, at any width.

Sequence: `num_text_tokens` caption rows (left-padded), then the image tokens in raster order. The hidden state of row
`num_text_tokens - 1 + i` predicts image token i.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from lantern.attention_mask import prefix_mask
from lantern.kv_cache import KVCache, repeat_rows
from lantern.models.config import TargetConfig
from lantern.models.transformer import (
    DecodingLayer,
    Layer,
    RMSNorm,
    cast_weights,
    gather_rotary,
    rotary_table,
    store_column_major,
)
from lantern.sampling import guide


class TargetModel(nn.Module):
    """Decoder-only transformer over caption rows and image tokens.

    Source: LlamaGen autoregressive/models/gpt.py; weights of its checkpoints load through
    `lantern.checkpoints.llamagen`.
    """

    kind = "target_model"  # of its checkpoints
    config_class = TargetConfig

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.caption_in = nn.Linear(config.caption_dim, config.dim, bias=False)
        self.caption_out = nn.Linear(config.dim, config.dim, bias=False)
        self.null_caption = nn.Parameter(
            torch.randn(config.num_text_tokens, config.caption_dim) / config.caption_dim**0.5
        )
        self.token_embedding = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(
            Layer(config.dim, config.num_heads, config.ffn_hidden, config.norm_eps) for _ in range(config.num_layers)
        )
        self.final_norm = RMSNorm(config.dim, config.norm_eps)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        table = rotary_table(config.num_text_tokens, config.grid, config.head_dim, config.rope_base)
        self.register_buffer("rotary", table, persistent=False)
        self.decoding_layers: list[DecodingLayer] = []  # of the weights once prepared for decoding
        self._initialise()

    def _initialise(self) -> None:
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
        for layer in self.layers:  # residual branches start small, so that a deep stack starts near the identity
            for part in (layer.attention_out, layer.down):
                nn.init.normal_(part.weight, std=0.02 / (2 * self.config.num_layers) ** 0.5)

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.token_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of weights, cache and hidden states; the head's may be wider, see `cast_target`."""
        return self.token_embedding.weight.dtype

    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of hidden states: (..., dim) -> float32 (..., vocab)."""
        return self.head(hidden.to(self.head.weight.dtype)).float()

    def guided_logits(self, hidden: torch.Tensor, cfg_scale: float) -> torch.Tensor:
        """Logits of hidden states, guided where the null caption runs along: (captions, ..., dim) -> float32 (...,
        vocab).
        """
        return self.read_logits(guide(hidden.flatten(0, 1), cfg_scale) if len(hidden) == 2 else hidden[0])

    def embed_text(self, features: torch.Tensor) -> torch.Tensor:
        """Projects caption features (rows, num_text_tokens, caption_dim) to (rows, num_text_tokens, dim)."""
        return self.caption_out(F.gelu(self.caption_in(features), approximate="tanh"))

    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Teacher-forced pass over a whole image.

        Args:
            features: caption features, (rows, num_text_tokens, caption_dim), left-padded; `null_features` for no
                caption.
            mask: bool, (rows, num_text_tokens), True where a caption token is.
            codes: int64, (rows, n): image tokens; token n - 1 may be left out, since nothing is predicted from it.

        Returns:
            Hidden states after the final norm of all rows, (rows, num_text_tokens + n, dim). Row
            num_text_tokens - 1 + i predicts code i; `head` turns hidden states into logits.
        """
        x = torch.cat([self.embed_text(features), self.token_embedding(codes)], dim=1)
        rotary = self.rotary[: x.shape[1], None, None]
        attention_mask = prefix_mask(mask, x.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, rotary, attention_mask)
        return self.final_norm(x)

    def forward_with_null(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """`forward` of images with their captions, then with the null caption under the same masks: (2 images, ...)."""
        both = torch.cat([features, self.null_features(len(features))])
        return self(both, repeat_rows(mask, len(both)), repeat_rows(codes, len(both)))

    def prefill(
        self, features: torch.Tensor, mask: torch.Tensor, num_slots: int, *, is_guided: bool
    ) -> tuple[torch.Tensor, KVCache]:
        """Runs the captions of a batch; `extend` goes on from there.

        Args:
            features: caption features, (batch, num_text_tokens, caption_dim), left-padded.
            mask: bool, (batch, num_text_tokens), True where a caption token is.
            num_slots: of the cache.
            is_guided: run the null caption along, masked like its prompt, as LlamaGen does.

        Returns:
            (hidden states after the final norm, (captions, batch, num_text_tokens, dim), captions = 1, or 2 under
            guidance: the prompt's and the null caption; cache).
        """
        if is_guided:
            features = torch.cat([features, self.null_features(len(features)).to(features.dtype)])
        cache = self.make_cache(mask, 1 + is_guided, num_slots)
        rows = torch.arange(mask.shape[1], device=mask.device).expand(mask.shape)
        return self._run(self.embed_text(features), rows, rows, cache.text_mask(mask), cache), cache

    def make_cache(self, visible: torch.Tensor, num_captions: int, num_slots: int) -> KVCache:
        """An empty cache for this model; arguments as of `KVCache`."""
        c = self.config
        return KVCache(visible, num_captions, c.num_layers, num_slots, (c.num_heads, c.head_dim), self.dtype)

    def extend(
        self,
        cache: KVCache,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        rotary_rows: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Runs new nodes behind what the cache holds; not to be differentiated.

        Args:
            cache: of the batch; takes their keys and values.
            tokens: int64, (batch, nodes).
            slots: int64, (batch, nodes): where their keys and values go.
            rotary_rows: int64, (batch, nodes): row of the rotary table of each node.
            mask: additive, (rows, 1, nodes, slots), see `KVCache.mask`.

        Returns:
            Hidden states after the final norm, (captions, batch, nodes, dim).
        """
        return self._run(repeat_rows(self.token_embedding(tokens), len(mask)), slots, rotary_rows, mask, cache)

    def _run(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_rows: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Embedded nodes (rows, nodes, dim), which it changes -> hidden states (captions, batch, nodes, dim)."""
        x, rotary, flat_slots = x.flatten(0, 1), gather_rotary(self.rotary, rotary_rows), cache.flat_slots(slots)
        layers = self.decoding_layers or [DecodingLayer(layer) for layer in self.layers]
        for layer, past in zip(layers, cache.layers, strict=True):
            layer(x, rotary, mask, past, flat_slots)
        return self.final_norm(x).view(-1, *slots.shape, x.shape[1])

    def null_features(self, num_rows: int) -> torch.Tensor:
        """The learned null caption, (num_rows, num_text_tokens, caption_dim)."""
        return self.null_caption.expand(num_rows, -1, -1)

    def prepare_for_decoding(self) -> TargetModel:
        """Makes the model faster to decode with, in place; it can no longer be trained, saved, moved or cast.

        On a CPU in float32 norm weights are folded and weights stored column-major, which changes outputs by rounding
        only; the kernels of other devices and dtypes want the weights as they are.
        """
        if self.device.type == "cpu" and self.dtype == torch.float32:
            for layer in self.layers:
                layer.fold_norms()
            store_column_major(self)
        self.decoding_layers = [DecodingLayer(layer) for layer in self.layers]
        return self


def cast_target(model: TargetModel, dtype: torch.dtype) -> TargetModel:
    """Casts a target in place, all but its head: guidance, filters and acceptance start from float32 logits.

    In bfloat16 the best two of 16384 logits are often equal; a float32 head costs dim x vocab x 2 bytes more.
    """
    head, model.head = model.head, nn.Identity()
    cast_weights(model, dtype)
    model.head = head
    return model
