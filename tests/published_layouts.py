"""The small models of tests/data/full_len, and LlamaGen weights under the LANTERN authors' names."""

from __future__ import annotations

import torch

from lantern.models.target import TargetConfig

CONFIG = TargetConfig(
    dim=48,
    num_layers=2,
    num_heads=4,
    vocab_size=128,
    grid=16,
    num_text_tokens=120,
    caption_dim=16,
    ffn_multiple=256,
    norm_eps=1e-5,
)


def as_hugging_face(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights under the LANTERN authors' names: rows of wqkv split in three, no permutation."""
    names = {
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "tok_embeddings": "embed_tokens",
    }
    renamed = {}
    for key, tensor in state.items():
        if key.endswith("attention.wqkv.weight"):
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                renamed["model." + key.replace("attention.wqkv", f"self_attn.{letter}_proj")] = part.contiguous()
            continue
        for old, new in names.items():
            key = key.replace(old + ".weight", new + ".weight")
        renamed["lm_head.weight" if key == "output.weight" else "model." + key] = tensor
    return renamed
