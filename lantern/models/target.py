"""The target model: a transformer over a prompt and the tokens of an image.

A sequence is num_text_tokens positions of the prompt, padded on the left, then the image tokens in raster order. The
hidden state at position num_text_tokens - 1 + i predicts image token i. Padding is masked, but it counts as positions.

Axes: branches = 1, or 2 with classifier-free guidance; nodes = new tokens of a pass; slots = entries of the cache.
*features* are the input of the prompt: caption features, (..., positions, caption_dim), or token ids, int64 (...,
positions), depending on the config. Their *mask* is True for prompt tokens and False for padding, bool (...,
positions). Hidden states are those after the final norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from lantern.kv_cache import KVCache, prefix_mask, repeat_rows
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
    """Interface of a target, which decoders, draft models and measurements call.

    For decoding, `prefill` and `extend` run new tokens with a cache. For training and measurements, `forward` runs
    whole images without a cache.

    Attributes:
        token_embedding: embedding of image tokens: codes, and the line end if there is one.
        forbidden: tokens that are never sampled, bool (2, vocab): within a line, and at the end of a line.
        null_caption: learned caption features of the null prompt. Only targets whose prompts are caption features have
            it.
    """

    config: TargetConfig
    token_embedding: nn.Embedding
    forbidden: torch.Tensor
    null_caption: torch.Tensor

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        # The vocabulary is the codes, then the line end. At the end of a line only the line end is allowed.
        is_end = torch.arange(config.vocab_size) >= config.num_codes
        self.register_buffer("forbidden", torch.stack([is_end, ~is_end]), persistent=False)

    @property
    def is_head_linear(self) -> bool:
        """True if guidance may be applied before the head instead of after it."""
        return True

    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the logits, float32 (..., vocab), of hidden states, (..., dim)."""
        raise NotImplementedError

    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        """Embed features as the first input of the layers, (..., positions, dim)."""
        raise NotImplementedError

    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Return hidden states of new tokens, (branches, batch, nodes, dim), and write their keys and values.

        Args:
            x: embedded tokens, (branches * batch, nodes, dim), which may be changed in place.
            slots: slots for their keys and values, int64 (batch, nodes).
            rotary_positions: positions in the rotary table, int64 (batch, nodes).
            mask: additive mask, (branches * batch, 1, nodes, slots), from `KVCache.mask`.
        """
        raise NotImplementedError

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Numbers of layers and of key/value heads, and channels of a head."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.token_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of cache, hidden states and weights, except the weights that `wide` names, which are float32."""
        return self.token_embedding.weight.dtype

    def guided_logits(
        self, hidden: torch.Tensor, cfg_scale: float, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute logits, float32 (..., vocab), with classifier-free guidance if there are two branches.

        Args:
            hidden: (branches, ..., dim).
            cfg_scale: scale of guidance.
            positions: image positions that the states predict, int64, broadcastable to (...). If given, tokens that are
                forbidden at a position get the logit -inf.
        """
        if len(hidden) == 1:
            logits = self.read_logits(hidden[0])
        elif self.is_head_linear:
            # A linear head commutes with u + s (c - u), up to rounding, and then runs on half as many rows.
            logits = self.read_logits(guide(hidden.flatten(0, 1), cfg_scale))
        else:
            logits = guide(self.read_logits(hidden.flatten(0, 1)), cfg_scale)
        if positions is None or self.config.line_end is None:
            return logits
        # Row 0 or 1 of `forbidden` for each position. `forbidden[bool tensor]` would be a mask instead.
        return logits.masked_fill(F.embedding(self.config.ends_line(positions).long(), self.forbidden), -torch.inf)

    def null_prompt(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the null prompts of prompts with the given mask, as features and mask.

        Which null prompt it is depends on the model: LlamaGen learns caption features, which get the mask of the
        prompt. Others have ids, `null_ids` of the config, after masked padding. Janus's null prompt is as long as the
        prompt: the first of the null ids, then `null_filler` in place of each token of the caption, then the last.

        Raises:
            ValueError: the target has no null prompt.
        """
        ids = self.config.null_ids
        if not ids and not hasattr(self, "null_caption"):
            raise ValueError("this target has no null prompt: set cfg_scale, the guidance, to 1")
        if not ids:
            return self.null_caption.expand(*mask.shape, -1), mask
        if self.config.null_filler is not None:
            features = torch.full_like(mask, self.config.null_filler, dtype=torch.int64)
            # argmax returns the first of equal values: the first position after the padding.
            first = mask.int().argmax(-1, keepdim=True)
            # The fillers are attended to, as in Janus's own code: the mask is that of the prompt.
            features.scatter_(-1, first, ids[0])[..., -1] = ids[-1]
            return features, mask
        features, is_seen = torch.zeros_like(mask, dtype=torch.int64), torch.zeros_like(mask)
        features[..., -len(ids) :], is_seen[..., -len(ids) :] = torch.tensor(ids, device=mask.device), True
        return features, is_seen

    def with_null(self, features: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Stack prompts and their null prompts along a new first axis, as features and mask of two branches."""
        null, null_mask = self.null_prompt(mask)
        return torch.stack([features, null.to(features.dtype)]), torch.stack([mask, null_mask])

    @override
    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return hidden states of whole images, given their n tokens (teacher forcing).

        codes is int64 (images, n), and may hold line ends. The result is (images, num_text_tokens + n, dim).
        """
        raise NotImplementedError

    def forward_with_null(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Return `forward` of the prompts, then of their null prompts, (2 * images, num_text_tokens + n, dim)."""
        both, masks = (part.flatten(0, 1) for part in self.with_null(features, mask))
        return self(both, masks, repeat_rows(codes, len(both)))

    def prefill(self, features: torch.Tensor, mask: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, KVCache]:
        """Run prompts, and return hidden states, (branches, batch, num_text_tokens, dim), and a new cache.

        features is (branches, batch, ...), and mask (branches, batch, num_text_tokens). With guidance they come from
        `with_null`.
        """
        cache = self.make_cache(mask, num_slots)
        # Slots and rotary positions. They count padding, which changes nothing: a rotary table of kind "1d" acts by
        # differences of positions, and one of kind "2d" holds only zeros for the prompt.
        rows = torch.arange(mask.shape[2], device=mask.device).expand(mask.shape[1:])
        x = self.embed_prompts(features).flatten(0, 1)
        return self.run_nodes(x, rows, rows, cache.text_mask(mask), cache), cache

    def make_cache(self, visible: torch.Tensor, num_slots: int) -> KVCache:
        """Make an empty key/value cache of `num_slots` slots per image.

        `visible` marks the prompt positions that may be attended to, bool (branches, batch, num_text_tokens).
        """
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
        """Return hidden states of new tokens, (branches, batch, nodes, dim), as `run_nodes` does. Not differentiable.

        tokens is int64 (batch, nodes): all branches get the same image tokens.
        """
        return self.run_nodes(
            repeat_rows(self.token_embedding(tokens), len(mask)), slots, rotary_positions, mask, cache
        )


class TargetModel(Target):
    """The target of LlamaGen. With other options of `TargetConfig`, it is that of Chameleon, Janus or Emu3.

    Source: LlamaGen autoregressive/models/gpt.py.
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
        self.decoding_layers: list[DecodingLayer] = []  # empty before `prepare_for_decoding`
        self._initialise()

    def _initialise(self) -> None:
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                nn.init.normal_(part.weight, std=0.02)
        for layer in self.layers:  # residual branches start small, so that a deep stack starts near the identity
            for part in (layer.attention_out, layer.down):
                nn.init.normal_(part.weight, std=0.02 / (2 * self.config.num_layers) ** 0.5)

    @property
    @override
    def is_head_linear(self) -> bool:
        return self.head_in is None

    @property
    @override
    def cache_shape(self) -> tuple[int, int, int]:
        return len(self.layers), self.layers[0].num_kv_heads, self.layers[0].head_dim

    @override
    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if isinstance(self.head, nn.Linear):  # a prepared head is float32, and so is what it reads
            hidden = hidden.to(self.head.weight.dtype)
        if self.head_in is not None:
            hidden = F.gelu(self.head_in(hidden))
        return self.head(hidden).float()

    @override
    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        if self.config.num_prompt_ids:
            return self.prompt_embedding(features)
        # LlamaGen's GELU is approximate, and that of Janus's head, in `read_logits`, is exact.
        return self.caption_out(F.gelu(self.caption_in(features.to(self.dtype)), approximate="tanh"))

    @override
    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        x = torch.cat([self.embed_prompts(features), self.token_embedding(codes)], dim=1)
        # The added axis is that of heads.
        rotary = self.rotary[: x.shape[1], None]
        attention_mask = prefix_mask(mask, x.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, rotary, attention_mask)
        return self.final_norm(x)

    @override
    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        x, rotary, flat_slots = x.flatten(0, 1), gather_rotary(self.rotary, rotary_positions), cache.flat_slots(slots)
        # Decoding layers are not kept for an unprepared model: its weights may still change.
        layers = self.decoding_layers or [DecodingLayer(layer) for layer in self.layers]
        mask = group_mask(mask, layers[0].num_heads // layers[0].num_kv_heads)
        for layer, past in zip(layers, cache.layers, strict=True):
            layer(x, rotary, mask, past, flat_slots)
        return self.final_norm(x).view(-1, *slots.shape, x.shape[1])

    @override
    def prepare_for_decoding(self) -> TargetModel:
        """Make decoding faster by `prepare_layers`. The model can then no longer be trained."""
        self.decoding_layers = prepare_layers(self, self.layers)
        return self


def guide(doubled: torch.Tensor, cfg_scale: float) -> torch.Tensor:
    """Return u + s (c - u), float32 (batch, ...), for guidance scale s.

    `doubled` stacks c, of the prompts, and u, of the null prompts, (2 * batch, ...).
    """
    captioned, null = doubled.float().chunk(2)
    return torch.lerp(null, captioned, cfg_scale)
