"""Training of the target model on tokenised images: next-token cross-entropy with caption dropout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.models.target import Target, TargetModel
from lantern_pipeline.data.code_dataset import CodeDataset, step_indices
from lantern_pipeline.training.loop import Trainer, cosine_rate, step_generator
from lantern_pipeline.training.optimisers import make_muon


@dataclass(frozen=True)
class TargetTraining:
    """Settings of the target's training: keys of config section `target`, and the warm-up."""

    num_steps: int
    batch_size: int
    caption_dropout: float  # share of captions that are replaced by the null caption
    matrix_learning_rate: float  # highest rate of Muon, for matrices
    learning_rate: float  # highest rate of AdamW, for vectors and embeddings
    warmup: int = 50  # optimiser steps


class TargetTrainer(Trainer[TargetModel]):
    """Trainer of a target model. The seed determines the order of the images and which captions are dropped."""

    def __init__(self, model: TargetModel, dataset: CodeDataset, training: TargetTraining, seed: int) -> None:
        self.model, self.dataset, self.training, self.seed = model.train(), dataset, training, seed
        self.optimiser = make_muon(model, training.matrix_learning_rate, training.learning_rate)

    @override
    def step(self, i: int) -> dict[str, float]:
        t = self.training
        codes, features, mask = self.dataset.batch(step_indices(len(self.dataset), t.batch_size, self.seed, i))
        device = self.model.device
        codes, features, mask = codes.to(device), features.to(device), mask.to(device)
        is_dropped = torch.rand(len(codes), generator=step_generator(self.seed, i)) < t.caption_dropout
        features, mask = drop_prompts(self.model, features, mask, is_dropped.to(device))  # drawn on the CPU
        loss = next_token_loss(self.model, codes, features, mask)
        norm = self.optimiser.step(loss, cosine_rate(i, t.num_steps, warmup=t.warmup, final_share=0.02))
        return {"cross_entropy": float(loss.detach()), "gradient_norm": norm}  # nats per token


def drop_prompts(
    model: Target, features: torch.Tensor, mask: torch.Tensor, is_dropped: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace the prompts of the images `is_dropped`, bool (images,), by the null prompt.

    So the target learns to predict without a prompt, as guidance needs it. Features and mask are those of
    `TargetModel.forward`.
    """
    null, null_mask = model.null_prompt(mask)
    # Features are (images, tokens, dim), or ids (images, tokens).
    is_dropped = is_dropped.view(-1, *[1] * (features.dim() - 1))
    return torch.where(is_dropped, null, features), torch.where(is_dropped.view(-1, 1), null_mask, mask)


def next_token_loss(
    model: TargetModel, codes: torch.Tensor, features: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return the mean cross-entropy of the next image token, in nats, by teacher forcing, as a scalar."""
    # The last position of the prompt predicts the first code. Nothing follows the last code.
    hidden = model(features, mask, codes[:, :-1])[:, model.config.num_text_tokens - 1 :]
    return F.cross_entropy(model.read_logits(hidden).flatten(0, 1), codes.flatten())


@torch.inference_mode()
def evaluate_target(model: TargetModel, dataset: CodeDataset, batch_size: int = 64) -> float:
    """Return the target's mean cross-entropy on images given their captions, in nats per token."""
    total = 0.0
    device = model.device
    for indices in torch.arange(len(dataset)).split(batch_size):
        codes, features, mask = (part.to(device) for part in dataset.batch(indices))
        # The last batch may be smaller.
        total += float(next_token_loss(model, codes, features, mask)) * len(indices)
    return total / len(dataset)
