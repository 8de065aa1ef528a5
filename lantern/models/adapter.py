"""Targets whose layers are a model of transformers: cache, trees, guidance and noise stay ours, nothing is patched."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn

from lantern.attention_mask import prefix_mask
from lantern.kv_cache import KVCache
from lantern.models.config import TargetConfig
from lantern.models.target import Target


class TransformersTarget(Target):
    """A target over any causal model of transformers that takes `inputs_embeds`, a mask of four dimensions and
    `position_ids`.

    Args:
        config: of the target; prompts are ids.
        layers: the model inside, without its head; what it returns as `last_hidden_state` is normalised.
        prompt_embedding: of the prompts' ids.
        tokens: what the layers read of each token that is drawn, (vocab, dim): codes, then what ends a line.
        head: hidden states (..., dim) to logits (..., vocab) of the same tokens; a copy of it is run in float32.
        is_head_linear: guidance and the head commute.
        positions: int64 (rows of positions, num_text_tokens + image tokens and more), of models that turn their
            channels by several; None for one that counts tokens.
    """

    def __init__(
        self,
        config: TargetConfig,
        layers: nn.Module,
        prompt_embedding: nn.Embedding,
        tokens: torch.Tensor,
        head: nn.Module,
        *,
        is_head_linear: bool = True,
        positions: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config, self.layers, self.is_head_linear = config, layers, is_head_linear
        self.prompt_embedding, self.head = prompt_embedding, deepcopy(head).float()
        self.token_embedding = nn.Embedding(*tokens.shape, _weight=tokens.detach(), _freeze=True)
        self.register_buffer("positions", positions, persistent=False)

    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Target.read_logits`."""
        return self.head(hidden.float())

    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        """See `Target.embed_prompts`."""
        return self.prompt_embedding(features)

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """See `Target.cache_shape`."""
        text = self.layers.config
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return text.num_hidden_layers, text.num_key_value_heads, head_dim

    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """See `Target.forward`."""
        x = torch.cat([self.embed_prompts(features), self.token_embedding(codes)], dim=1)
        rows = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
        return self._call(x, rows, prefix_mask(mask, x.shape[1], x.dtype), None)

    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_rows: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """See `Target.run_nodes`."""
        rows = rotary_rows.repeat(len(x) // len(rotary_rows), 1)
        return self._call(x, rows, mask, _Slots(cache, slots)).view(-1, *slots.shape, x.shape[2])

    def _call(self, x: torch.Tensor, rows: torch.Tensor, mask: torch.Tensor, past: _Slots | None) -> torch.Tensor:
        positions = rows if self.positions is None else self.positions[:, rows]
        known = {"inputs_embeds": x, "attention_mask": mask, "position_ids": positions}
        return self.layers(**known, past_key_values=past, use_cache=past is not None).last_hidden_state


class ModelImages(nn.Module):
    """The image tokenizer inside a model of transformers, as `lantern.api.Model` wants one.

    `decode` is None where transformers has no decoder of the family's codes.
    """

    def __init__(
        self,
        model: Any,
        draw_pixels: Callable[[Any, torch.Tensor], torch.Tensor] | None,
        codebook: torch.Tensor,
        grid: int,
    ) -> None:
        super().__init__()
        self.codebook, self._call, self._grid = codebook.detach(), draw_pixels and partial(draw_pixels, model), grid
        self.decode = self._decode if draw_pixels else None

    def _decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Images (images, 3, size, size) in [-1, 1] of codes (images, grid * grid)."""
        return self._call(codes.unflatten(1, (self._grid, -1))).float().clamp(-1, 1)


class _Slots:
    """What a model of transformers takes for its cache: writes keys and values into slots of ours."""

    is_compileable, is_sliding = False, [False]

    def __init__(self, cache: KVCache, slots: torch.Tensor) -> None:
        self._layers, self._slots = cache.layers, cache.flat_slots(slots)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes those of the new nodes, (rows, heads, nodes, head_dim), and gives those of all slots."""
        past = self._layers[layer_idx]
        both = torch.stack([keys, values], dim=2).permute(0, 3, 2, 1, 4)  # (rows, nodes, 2, heads, head_dim)
        past.entries.index_copy_(0, self._slots, both.flatten(0, 1).flatten(1))
        return past.keys, past.values

    def get_seq_length(self, *_: Any) -> int:
        """Positions are given."""
        return 0
