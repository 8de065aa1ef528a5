"""Checkpoint layouts of other projects, converted into ours: LlamaGen's, the LANTERN authors' and their drafters'.

What a layout must hold is listed by `target_shapes` and `draft_shapes`; `check_tensors` compares, under the published
names, before anything is converted. A VQ-16 keeps its names; `vq16_config` reads its sizes.

Source: key lists of FoundationVision/LlamaGen@ce98ec4 and jadohu/LANTERN@3a56e45.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lantern.models.vq16 import VQ16Config

if TYPE_CHECKING:
    from lantern.models.config import DraftConfig, TargetConfig

TARGET_LAYOUTS = ("llamagen", "hugging_face")
NULL_CAPTION_ROWS = 120  # rows of LlamaGen's null caption, whatever the model's number of caption rows

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


def target_layout(names: Mapping[str, Any]) -> str:
    """Which of TARGET_LAYOUTS a target's tensor names follow."""
    is_hugging_face = "lm_head.weight" in names or any(name.startswith("model.") for name in names)
    return "hugging_face" if is_hugging_face else "llamagen"


def target_shapes(config: TargetConfig, layout: str, null_rows: int = NULL_CAPTION_ROWS) -> dict[str, tuple[int, ...]]:
    """Every tensor of a published target of these sizes.

    Args:
        config: sizes.
        layout: one of TARGET_LAYOUTS.
        null_rows: rows of the null caption.

    Returns:
        Shape by published name.
    """
    dim, hidden, vocab = config.dim, config.ffn_hidden, config.vocab_size
    is_original = layout == "llamagen"
    prefix, table, head = ("", "tok_embeddings", "output") if is_original else ("model.", "embed_tokens", "lm_head")
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}{table}.weight": (vocab, dim),
        f"{prefix}cls_embedding.uncond_embedding": (null_rows, config.caption_dim),
        f"{prefix}cls_embedding.cap_proj.fc1.weight": (dim, config.caption_dim),
        f"{prefix}cls_embedding.cap_proj.fc2.weight": (dim, dim),
    }
    layer = _original_layer(dim, hidden) if is_original else {"input_layernorm": (dim,), **_llama_layer(dim, hidden)}
    for index in range(config.num_layers):
        shapes |= {f"{prefix}layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {f"{prefix}norm.weight": (dim,), f"{head}.weight": (vocab, dim)}


def draft_shapes(config: DraftConfig, *, has_bias: bool) -> dict[str, tuple[int, ...]]:
    """Every tensor of a drafter of the LANTERN authors of these sizes: shape by published name."""
    dim = config.dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (config.vocab_size, dim),
        "fc.weight": (dim, 2 * dim),
    }
    shapes |= {"fc.bias": (dim,)} if has_bias else {}
    layer = _llama_layer(dim, config.ffn_hidden)
    return shapes | {f"layers.0.{name}.weight": shape for name, shape in layer.items()}


def _original_layer(dim: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        "attention.wqkv": (3 * dim, dim),
        "attention.wo": (dim, dim),
        "feed_forward.w1": (hidden, dim),
        "feed_forward.w3": (hidden, dim),
        "feed_forward.w2": (dim, hidden),
        "attention_norm": (dim,),
        "ffn_norm": (dim,),
    }


def _llama_layer(dim: int, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        **{f"self_attn.{letter}_proj": (dim, dim) for letter in "qkvo"},
        "mlp.gate_proj": (hidden, dim),
        "mlp.up_proj": (hidden, dim),
        "mlp.down_proj": (dim, hidden),
        "post_attention_layernorm": (dim,),
    }


def vq16_config(
    path: Path, state: Mapping[str, torch.Tensor], *, image_size: int, codebook: tuple[int, int]
) -> VQ16Config:
    """Reads widths and depths of a VQ-16 off its tensors.

    Args:
        path: the file, for the sentence.
        state: tensors by published name.
        image_size: side of the images in pixels; the weights are the same for all.
        codebook: number of codes and length of a code that the config gives.

    Raises:
        ValueError: a tensor that tells a size is missing, the codebook has another shape, or the image size is no
            multiple of the model's factor.
    """

    def tensor(name: str) -> torch.Tensor:
        if name not in state:
            raise ValueError(f"{path} lacks the tensor {name}; found {len(state)} tensors of no VQ-16")
        return state[name]

    if (found := tuple(tensor("quantize.embedding.weight").shape)) != codebook:
        raise ValueError(
            f"{path}: tensor quantize.embedding.weight should have shape {codebook} as config keys "
            f"tokenizer.codebook_size and tokenizer.code_dim say, found {found}"
        )
    places = [re.match(r"encoder\.conv_blocks\.(\d+)\.res\.(\d+)\.conv1\.weight", name) for name in state]
    blocks = [(int(place[1]), int(place[2])) for place in places if place]
    num_levels, num_blocks = (1 + max((block[axis] for block in blocks), default=0) for axis in (0, 1))
    channels = len(tensor("encoder.conv_in.weight"))
    widths = [len(tensor(f"encoder.conv_blocks.{level}.res.0.conv1.weight")) for level in range(num_levels)]
    factor = 2 ** (num_levels - 1)
    if image_size % factor:
        raise ValueError(f"{path}: config key data.image_size should be a multiple of {factor}, got {image_size}")
    return VQ16Config(
        grid=image_size // factor,
        codebook_size=codebook[0],
        code_dim=codebook[1],
        channels=channels,
        channel_multipliers=tuple(width // channels for width in widths),
        num_blocks=num_blocks,
        latent_channels=len(tensor("encoder.conv_out.weight")),
    )


def check_tensors(path: Path, state: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Compares a published file's tensors with what its layout must hold.

    Args:
        path: the file, for the sentence.
        state: tensors by published name.
        expected: shapes by published name.

    Raises:
        ValueError: a tensor of another shape, a missing or a foreign one, or one that holds no floating-point numbers;
            one sentence with file, name, what was expected and found.
    """
    for name, shape in expected.items():
        found = tuple(state[name].shape) if name in state else shape
        if found != shape:
            raise ValueError(f"{path}: tensor {name} should have shape {shape}, found {found}; {_OTHER_MODEL}")
        if name in state and not state[name].is_floating_point():
            raise ValueError(
                f"{path}: tensor {name} should hold floating-point numbers, found {state[name].dtype}; "
                "quantised weights cannot be read"
            )
    missing = [name for name in expected if name not in state]
    foreign = [name for name in state if name not in expected]
    if not missing and not foreign:
        return
    parts = [f"lacks the tensor {missing[0]} of shape {expected[missing[0]]} ({len(missing)} such)"] if missing else []
    parts += [f"holds the foreign tensor {foreign[0]} ({len(foreign)} such)"] if foreign else []
    counts = f"expected {len(expected)} tensors, found {len(state)}"
    raise ValueError(f"{path} {' and '.join(parts)}; {counts}; {_OTHER_MODEL}")


_OTHER_MODEL = "it belongs to another model or to other sizes than the config's"
