"""Training of the attribute classifier, which recognises in an image the attributes that captions name."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from lantern_pipeline.data.image_sources import WorldSource, batch_indices
from lantern_pipeline.training.loop import Trainer, cosine_rate, step_generator
from lantern_pipeline.training.optimisers import Optimiser
from lantern_pipeline.world.attribute_classifier import (
    AttributeClassifier,
    AttributeClassifierConfig,
    attribute_targets,
)
from lantern_pipeline.world.worlds import WORLDS

NUM_EVAL = 1000  # number of held-out images for the reported accuracy
_DATA_STREAM = 101  # makes this stage's random numbers different from those of other stages


@dataclass(frozen=True)
class AttributeClassifierTraining:
    """Settings of the training. Only `num_steps` is a key of config section `attribute_classifier`."""

    num_steps: int
    batch_size: int = 64
    learning_rate: float = 0.003
    weight_decay: float = 0.02
    blur_share: float = 0.5  # share of images that `degrade` changes
    shape_weight: float = 4.0  # of the losses on shapes, which are learnt more slowly. Others have weight 1


class AttributeClassifierTrainer(Trainer[AttributeClassifier]):
    """Trainer whose seed determines the initial weights and the images.

    A quarter of each batch is from the split "train_unseen", whose combinations of attributes the target never sees in
    training. The classifier needs these images, because prompts may ask for such combinations. It is not trained on
    images of the prompts themselves.
    """

    def __init__(
        self, source: WorldSource, config: AttributeClassifierConfig, settings: AttributeClassifierTraining, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.source, self.settings, self.seed = source, settings, seed
        self.world = WORLDS[config.world]
        self.model = AttributeClassifier(config).to(memory_format=torch.channels_last)
        parameters = self.model.parameters()
        self.optimiser = Optimiser(
            [torch.optim.AdamW(parameters, settings.learning_rate, weight_decay=settings.weight_decay)]
        )

    @override
    def step(self, i: int) -> dict[str, float]:
        settings = self.settings
        images, targets = self._batch(i)
        self.model.train()
        logits = self.model(images)
        # The target is -1 if a caption does not name an attribute, such as the colour of a second object.
        losses = {name: F.cross_entropy(logits[name], targets[name], ignore_index=-1) for name in logits}
        # The heads are named "shape_0" and so on.
        terms = [value * (settings.shape_weight if "shape" in name else 1.0) for name, value in losses.items()]
        loss = sum(terms, torch.zeros(()))
        self.optimiser.step(loss, cosine_rate(i, settings.num_steps, warmup=max(1, settings.num_steps // 10)))
        # No class is -1, so attributes that are not asked are no hits.
        hits = sum((logits[name].argmax(-1) == targets[name]).sum() for name in logits)
        asked = sum((targets[name] >= 0).sum() for name in logits)
        return {"loss": loss.item(), "accuracy": float(hits / asked)}

    def _batch(self, i: int) -> tuple[Tensor, dict[str, Tensor]]:
        batch_size = self.settings.batch_size
        num_unseen = batch_size // 4
        indices = batch_indices(self.seed + _DATA_STREAM, i, batch_size, self.source.num_train)
        # Indices were sampled below `num_train`, and this split may be smaller.
        unseen = [index % self.source.num_train_unseen for index in indices[:num_unseen]]
        parts = (("train", indices[num_unseen:]), ("train_unseen", unseen))
        images = torch.cat([self.source.images(split, numbers) for split, numbers in parts])
        captions = [text for split, numbers in parts for text in self.source.captions(split, numbers)]
        targets = attribute_targets(self.world, captions)
        return degrade(images, self.settings.blur_share, step_generator(self.seed + _DATA_STREAM, i)), targets


def degrade(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Blur a share of the images and add noise to them: the classifier must also work on a tokenizer's images."""
    chosen = (torch.rand(len(images), 1, 1, 1, generator=generator) < share).float()
    weight = chosen * torch.rand(len(images), 1, 1, 1, generator=generator)
    # The mean of at most 3 x 3 pixels; zeros of padding would make the border grey.
    blurred = F.avg_pool2d(images, 3, 1, 1, count_include_pad=False)
    noise = 0.1 * torch.randn(images.shape, generator=generator)
    # (1 - w) image + w (blurred + noise), for a random w per image, 0 for those that are not chosen.
    return images + weight * (blurred - images + noise)
