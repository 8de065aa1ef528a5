"""The tensors of a transformer layer in published layouts: which of ours, and which part of it, each one fills."""

from __future__ import annotations

from collections.abc import Mapping

import torch

# The matrices of a layer: our name, and the published ones that ours holds below each other.
ORIGINAL_LAYER = {
    "qkv": ("attention.wqkv",),
    "attention_out": ("attention.wo",),
    "gate_up": ("feed_forward.w1", "feed_forward.w3"),
    "down": ("feed_forward.w2",),
    "attention_norm": ("attention_norm",),
    "ffn_norm": ("ffn_norm",),
}
LLAMA_LAYER = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "qk_norm": ("self_attn.q_norm", "self_attn.k_norm"),
    "attention_out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "attention_norm": ("input_layernorm",),
    "ffn_norm": ("post_attention_layernorm",),
}


def layer_places(layer: torch.nn.Module, prefix: str, names: Mapping[str, tuple[str, ...]]) -> dict[str, torch.Tensor]:
    """Where each tensor of a published layer goes, by published name; `names` as in LLAMA_LAYER."""
    places: dict[str, torch.Tensor] = {}
    for name, weight in layer.state_dict().items():
        stem, _, kind = name.rpartition(".")
        parts = names[stem]
        sizes = [len(weight) // len(parts)] * len(parts)
        if stem == "qkv" and len(parts) == 3:  # keys and values may have fewer heads than queries
            kv_rows = layer.num_kv_heads * layer.head_dim
            sizes = [len(weight) - 2 * kv_rows, kv_rows, kv_rows]
        places |= zip((f"{prefix}.{part}.{kind}" for part in parts), weight.split(sizes), strict=True)
    return places
