"""Prompt accuracy: the share of a prompt's attributes that the attribute classifier finds in the image.

In the shapes dataset, the attributes are the background, the layout, and the size, colour and shape of each object. In
Fashion-MNIST, they are the tone, the pattern and the class. All attributes of a prompt have the same weight. In a mean
over prompts, all prompts have the same weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lantern.models.stored import load_model
from lantern.prompts import Prompt
from lantern_pipeline.fetch.manifest import resource_sha256
from lantern_pipeline.measure.quality.feature_extractors import describe_weights
from lantern_pipeline.schema.run_config import MetricChoices
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, attribute_matches, attribute_targets
from lantern_pipeline.world.worlds import WORLDS


class AccuracyScore:
    """Metric with two columns: prompt_accuracy is the share, is_all_correct is 1 if all are correct, else 0."""

    def __init__(self, classifier: AttributeClassifier, sha256: str | None = None) -> None:
        self.classifier, self.sha256 = classifier, sha256

    def describe(self) -> dict[str, str | None]:
        """Return name and hash of the classifier, as columns of the result table."""
        return describe_weights("accuracy", "attribute_classifier", self.sha256)

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Return both columns, float32 (n,) on the CPU, nan for prompts that name no known attribute."""
        world = WORLDS[self.classifier.config.world]
        # Only captions of the dataset on which the classifier was trained name attributes that it knows.
        known = [row for row, prompt in enumerate(prompts) if world.attributes_of(prompt.text) is not None]
        share, is_all_correct = torch.full((2, len(prompts)), torch.nan)
        if known:
            logits = self.classifier.read_features(self.classifier.features(images[known]))
            targets = attribute_targets(world, [prompts[row].text for row in known])
            on_cpu = {head: values.cpu() for head, values in logits.items()}
            share[known], is_all_correct[known] = score_attributes(on_cpu, targets)
        return {"prompt_accuracy": share, "is_all_correct": is_all_correct}


def load_accuracy(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> AccuracyScore:
    """Load the attribute classifier, for config key `metrics.prompt_accuracy`."""
    classifier = load_model(files["attribute_classifier"], AttributeClassifier).to(device)
    return AccuracyScore(classifier, resource_sha256(files["attribute_classifier"]))


def score_attributes(logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return both columns for logits (images, classes) and correct classes (images,), -1 if not stated."""
    # Object 0 is the left or upper one, so if two objects are swapped, every attribute in which they differ is wrong.
    is_right, is_asked = attribute_matches(logits, targets)  # (images, heads)
    num_asked = is_asked.sum(dim=1)
    share = is_right.sum(dim=1) / num_asked  # 0 / 0 = nan
    return share, torch.where(num_asked > 0, (is_right | ~is_asked).all(dim=1).float(), torch.nan)
