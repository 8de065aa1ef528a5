"""The target of Lantern's shipped model "embedded" as a model of vLLM, which needs no download.

vLLM models read ids. Here they are the codes, then each word of each caption that `export` was given, then padding.
Prompts are padded on the left, as in Lantern.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from vllm.model_executor.layers.attention import Attention
from vllm.utils.torch_utils import set_default_torch_dtype

from lantern.models.config import TargetConfig
from lantern.models.stored import load_model
from lantern.models.target import TargetModel
from lantern.models.transformer import Layer, RMSNorm, rotary_table
from lantern.prompts import TextEncoder
from lantern_models.loading import find_shipped

# Prompt, image, nine drafts: vLLM drafts nothing in a step in which its longest sequence has no room for all of them.
MAX_LENGTH = 16 + 64 + 9
WIDTH = 64  # channels of a head for vLLM: 32, one that masks padding, and zeros up to a size that its kernels know


def export(encoder: TextEncoder, captions: Sequence[str], folder: Path) -> list[list[int]]:
    """Write the target as a folder that vLLM loads, and return the prompts of `captions` as ids."""
    target = load_model(find_shipped("models/embedded") / "target.safetensors", TargetModel)
    features, mask = encoder.encode(captions)
    weights = {name: value for name, value in target.state_dict().items() if "caption" not in name}
    codes, words = weights.pop("token_embedding.weight"), target.embed_prompts(features).flatten(0, 1)
    weights["embedding.weight"] = torch.cat([codes, words, torch.zeros_like(codes[:1])])
    save_file({name: value.detach().contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    config, vocab_size = target.config, len(weights["embedding.weight"])
    sizes = {"hidden_size": config.dim, "intermediate_size": config.dim, "num_hidden_layers": config.num_layers}
    sizes |= {"num_attention_heads": config.num_heads, "num_key_value_heads": config.num_heads, "head_dim": WIDTH}
    sizes |= {"vocab_size": vocab_size, "max_position_embeddings": MAX_LENGTH, "num_codes": len(codes)}
    # A known type, so that transformers reads the file. vLLM takes the class from `architectures`.
    kind = {"model_type": "llama", "architectures": ["LanternEmbedded"], "dtype": "float32"}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    (folder / "config.json").write_text(json.dumps({**kind, **sizes, **ends, "target": asdict(config)}))
    ids = torch.arange(len(codes), len(codes) + len(words)).view(mask.shape)
    return ids.masked_fill(~mask, vocab_size - 1).tolist()


class EmbeddedTarget(nn.Module):
    """The target with vLLM's attention and key/value cache. Names of weights are those of `TargetModel`."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        stored = vllm_config.model_config.hf_config
        config = TargetConfig(**stored.target)
        self.padding = stored.vocab_size - 1
        self.embedding = nn.Embedding(stored.vocab_size, config.dim)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.final_norm = RMSNorm(config.dim, config.norm_eps)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        with set_default_torch_dtype(torch.float32):  # angles are never rounded to the dtype of the weights
            table = rotary_table(config.num_text_tokens, config.lines, config.head_dim, config.rope_base, config.rope)
        self.register_buffer("rotary", table, persistent=False)
        heads, scale, cache = config.num_heads, config.head_dim**-0.5, {"cache_config": vllm_config.cache_config}
        self.attention = nn.ModuleList(
            Attention(heads, WIDTH, scale, num_kv_heads=heads, prefix=f"{prefix}attention.{i}", **cache)
            for i in range(config.num_layers)
        )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Embed codes and words."""
        return self.embedding(input_ids)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return hidden states, (tokens, dim), of tokens of several sequences one after the other."""
        x = self.embedding(input_ids)
        rotary = self.rotary[positions.clamp(max=len(self.rotary) - 1), None]
        for layer, attention in zip(self.layers, self.attention, strict=True):
            heads, head_dim = layer.num_heads, layer.head_dim
            query, key, value = layer.qkv(layer.attention_norm(x)).view(len(x), 3, heads, head_dim).unbind(1)
            turned = torch.view_as_complex(torch.stack([query, key]).float().unflatten(-1, (-1, 2))) * rotary
            query, key = torch.view_as_real(turned).flatten(-2).to(x.dtype)
            query, key, value = (F.pad(part, (0, WIDTH - head_dim)) for part in (query, key, value))
            # A channel in which each query has 1, and the keys of padding have a large negative number.
            query[..., head_dim], key[..., head_dim] = 1.0, (input_ids == self.padding)[:, None] * -1e6
            attended = attention(query.flatten(1), key.flatten(1), value.flatten(1)).view(-1, heads, WIDTH)
            x = x + layer.attention_out(attended[..., :head_dim].flatten(1))
            gate, up = layer.gate_up(layer.ffn_norm(x)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        return self.final_norm(x)

    def compute_logits(self, hidden: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return logits in which words and padding have -inf, (tokens, ids)."""
        logits = self.head(hidden)
        return F.pad(logits, (0, self.padding + 1 - logits.shape[1]), value=-torch.inf)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the weights that `export` has written, and return their names."""
        own, loaded = dict(self.named_parameters()) | dict(self.named_buffers()), set()
        for name, value in weights:
            own[name].data.copy_(value)
            loaded.add(name)
        return loaded
