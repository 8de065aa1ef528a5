"""Training of the target model on tokenised images: next-token cross-entropy with caption dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from lantern.models.target import TargetModel
from lantern_pipeline.data.code_dataset import CodeDataset, step_indices
from lantern_pipeline.training.loop import cosine_rate
from lantern_pipeline.training.optimisers import MuonAdamW


@dataclass(frozen=True)
class TargetTraining:
    """How the target model is trained.

    Args:
        num_steps: optimiser steps.
        batch_size: images per step.
        caption_dropout: share of captions replaced by the learned null caption, for guidance.
        matrix_learning_rate: Muon's, at its highest.
        learning_rate: AdamW's, at its highest.
        warmup: steps of linear warm-up.
    """

    num_steps: int = 1000
    batch_size: int = 32
    caption_dropout: float = 0.1
    matrix_learning_rate: float = 0.02
    learning_rate: float = 2e-3
    warmup: int = 50


class TargetTrainer:
    """Trains a target model; drive it with `run_training`.

    Args:
        model: the model, changed in place.
        dataset: codes and captions.
        training: recipe.
        seed: of order and caption dropout.
    """

    def __init__(self, model: TargetModel, dataset: CodeDataset, training: TargetTraining, seed: int) -> None:
        self.model, self.dataset, self.training, self.seed = model.train(), dataset, training, seed
        self.optimiser = MuonAdamW(model, training.matrix_learning_rate, training.learning_rate)

    def step(self, i: int) -> dict[str, float]:
        """One optimiser step on the images of step i."""
        t = self.training
        codes, features, mask = self.dataset.batch(step_indices(len(self.dataset), t.batch_size, self.seed, i))
        device = self.model.head.weight.device
        codes, features, mask = codes.to(device), features.to(device), mask.to(device)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + i)
        is_dropped = (torch.rand(len(codes), generator=generator) < t.caption_dropout).to(device)
        features = torch.where(is_dropped[:, None, None], self.model.null_features(len(codes)), features)
        loss = next_token_loss(self.model, codes, features, mask)
        norm = self.optimiser.step(loss, cosine_rate(i, t.num_steps, warmup=t.warmup, final_share=0.02))
        return {"cross_entropy": float(loss.detach()), "gradient_norm": norm}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])


def next_token_loss(
    model: TargetModel, codes: torch.Tensor, features: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean cross-entropy of the next image token, nats, teacher-forced; shapes as in `TargetModel.forward`."""
    hidden = model(features, mask, codes[:, :-1])[:, model.config.num_text_tokens - 1 :]
    return F.cross_entropy(model.head(hidden).flatten(0, 1), codes.flatten())


@torch.inference_mode()
def evaluate_target(model: TargetModel, dataset: CodeDataset, batch_size: int = 64) -> float:
    """Cross-entropy on held-out images with their captions, nats per token."""
    total = 0.0
    device = model.head.weight.device
    for indices in torch.arange(len(dataset)).split(batch_size):
        codes, features, mask = (part.to(device) for part in dataset.batch(indices))
        total += float(next_token_loss(model, codes, features, mask)) * len(indices)
    return total / len(dataset)
