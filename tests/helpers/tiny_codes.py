"""A tiny dataset of images with four tokens each, and a target model of its size.

Also training settings of a draft model.
"""

from __future__ import annotations

import torch

from lantern.models.target import TargetConfig, TargetModel
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.data.code_dataset import CodeDataset
from lantern_pipeline.training.drafter_recipe import DrafterTraining

CONFIG = TargetConfig(
    dim=32, num_layers=2, num_heads=2, vocab_size=8, grid=2, num_text_tokens=3, caption_dim=16, ffn_multiple=16
)


RECIPE = {
    "num_steps": 1000,
    "num_epochs": None,
    "batch_size": 16,
    "accumulation": 1,
    "loss": "guided",
    "passes": 3,
    "hidden_weight": 0.1,
    "noise": 0.0,
    "caption_dropout": 0.0,
    "optimiser": "muon",
    "matrix_learning_rate": 0.01,
    "learning_rate": 2e-3,
    "weight_decay": 0.0,
    "schedule": "cosine",
    "warmup": 50,
    "warmup_share": None,
    "max_norm": 1.0,
    "precision": "float32",
    "num_eval": 64,
    "eval_every": None,
}


def make_recipe(cfg_scale: float = 3.0, **changes) -> DrafterTraining:
    """Return `RECIPE` with some keys changed. `cfg_scale` is the guidance scale of training."""
    return DrafterTraining(**RECIPE | changes, cfg_scale=cfg_scale)


def make_dataset(num: int = 64) -> CodeDataset:
    """Return `num` captioned images. The caption "red" has the codes 0 1 2 3, the caption "blue" the codes 4 5 6 7."""
    is_red = torch.arange(num) % 2 == 0
    codes = torch.where(is_red[:, None], torch.arange(4), torch.arange(4, 8))
    captions = ["red" if red else "blue" for red in is_red.tolist()]
    return CodeDataset(codes, captions, WordEmbeddingEncoder(["red", "blue"], 16, 3, 0))


def make_target() -> TargetModel:
    """Return a random target whose distributions are far from uniform."""
    torch.manual_seed(1)
    model = TargetModel(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4.0)
    return model
