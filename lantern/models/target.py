"""The target model: a transformer over a prompt and the tokens of an image.

A sequence is `num_text_tokens` positions of the left-padded prompt, then the image tokens in raster order. The hidden
state at position `num_text_tokens - 1 + i` predicts image token i.

With classifier-free guidance there are two *branches*: the prompts and the null prompts. Without guidance there is one.
*Nodes* are the new tokens of a pass, for example the nodes of a draft tree. A *slot* is an entry of the key/value
cache.
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
    """Interface of a target, which decoders, draft models and measurements call.

    A subclass embeds prompts and computes logits from hidden states. For decoding, it runs new tokens with a cache in
    `run_nodes`. For training and measurements, it runs whole images without a cache in `forward`.

    Args:
        config: sizes of the target.

    Attributes:
        config: sizes of the target.
        token_embedding: embedding of image tokens: codes, and the line end if there is one.
        forbidden: tokens that are never sampled, bool (2, vocab). forbidden[0] marks tokens that may not occur within a
            line of the image, forbidden[1] tokens that may not occur at the end of a line.
        null_caption: learned caption features of the null prompt, for classifier-free guidance. Only targets whose
            prompts are caption features have it.
    """

    config: TargetConfig
    token_embedding: nn.Embedding
    forbidden: torch.Tensor
    null_caption: torch.Tensor

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        # Line ends are forbidden within a line. Codes are forbidden at the end of a line.
        is_end = torch.arange(config.vocab_size) >= config.num_codes
        self.register_buffer("forbidden", torch.stack([is_end, ~is_end]), persistent=False)

    @property
    def is_head_linear(self) -> bool:
        """True if the head is linear, so that guidance may be applied before the head instead of after it."""
        return True

    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the logits of hidden states.

        Args:
            hidden: (..., dim).

        Returns:
            float32 (..., vocab).
        """
        raise NotImplementedError

    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        """Embed prompts, as the first input of the layers.

        Args:
            features: caption features, (..., positions, caption_dim), or token ids, int64 (..., positions), depending
                on the config.

        Returns:
            (..., positions, dim).
        """
        raise NotImplementedError

    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Run the layers on the embeddings of new tokens, which attend to a cache and are added to it.

        Args:
            x: embedded tokens, (branches * batch, nodes, dim), which may be changed in place.
            slots: slots for their keys and values, int64 (batch, nodes).
            rotary_positions: positions in the rotary table, int64 (batch, nodes).
            mask: additive mask, (branches * batch, 1, nodes, slots), see `KVCache.mask`.
            cache: keys and values of earlier tokens.

        Returns:
            Hidden states after the final norm, (branches, batch, nodes, dim).
        """
        raise NotImplementedError

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Numbers that determine the size of a key/value cache: (layers, key/value heads, channels of a head)."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.token_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of cache, hidden states and weights, except the weights that `wide` names, which are float32."""
        return self.token_embedding.weight.dtype

    def source_codes(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
        """Return for each image token the code of the source picture at the same place, int64 (batch, image tokens).

        A source picture is a picture in the prompt, which the model edits. The result is None if the prompts have no
        source pictures.

        Args:
            features: prompts, (batch, ...).
            mask: True for prompt tokens, bool (batch, num_text_tokens).
        """
        return None

    def guided_logits(
        self, hidden: torch.Tensor, cfg_scale: float, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute logits of hidden states, with classifier-free guidance if there are two branches.

        If the head is linear, guidance is applied to the hidden states. The logits are the same up to rounding, and the
        head runs on half as many rows.

        Args:
            hidden: (branches, ..., dim).
            cfg_scale: scale of classifier-free guidance.
            positions: image positions that the states predict, int64, broadcastable to (...). If given, tokens that are
                forbidden at a position get the logit -inf.

        Returns:
            float32 (..., vocab).
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
        """Return the null prompts for classifier-free guidance, one per prompt.

        There are three kinds, depending on the config:

        - Without `null_ids`, the learned features `null_caption` with the mask of the prompt.
        - With `null_ids` only, these ids after masked padding.
        - With `null_ids` and `null_filler`, a prompt of the same length as the given one: the first of the `null_ids`,
          then fillers, then the last of the `null_ids`.

        Args:
            mask: True for prompt tokens, bool (..., num_text_tokens).

        Returns:
            (caption features (..., num_text_tokens, caption_dim) or ids (..., num_text_tokens); their mask, shaped like
            `mask`).

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
            first = mask.int().argmax(-1, keepdim=True)
            features.scatter_(-1, first, ids[0])[..., -1] = ids[-1]
            return features, mask
        features, is_seen = torch.zeros_like(mask, dtype=torch.int64), torch.zeros_like(mask)
        features[..., -len(ids) :], is_seen[..., -len(ids) :] = torch.tensor(ids, device=mask.device), True
        return features, is_seen

    def with_null(self, features: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Stack prompts and their null prompts, for classifier-free guidance.

        Args:
            features: caption features or ids of the prompts, (batch, ...).
            mask: True for prompt tokens, False for padding, bool (batch, num_text_tokens).

        Returns:
            (features, mask), each with a leading axis of two branches: prompts, then null prompts.
        """
        null, null_mask = self.null_prompt(mask)
        return torch.stack([features, null.to(features.dtype)]), torch.stack([mask, null_mask])

    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Compute the hidden states at all positions of whole images, given their tokens (teacher forcing).

        Args:
            features: caption features (images, num_text_tokens, caption_dim), or ids, int64 (images, num_text_tokens).
            mask: bool (images, num_text_tokens), True for prompt tokens.
            codes: image tokens, int64 (images, n).

        Returns:
            Hidden states after the final norm, (images, num_text_tokens + n, dim).
        """
        raise NotImplementedError

    def forward_with_null(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Compute the hidden states of images with their prompts, then with null prompts, for classifier-free guidance.

        Args:
            features: prompts, as in `forward`.
            mask: True for prompt tokens, as in `forward`.
            codes: image tokens, as in `forward`.

        Returns:
            Hidden states after the final norm, (2 * images, num_text_tokens + n, dim).
        """
        both, masks = (part.flatten(0, 1) for part in self.with_null(features, mask))
        return self(both, masks, repeat_rows(codes, len(both)))

    def prefill(self, features: torch.Tensor, mask: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, KVCache]:
        """Run the prompts of a batch, and store their keys and values in a new cache, with which `extend` continues.

        Args:
            features: caption features or ids, (branches, batch, ...), see `with_null`. branches = 1, or 2 with
                guidance.
            mask: bool (branches, batch, num_text_tokens), True for prompt tokens.
            num_slots: number of slots of the cache per image.

        Returns:
            (hidden states after the final norm, (branches, batch, num_text_tokens, dim); the cache).
        """
        cache = self.make_cache(mask, num_slots)
        rows = torch.arange(mask.shape[2], device=mask.device).expand(mask.shape[1:])
        x = self.embed_prompts(features).flatten(0, 1)
        return self.run_nodes(x, rows, rows, cache.text_mask(mask), cache), cache

    def make_cache(self, visible: torch.Tensor, num_slots: int) -> KVCache:
        """Make an empty key/value cache for this model.

        Args:
            visible: prompt positions that may be attended to, bool (branches, batch, num_text_tokens).
            num_slots: number of slots per image. A slot holds the keys and values of one token.
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
        """Compute hidden states of new tokens, and store the tokens' keys and values in the cache.

        The result is not differentiable.

        Args:
            cache: keys and values of earlier tokens.
            tokens: int64 (batch, nodes).
            slots: slots for their keys and values, int64 (batch, nodes).
            rotary_positions: positions in the rotary table, int64 (batch, nodes).
            mask: additive mask, (branches * batch, 1, nodes, slots), see `KVCache.mask`.

        Returns:
            Hidden states after the final norm, (branches, batch, nodes, dim).
        """
        return self.run_nodes(
            repeat_rows(self.token_embedding(tokens), len(mask)), slots, rotary_positions, mask, cache
        )

    def prepare_for_decoding(self) -> Target:
        """Change the weights in place so that decoding is faster, and return the model. By default nothing is done."""
        return self


class TargetModel(Target):
    """Decoder-only transformer over prompts and image tokens, as in LlamaGen.

    With other options of `TargetConfig`, it has the architecture of Chameleon, Janus or Emu3.

    Args:
        config: sizes of the target.

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
    def is_head_linear(self) -> bool:
        """True if the head is linear, so that guidance may be applied before the head instead of after it."""
        return self.head_in is None

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Numbers of layers and of key/value heads, and channels of a head, see `Target.cache_shape`."""
        return len(self.layers), self.layers[0].num_kv_heads, self.layers[0].head_dim

    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the logits of hidden states, see `Target.read_logits`."""
        if isinstance(self.head, nn.Linear):  # a prepared head is float32, and so is what it reads
            hidden = hidden.to(self.head.weight.dtype)
        if self.head_in is not None:
            hidden = F.gelu(self.head_in(hidden))
        return self.head(hidden).float()

    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        """Embed prompts, see `Target.embed_prompts`."""
        if self.config.num_prompt_ids:
            return self.prompt_embedding(features)
        return self.caption_out(F.gelu(self.caption_in(features.to(self.dtype)), approximate="tanh"))

    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Compute the hidden states of whole images, see `Target.forward`. The result is differentiable."""
        x = torch.cat([self.embed_prompts(features), self.token_embedding(codes)], dim=1)
        rotary = self.rotary[: x.shape[1], None]
        attention_mask = prefix_mask(mask, x.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, rotary, attention_mask)
        return self.final_norm(x)

    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Run the layers on the embeddings x of new tokens, see `Target.run_nodes`. This changes x in place."""
        x, rotary, flat_slots = x.flatten(0, 1), gather_rotary(self.rotary, rotary_positions), cache.flat_slots(slots)
        layers = self.decoding_layers or [DecodingLayer(layer) for layer in self.layers]
        mask = group_mask(mask, layers[0].num_heads // layers[0].num_kv_heads)
        for layer, past in zip(layers, cache.layers, strict=True):
            layer(x, rotary, mask, past, flat_slots)
        return self.final_norm(x).view(-1, *slots.shape, x.shape[1])

    def prepare_for_decoding(self) -> TargetModel:
        """Make decoding faster by `prepare_layers`, and return the model, which can then no longer be trained."""
        self.decoding_layers = prepare_layers(self, self.layers)
        return self


def guide(doubled: torch.Tensor, cfg_scale: float) -> torch.Tensor:
    """Apply classifier-free guidance u + s (c - u) to logits, or to hidden states before a linear head.

    Args:
        doubled: logits or hidden states, first for the prompts (c), then for the null prompts (u), (2 * batch, ...).
        cfg_scale: scale s.

    Returns:
        float32 (batch, ...).
    """
    captioned, null = doubled.float().chunk(2)
    return torch.lerp(null, captioned, cfg_scale)
