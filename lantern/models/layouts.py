"""Checkpoint layouts of other projects, converted into ours: LlamaGen's, the LANTERN authors' and their drafters'.

Source: key lists of FoundationVision/LlamaGen@ce98ec4 and jadohu/LANTERN@3a56e45.
"""

from __future__ import annotations

import re

import torch

_TARGET_NAMES = {
    "cls_embedding.uncond_embedding": "null_caption",
    "cls_embedding.cap_proj.fc1.weight": "caption_in.weight",
    "cls_embedding.cap_proj.fc2.weight": "caption_out.weight",
    "tok_embeddings.weight": "token_embedding.weight",
    "embed_tokens.weight": "token_embedding.weight",
    "norm.weight": "final_norm.weight",
    "output.weight": "head.weight",
    "lm_head.weight": "head.weight",
}
_LAYER_NAMES = {
    "attention_norm.weight": "attention_norm.weight",
    "input_layernorm.weight": "attention_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "attention.wqkv.weight": "qkv.weight",
    "attention.wo.weight": "attention_out.weight",
    "self_attn.o_proj.weight": "attention_out.weight",
    "feed_forward.w2.weight": "down.weight",
    "mlp.down_proj.weight": "down.weight",
}
# Matrices that our layer keeps stacked in one, in this order.
_STACKED = {
    "qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "gate_up.weight": (
        ("feed_forward.w1.weight", "mlp.gate_proj.weight"),
        ("feed_forward.w3.weight", "mlp.up_proj.weight"),
    ),
}


def convert_target(state: dict[str, torch.Tensor], num_text_tokens: int) -> dict[str, torch.Tensor]:
    """Weights of a LlamaGen target, in its original or in the LANTERN authors' Hugging Face layout, under our names.

    Args:
        state: tensors by their published names.
        num_text_tokens: caption rows of the model; the published null caption has always 120 and is cut to these.

    Returns:
        Tensors under the names of `TargetModel`.

    Raises:
        ValueError: a key that neither layout has, or a stacked matrix that lacks a part; names the key.
    """
    converted: dict[str, torch.Tensor] = {}
    layers: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in state.items():
        name = key.removeprefix("model.")
        if match := re.fullmatch(r"layers\.(\d+)\.(.+)", name):
            layers.setdefault(int(match[1]), {})[match[2]] = tensor
        elif name in _TARGET_NAMES:
            converted[_TARGET_NAMES[name]] = tensor
        else:
            raise ValueError(f"foreign tensor {key}: neither LlamaGen's nor LANTERN's target layout has it")
    for index, parts in layers.items():
        converted |= {f"layers.{index}.{name}": tensor for name, tensor in _convert_layer(parts, index).items()}
    if "null_caption" in converted:
        converted["null_caption"] = converted["null_caption"][:num_text_tokens]
    return converted


def convert_draft(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of a drafter of the LANTERN authors under the names of `DraftModel`.

    Args:
        state: tensors by their published names; without `fc.bias` where the drafter has none (it becomes 0).

    Raises:
        ValueError: a foreign or missing key; names it.
    """
    parts = {}
    for key, tensor in state.items():
        if key.startswith("layers.0."):
            parts[key.removeprefix("layers.0.")] = tensor
        elif key not in ("embed_tokens.weight", "fc.weight", "fc.bias"):
            raise ValueError(f"foreign tensor {key}: the LANTERN drafter has no such key")
    for key in ("embed_tokens.weight", "fc.weight"):
        if key not in state:
            raise ValueError(f"missing tensor {key}: not a drafter of the LANTERN layout")
    from_token, from_hidden = state["fc.weight"].chunk(2, dim=1)  # the token's embedding comes first
    return {
        "token_embedding.weight": state["embed_tokens.weight"],
        "from_token.weight": from_token,
        "from_token.bias": state.get("fc.bias", torch.zeros_like(from_token[:, 0])),
        "from_hidden.weight": from_hidden,
        **{f"layer.{name}": tensor for name, tensor in _convert_layer(parts, 0).items()},
    }


def _convert_layer(parts: dict[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
    converted = {_LAYER_NAMES[name]: tensor for name, tensor in parts.items() if name in _LAYER_NAMES}
    left = {name: tensor for name, tensor in parts.items() if name not in _LAYER_NAMES}
    for stacked, names in _STACKED.items():
        if stacked in converted:
            continue
        pieces = []
        for alternatives in names:
            found = [
                left.pop(name)
                for name in ((alternatives,) if isinstance(alternatives, str) else alternatives)
                if name in left
            ]
            if not found:
                raise ValueError(f"layer {index} lacks the tensor {alternatives}; the checkpoint is incomplete")
            pieces.append(found[0])
        converted[stacked] = torch.cat(pieces)
    if left:
        raise ValueError(f"foreign tensor {sorted(left)[0]} in layer {index}: no known layout has it")
    return converted
