"""A data set of four-token images that follow from their caption, and a target model of its size."""

from __future__ import annotations

import torch

from lantern.models.target import TargetConfig, TargetModel
from lantern_pipeline.data.code_dataset import CodeDataset
from lantern_pipeline.data.text_encoders import WordEmbeddingEncoder

CONFIG = TargetConfig(
    dim=32, num_layers=2, num_heads=2, vocab_size=8, grid=2, num_text_tokens=3, caption_dim=16, ffn_multiple=16
)


def make_dataset(num: int = 64) -> CodeDataset:
    """Caption "red": codes 0 1 2 3; caption "blue": codes 4 5 6 7."""
    is_red = torch.arange(num) % 2 == 0
    codes = torch.where(is_red[:, None], torch.arange(4), torch.arange(4, 8))
    captions = ["red" if red else "blue" for red in is_red.tolist()]
    return CodeDataset(codes, captions, WordEmbeddingEncoder(["red", "blue"], 16, 3, 0))


def make_target() -> TargetModel:
    """A random target whose distributions are far from uniform."""
    torch.manual_seed(1)
    model = TargetModel(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
    return model
