"""Attribute classifier: a small convolutional network that recognises the attributes that captions name.

An attribute is, for example, the colour of an object. The classifier is trained on a *world*: the shapes dataset or
Fashion-MNIST. It measures prompt accuracy, the share of a prompt's attributes that an image has. Its features are used
for the Fréchet and kernel distances, and its activations for the tokenizer's perceptual loss.

Images are (images, 3, size, size) in [-1, 1]. Logits are attribute -> (images, classes). Targets are attribute ->
correct class, int64 (images,), -1 if the caption does not name the attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from lantern.models.stored import StoredModel
from lantern_pipeline.world.worlds import WORLDS, World

_BATCH = 256  # number of images whose activations are in memory at once


@dataclass(frozen=True)
class AttributeClassifierConfig:
    """Sizes and world of the attribute classifier."""

    image_size: int = 48
    width: int = 32  # channels of the first stage. The second has twice as many, the last two four times as many
    num_features: int = 128  # length of the feature vector
    world: str = "scenes"  # key of WORLDS


class AttributeClassifier(StoredModel):
    """Four convolutional stages, a feature vector, and one linear head per attribute, which reads it.

    The outputs of the first three stages have 1/2,
    1/4 and 1/8 of the image's side. If an image lacks an attribute, the output of that head has no meaning.
    """

    kind = "attribute_classifier"
    config_class = AttributeClassifierConfig
    config: AttributeClassifierConfig

    def __init__(self, config: AttributeClassifierConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.stages = nn.ModuleList(
            [
                nn.Sequential(_convolution(3, width, 2), _convolution(width, width, 1)),
                nn.Sequential(_convolution(width, 2 * width, 2), _convolution(2 * width, 2 * width, 1)),
                nn.Sequential(_convolution(2 * width, 4 * width, 2), _convolution(4 * width, 4 * width, 1)),
                # 3 x 3 outputs for images of any size. They keep where an object is, as relations need it.
                nn.Sequential(_convolution(4 * width, 4 * width, 2), nn.AdaptiveAvgPool2d(3)),
            ]
        )
        # 36 width: 4 width channels at 3 x 3 places.
        self.project = nn.Sequential(
            nn.Flatten(), nn.Linear(36 * width, config.num_features, bias=False), nn.BatchNorm1d(config.num_features)
        )
        heads = WORLDS[config.world].heads
        self.heads = nn.ModuleDict({name: nn.Linear(config.num_features, len(heads[name])) for name in heads})

    @override
    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.read_features(self._project(images))

    def read_features(self, features: Tensor) -> dict[str, Tensor]:
        """Return the logits of feature vectors (images, num_features)."""
        hidden = F.relu(features)
        return {name: head(hidden) for name, head in self.heads.items()}

    def activations(self, images: Tensor, num_stages: int) -> list[Tensor]:
        """Return the outputs of the first stages of the network, (images, channels, height, width) each."""
        outputs = [images]
        for stage in self.stages[:num_stages]:
            outputs.append(stage(outputs[-1]))
        return outputs[1:]

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return the feature vectors of images, (images, num_features). The network must be in evaluation mode."""
        return torch.cat([self._project(chunk) for chunk in images.split(_BATCH)])

    def _project(self, images: Tensor) -> Tensor:
        # The layout in which convolutions of few channels are fastest on a CPU.
        hidden = images.contiguous(memory_format=torch.channels_last)
        for stage in self.stages:
            hidden = stage(hidden)
        return self.project(hidden)


def _convolution(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU())


def attribute_targets(world: World, captions: Sequence[str]) -> dict[str, Tensor]:
    """Return the targets of captions, indices into world.heads[attribute]."""
    named = [world.attributes_of(text) or {} for text in captions]
    return {
        head: torch.tensor([values.index(found[head]) if head in found else -1 for found in named], dtype=torch.int64)
        for head, values in world.heads.items()
    }


def attribute_matches(logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Compare logits with targets. Return (is_right, is_asked), bool (images, attributes), in the order of the targets.

    An attribute is asked if the caption names it, and right if it is asked and the most probable class is correct.
    """
    expected = torch.stack(list(targets.values()), dim=1)
    answers = torch.stack([logits[name].argmax(-1) for name in targets], dim=1)
    # No class is -1, so attributes that are not asked are not right.
    return answers == expected, expected >= 0


@torch.no_grad()
def evaluate_attribute_classifier(
    attribute_classifier: AttributeClassifier, images: Tensor, captions: Sequence[str]
) -> dict[str, float]:
    """Measure how often the attribute classifier recognises the attributes that the captions of images name.

    Returns:
        Name -> share in [0, 1]. "accuracy_<attribute>" is the share of images whose attribute is recognised.
        "accuracy" is the share among all attributes of all images. "accuracy_all" is the share of images with every
        attribute correct.
    """
    logits = attribute_classifier.read_features(attribute_classifier.features(images))
    targets = attribute_targets(WORLDS[attribute_classifier.config.world], captions)
    is_match, is_applicable = attribute_matches(logits, targets)
    # Per attribute, among the captions that name it; 0 if none does.
    per_head = is_match.sum(0) / is_applicable.sum(0).clamp(min=1)
    result = {f"accuracy_{name}": float(value) for name, value in zip(targets, per_head, strict=True)}
    result["accuracy"] = float(is_match.sum() / is_applicable.sum())
    result["accuracy_all"] = float((is_match | ~is_applicable).all(1).float().mean())
    return result
