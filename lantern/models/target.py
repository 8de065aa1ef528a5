"""The target model: a transformer over `num_text_tokens` rows of the prompt, left-padded, then the image tokens in
raster order. The hidden state of row `num_text_tokens - 1 + i` predicts image token i.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from lantern.attention_mask import prefix_mask
from lantern.kv_cache import KVCache, repeat_rows
from lantern.models.config import TargetConfig
from lantern.models.stored import StoredModel
from lantern.models.transformer import (
    DecodingLayer,
    Layer,
    RMSNorm,
    gather_rotary,
    group_mask,
    prepare_layers,
    rotary_table,
)


class Target(StoredModel):
    """What decoders, draft models and measurements ask of a target, whatever its layers are.

    A class of it has a `config`, a `token_embedding` of what it draws, the `cache_shape` of its layers and whether its
    head is linear; it embeds prompts, reads logits off hidden states, and runs nodes with a cache (`run_nodes`) or
    whole images without (`forward`).
    """

    config: TargetConfig
    token_embedding: nn.Embedding
    forbidden: torch.Tensor
    null_caption: torch.Tensor

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        # Of a place within a line, and of one at its end: the tokens that cannot stand there.
        is_end = torch.arange(config.vocab_size) >= config.num_codes
        self.register_buffer("forbidden", torch.stack([is_end, ~is_end]), persistent=False)

    @property
    def is_head_linear(self) -> bool:
        """Guidance and a linear head commute."""
        return True

    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of hidden states: (..., dim) -> float32 (..., vocab)."""
        raise NotImplementedError

    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        """Caption features (..., rows, caption_dim), or ids int64 (..., rows) -> (..., rows, dim)."""
        raise NotImplementedError

    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Embedded nodes (rows, nodes, dim), which it may change -> hidden states (captions, batch, nodes, dim); other
        arguments as in `extend`.
        """
        raise NotImplementedError

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Layers, heads of keys and values, and width of a head."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.token_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of weights, cache and hidden states, all but the `wide` ones."""
        return self.token_embedding.weight.dtype

    def guided_logits(
        self, hidden: torch.Tensor, cfg_scale: float, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits, float32 (..., vocab), of hidden states (captions, ..., dim), guided where the null caption runs
        along. Guidance and a linear head commute; in front of the head it halves its rows.

        `positions`, int64 broadcastable to (...), are those of the image that the states predict: tokens that may not
        stand there get -inf.
        """
        if len(hidden) == 1:
            logits = self.read_logits(hidden[0])
        elif self.is_head_linear:
            logits = self.read_logits(guide(hidden.flatten(0, 1), cfg_scale))
        else:
            logits = guide(self.read_logits(hidden.flatten(0, 1)), cfg_scale)
        if positions is None or self.config.line_end is None:
            return logits
        return logits.masked_fill(F.embedding(self.config.ends_line(positions).long(), self.forbidden), -torch.inf)

    def null_prompt(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The prompt of no caption beside those of a mask, bool (..., num_text_tokens) -> (features or ids, mask): the
        learned null caption under the prompts' masks, `null_ids` behind pads that are hidden, or, with a `null_filler`,
        pads that are seen, as many as the prompt has tokens, between the first and the last of them.
        """
        ids = self.config.null_ids
        if not ids and not hasattr(self, "null_caption"):
            raise ValueError("this target has no prompt of no caption: set cfg_scale, the guidance, to 1")
        if not ids:
            return self.null_caption.expand(*mask.shape, -1), mask
        if self.config.null_filler is not None:
            features = torch.full_like(mask, self.config.null_filler, dtype=torch.int64)
            first = mask.int().argmax(-1, keepdim=True)
            features.scatter_(-1, first, ids[0])[..., -1] = ids[-1]
            return features, mask
        features, is_seen = torch.zeros_like(mask, dtype=torch.int64), torch.zeros_like(mask)
        features[..., -len(ids) :], is_seen[..., -len(ids) :] = torch.tensor(ids, device=mask.device), True
        return features, is_seen

    def with_null(self, features: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Prompts, and the null prompt beside each: features (batch, ...) -> (2, batch, ...), and their masks."""
        null, null_mask = self.null_prompt(mask)
        return torch.stack([features, null.to(features.dtype)]), torch.stack([mask, null_mask])

    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Teacher-forced pass over whole images: hidden states after the final norm of all rows, (images,
        num_text_tokens + n, dim).

        `features`: caption features (images, num_text_tokens, caption_dim), or ids int64 (images, num_text_tokens);
        `mask`: bool, True where a token of the prompt is; `codes`: int64 (images, n), of which the last predicts none.
        """
        raise NotImplementedError

    def forward_with_null(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """`forward` of images with their prompts, then with the null prompt: (2 images, ...)."""
        both, masks = (part.flatten(0, 1) for part in self.with_null(features, mask))
        return self(both, masks, repeat_rows(codes, len(both)))

    def prefill(self, features: torch.Tensor, mask: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, KVCache]:
        """Runs the prompts of a batch, `features` and `mask` as in `forward`, but (captions, batch, ...), captions = 1,
        or 2 under guidance, see `with_null`: hidden states after the final norm, (captions, batch, num_text_tokens,
        dim), and the cache, from which `extend` goes on.
        """
        cache = self.make_cache(mask, num_slots)
        rows = torch.arange(mask.shape[2], device=mask.device).expand(mask.shape[1:])
        x = self.embed_prompts(features).flatten(0, 1)
        return self.run_nodes(x, rows, rows, cache.text_mask(mask), cache), cache

    def make_cache(self, visible: torch.Tensor, num_slots: int) -> KVCache:
        """An empty cache for this model."""
        num_layers, num_kv_heads, head_dim = self.cache_shape
        return KVCache(visible, num_layers, num_slots, (num_kv_heads, head_dim), self.dtype)

    def extend(
        self,
        cache: KVCache,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        rotary_positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Runs new nodes behind what the cache holds, which takes their keys and values: hidden states after the final
        norm, (captions, batch, nodes, dim); not to be differentiated.

        `tokens`, `slots` of their keys and values, and `rotary_positions` of the rotary table: int64, (batch, nodes).
        `mask`: additive, (rows, 1, nodes, slots), see `KVCache.mask`.
        """
        return self.run_nodes(
            repeat_rows(self.token_embedding(tokens), len(mask)), slots, rotary_positions, mask, cache
        )

    def prepare_for_decoding(self) -> Target:
        """Makes the model faster to decode with, in place, where it can be."""
        return self


class TargetModel(Target):
    """Decoder-only transformer over prompts and image tokens.

    Source: LlamaGen autoregressive/models/gpt.py; options of `TargetConfig` make it a language model.
    """

    kind = "target_model"
    config_class = TargetConfig
    wide = ("head.", "head_in.")  # guidance, filters and acceptance start from float32 logits
    layers: Sequence[Layer]
    rotary: torch.Tensor

    def __init__(self, config: TargetConfig) -> None:
        super().__init__(config)
        if config.num_prompt_ids:
            self.prompt_embedding = nn.Embedding(config.num_prompt_ids, config.dim)
        else:
            self.caption_in = nn.Linear(config.caption_dim, config.dim, bias=False)
            self.caption_out = nn.Linear(config.dim, config.dim, bias=False)
            self.null_caption = nn.Parameter(
                torch.randn(config.num_text_tokens, config.caption_dim) / config.caption_dim**0.5
            )
        self.token_embedding = nn.Embedding(config.vocab_size, config.dim)
        blocks = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.layers = blocks  # pyright: ignore[reportAttributeAccessIssue]  torch's ModuleList states no item type
        self.final_norm = RMSNorm(config.dim, config.norm_eps)
        self.head_in = nn.Linear(config.dim, config.dim) if config.has_mlp_head else None
        self.head = nn.Linear(config.dim, config.vocab_size, bias=config.has_mlp_head)
        table = rotary_table(config.num_text_tokens, config.lines, config.head_dim, config.rope_base, config.rope)
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
    def is_head_linear(self) -> bool:
        """Guidance and a linear head commute."""
        return self.head_in is None

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """See `Target.cache_shape`."""
        return len(self.layers), self.layers[0].num_kv_heads, self.layers[0].head_dim

    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Target.read_logits`."""
        if isinstance(self.head, nn.Linear):  # a prepared head is float32, and so is what it reads
            hidden = hidden.to(self.head.weight.dtype)
        if self.head_in is not None:
            hidden = F.gelu(self.head_in(hidden))
        return self.head(hidden).float()

    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        """See `Target.embed_prompts`."""
        if self.config.num_prompt_ids:
            return self.prompt_embedding(features)
        return self.caption_out(F.gelu(self.caption_in(features.to(self.dtype)), approximate="tanh"))

    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """See `Target.forward`; differentiable."""
        x = torch.cat([self.embed_prompts(features), self.token_embedding(codes)], dim=1)
        rotary = self.rotary[: x.shape[1], None]
        attention_mask = prefix_mask(mask, x.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, rotary, attention_mask)
        return self.final_norm(x)

    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """See `Target.run_nodes`; changes x."""
        x, rotary, flat_slots = x.flatten(0, 1), gather_rotary(self.rotary, rotary_positions), cache.flat_slots(slots)
        layers = self.decoding_layers or [DecodingLayer(layer) for layer in self.layers]
        mask = group_mask(mask, layers[0])
        for layer, past in zip(layers, cache.layers, strict=True):
            layer(x, rotary, mask, past, flat_slots)
        return self.final_norm(x).view(-1, *slots.shape, x.shape[1])

    def prepare_for_decoding(self) -> TargetModel:
        """See `Target.prepare_for_decoding` and `prepare_layers`."""
        self.decoding_layers = prepare_layers(self, self.layers)
        return self


def guide(doubled: torch.Tensor, cfg_scale: float) -> torch.Tensor:
    """Classifier-free guidance u + s (c - u): (2 batch, ...), captioned rows first, null rows second -> float32 (batch,
    ...).

    Logits, or hidden states in front of a linear head: guidance and a bias-free head commute, and the head then runs on
    half the rows.
    """
    captioned, null = doubled.float().chunk(2)
    return torch.lerp(null, captioned, cfg_scale)
