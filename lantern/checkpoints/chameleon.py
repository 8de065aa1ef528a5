"""Chameleon's published tensors (Anole, Lumina-mGPT) by other names: those that `checkpoints.llama` and VQ-16 have.

Source: key lists of GAIR/Anole-7b-v0.1; facebookresearch/chameleon, chameleon/inference/vqgan.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

# Names of Meta's layout, and Hugging Face's in their place.
_RENAMED = {
    "tok_embeddings": "model.embed_tokens",
    "output": "lm_head",
    "norm": "model.norm",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attention.w{part}": f"self_attn.{part}_proj" for part in "qkvo"},
    **{f"attention.{part}_normalization": f"self_attn.{part}_norm" for part in "qk"},
    **{f"feed_forward.w{number}": f"mlp.{part}_proj" for number, part in ((1, "gate"), (2, "down"), (3, "up"))},
}


def is_meta(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Tells whether tensors by name are of Meta's layout."""
    return "layers.0.attention.q_normalization.weight" in tensors


def hugging_face_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of Meta's layout by Hugging Face's names; norms of heads have a row. Channels of queries and keys
    that are turned together stay where they lie, side by side.
    """
    found = {}
    for name, tensor in tensors.items():
        layer, stem, kind = re.fullmatch(r"(layers\.\d+\.)?(.*)\.(\w+)", name).groups(default="")
        is_norm = stem.endswith("_normalization")
        found[f"{layer and 'model.' + layer}{_RENAMED.get(stem, stem)}.{kind}"] = tensor[None] if is_norm else tensor
    return found


def image_tokenizer(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of Chameleon's image tokenizer by VQ-16's names, without its losses, which only training needs.

    Its decoder's levels are numbered from the highest resolution, VQ-16's from the lowest.
    """
    last = max((int(found[1]) for name in tensors if (found := re.match(r"encoder\.down\.(\d+)", name))), default=0)

    def rename(name: str) -> str:
        name = re.sub(r"^decoder\.up\.(\d+)", lambda found: f"decoder.conv_blocks.{last - int(found[1])}", name)
        name = re.sub(r"^encoder\.down\.", "encoder.conv_blocks.", name)
        name = re.sub(r"(conv_blocks\.\d+)\.block\.", r"\1.res.", name)
        for number, part in enumerate(("block_1", "attn_1", "block_2")):
            name = name.replace(f".mid.{part}.", f".mid.{number}.")
        return name

    return {rename(name): tensor for name, tensor in tensors.items() if not name.startswith("loss.")}
