"""Tiny weights of further model families, made anew by the recipe of the numbers in tests/data that they gave."""

from __future__ import annotations

import zlib

import numpy as np
import torch


def draw(name: str, shape: tuple[int, ...], seed: int, gain: float = 0.8) -> torch.Tensor:
    """The weight of a published name: norms are near 1, embeddings unit normal, a head's rows 3 long, others `gain`."""
    key = (zlib.crc32(name.encode()) ^ (seed * 2654435761)) & 0xFFFFFFFF
    normal = torch.from_numpy(np.random.RandomState(key).standard_normal(shape))
    if len(shape) == 1:
        return (1 + 0.1 * normal).float()
    if "embed" in name:
        return normal.float()
    scale = 3 if name in ("output.weight", "lm_head.weight") else gain
    return (scale * normal / shape[1] ** 0.5).float()


def draw_c2i(ffn_hidden: int = 192) -> dict[str, torch.Tensor]:
    """LlamaGen for ten classes and 64 codes, of width 64 and depth 3, by the names of its original layout."""
    layer = {
        "attention.wqkv": (192, 64),
        "attention.wo": (64, 64),
        "feed_forward.w1": (ffn_hidden, 64),
        "feed_forward.w3": (ffn_hidden, 64),
        "feed_forward.w2": (64, ffn_hidden),
        "attention_norm": (64,),
        "ffn_norm": (64,),
    }
    shapes = {"cls_embedding.embedding_table": (11, 64), "tok_embeddings": (64, 64), "norm": (64,), "output": (64, 64)}
    shapes |= {f"layers.{number}.{name}": shape for number in range(3) for name, shape in layer.items()}
    return {f"{name}.weight": draw(f"{name}.weight", shape, seed=1234) for name, shape in shapes.items()}
