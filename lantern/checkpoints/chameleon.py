"""Chameleon's published tensors (Anole, Lumina-mGPT) by other names: those that `checkpoints.llama` and VQ-16 have.

Source: key lists of GAIR/Anole-7b-v0.1; facebookresearch/chameleon, chameleon/inference/vqgan.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch


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
