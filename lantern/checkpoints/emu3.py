"""Emu3's published image tokenizer by transformers' names.

Source: key list of BAAI/Emu3-VisionTokenizer.
"""

from __future__ import annotations

import re

import torch

from lantern.checkpoints.files import WeightFile
from lantern.checkpoints.native import load_weights
from lantern.models.emu3 import Emu3Tokenizer, Emu3TokenizerConfig

_RENAMED = {
    r"^encoder\.down\.": "encoder.down_block.down.",
    r"^decoder\.up\.": "decoder.up_block.up.",
    r"\.mid\.attn_1\.norm\.": ".middle_block.attn_norm.",
    r"\.mid\.": ".middle_block.",
    r"\.attn\.(\d+)\.norm\.": r".attn_norms.\1.",
    r"(\.attn[._]\d+)\.([qkv])\.": r"\1.\2_proj.",
    r"(\.attn[._]\d+)\.proj_out\.": r"\1.out_proj.",
}


def is_emu3_tokenizer(tensors: dict[str, torch.Tensor]) -> bool:
    """Tells whether tensors by name are Emu3's: of image tokenizers it alone has convolutions over time."""
    return "encoder.time_conv.0.conv.conv.weight" in tensors


def own_name(name: str) -> str:
    """The name that transformers gives a published tensor."""
    for pattern, renamed in _RENAMED.items():
        name = re.sub(pattern, renamed, name)
    return name


def read_emu3_tokenizer(weights: WeightFile, image_size: int) -> Emu3Tokenizer:
    """Reads the image tokenizer for images of so many pixels, whose widths and depths are read off its tensors; in
    evaluation mode, float32.

    Raises:
        ValueError: the file lacks tensors, or the image size is no multiple of the model's factor.
    """
    tensors = {own_name(name): tensor for name, tensor in weights.tensors.items()}
    tensors |= {name: tensor[..., 0, 0] for name, tensor in tensors.items() if name.endswith("_proj.weight")}
    blocks = [re.match(r"encoder\.down\.(\d+)\.block\.(\d+)\.conv1\.weight", name) for name in weights.tensors]
    blocks = [(int(block[1]), int(block[2])) for block in blocks if block]
    num_levels, num_blocks = (1 + max((block[axis] for block in blocks), default=0) for axis in (0, 1))
    try:
        channels, codebook = len(tensors["encoder.conv_in.weight"]), tensors["quantize.embedding.weight"]
        widths = [len(tensors[f"encoder.down_block.down.{level}.block.0.conv1.weight"]) for level in range(num_levels)]
    except KeyError as error:
        raise ValueError(f"{weights.path} lacks the tensor {error.args[0]}; fetch it again") from error
    if image_size % (factor := 2 ** (num_levels - 1)):
        raise ValueError(f"{weights.path}: data.image_size should be a multiple of {factor}")
    config = Emu3TokenizerConfig(
        grid=image_size // factor,
        codebook_size=len(codebook),
        code_dim=codebook.shape[1],
        channels=channels,
        channel_multipliers=tuple(width // channels for width in widths),
        num_blocks=num_blocks,
        attention_levels=tuple(
            level for level in range(num_levels) if f"encoder.down.{level}.attn.0.q.weight" in weights.tensors
        ),
    )
    own = {f"vqvae.{name}": tensor for name, tensor in tensors.items()}
    return load_weights(Emu3Tokenizer(config), own, weights.path)
