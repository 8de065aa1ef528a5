"""Training of the attribute classifier on scenes rendered on the fly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_pipeline.data.image_sources import SceneSource, batch_indices
from lantern_pipeline.training.loop import cosine_rate, set_learning_rate
from lantern_pipeline.world.attribute_classifier import (
    AttributeClassifier,
    AttributeClassifierConfig,
    attribute_targets,
)

_DATA_STREAM = 101  # keeps this stage's draws apart from the other stages'
_FAR = 1 << 30  # prompts are the first indices of "unseen"; training takes those from here on


@dataclass(frozen=True)
class AttributeClassifierTraining:
    """How the attribute classifier is trained.

    Attributes:
        num_steps: optimiser steps.
        batch_size: images a step.
        learning_rate: of AdamW, at its highest; one tenth warms up, then cosine decay to 0.
        weight_decay: of AdamW.
        blur_share: share of the images that are blurred and made noisy, so that reconstructions can be read too.
        shape_weight: weight of the two shape losses; shapes are learnt last.
    """

    num_steps: int = 420
    batch_size: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 0.02
    blur_share: float = 0.5
    shape_weight: float = 4.0


class AttributeClassifierTrainer:
    """Trains a attribute classifier step by step; the data of step i are a pure function of (seed, i).

    A quarter of each batch holds held-out combinations, far from the prompts' indices: the ruler must measure both
    prompt sets alike and not share the target's gaps.

    Args:
        source: of scenes.
        config: the attribute classifier's sizes.
        settings: see `AttributeClassifierTraining`.
        seed: of weights and data.
    """

    def __init__(
        self, source: SceneSource, config: AttributeClassifierConfig, settings: AttributeClassifierTraining, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.source = source
        self.settings = settings
        self.seed = seed
        self.model = AttributeClassifier(config).to(memory_format=torch.channels_last)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), settings.learning_rate, weight_decay=settings.weight_decay
        )

    def step(self, i: int) -> dict[str, float]:
        """Run step i; returns loss (nats, weighted sum over heads) and accuracy of the batch."""
        settings = self.settings
        images, targets = self._batch(i)
        warmup = max(1, settings.num_steps // 10)
        set_learning_rate(self.optimiser, cosine_rate(i, settings.num_steps, warmup=warmup))
        self.model.train()
        logits = self.model(images)
        losses = {name: F.cross_entropy(logits[name], targets[name], ignore_index=-1) for name in logits}
        loss = sum(value * (settings.shape_weight if "shape" in name else 1.0) for name, value in losses.items())
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        hits = sum((logits[name].argmax(-1) == targets[name]).sum() for name in logits)
        asked = sum((targets[name] >= 0).sum() for name in logits)
        return {"loss": loss.item(), "accuracy": float(hits / asked)}

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the optimiser's state."""
        return {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state of `state_dict`."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])

    def _batch(self, i: int) -> tuple[Tensor, dict[str, Tensor]]:
        batch_size = self.settings.batch_size
        num_unseen = batch_size // 4
        indices = batch_indices(self.seed + _DATA_STREAM, i, batch_size, self.source.num_train)
        parts = (("train", indices[num_unseen:]), ("unseen", [_FAR + index for index in indices[:num_unseen]]))
        images = torch.cat([self.source.images(split, numbers) for split, numbers in parts])
        targets = attribute_targets([scene for split, numbers in parts for scene in self.source.scenes(split, numbers)])
        generator = torch.Generator().manual_seed((self.seed + _DATA_STREAM) * 1_000_003 + i)
        return degrade(images, self.settings.blur_share, generator), targets


def degrade(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Blur a share of the images by random amounts and add noise, as a tokenizer would; (images, 3, size, size)."""
    chosen = (torch.rand(len(images), 1, 1, 1, generator=generator) < share).float()
    weight = chosen * torch.rand(len(images), 1, 1, 1, generator=generator)
    blurred = F.avg_pool2d(images, 3, 1, 1, count_include_pad=False)
    noise = 0.1 * torch.randn(images.shape, generator=generator)
    return images + weight * (blurred - images + noise)
