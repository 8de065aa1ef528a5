"""Prompt accuracy: does the attribute classifier find in an image what the prompt names?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lantern.checkpoints.native import load_model
from lantern.prompts import Prompt
from lantern_pipeline.fetch.manifest import resource_sha256
from lantern_pipeline.measure.feature_extractors import describe_weights
from lantern_pipeline.settings.run_config import MetricChoices
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, attribute_matches, attribute_targets
from lantern_pipeline.world.scenes import scene_of


class AccuracyScore:
    """The columns prompt_accuracy and is_all_correct, by the attribute classifier; `sha256` is of its weights."""

    def __init__(self, classifier: AttributeClassifier, sha256: str | None = None) -> None:
        self.classifier, self.sha256 = classifier, sha256

    def describe(self) -> dict[str, str | None]:
        """Says in columns of a row what measures."""
        return describe_weights("accuracy", "attribute_classifier", self.sha256)

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Scores images (n, 3, S, S) in [-1, 1] of their prompts: column -> (n,) float32, on the CPU; nan for a prompt
        of free text, which names no attribute that the classifier knows.
        """
        scenes = [scene_of(prompt.text) for prompt in prompts]
        named = {row: scene for row, scene in enumerate(scenes) if scene is not None}
        known = list(named)
        share, is_all_correct = torch.full((2, len(scenes)), torch.nan)
        if known:
            logits = self.classifier.read_features(self.classifier.features(images[known]))
            targets = attribute_targets(list(named.values()))
            on_cpu = {head: values.cpu() for head, values in logits.items()}
            share[known], is_all_correct[known] = score_attributes(on_cpu, targets)
        return {"prompt_accuracy": share, "is_all_correct": is_all_correct}


def load_accuracy(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> AccuracyScore:
    """Loads what metrics.prompt_accuracy measures with."""
    classifier = load_model(files["attribute_classifier"], AttributeClassifier).to(device)
    return AccuracyScore(classifier, resource_sha256(files["attribute_classifier"]))


def score_attributes(logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Scores logits (head -> (images, classes)) against the classes that the prompts ask for (head -> (images,) int64,
    -1 where the head does not apply): the share of the prompt's attributes that were read correctly, and whether all
    were (1 or 0), each (images,) float32; nan for a prompt without any.

    Every attribute of a prompt (background, layout, each object's size, colour and shape in canonical order, left or
    top object first) weighs the same within the prompt, and every prompt the same in a mean over prompts. Two objects
    drawn the wrong way round are wrong in every attribute in which they differ.
    """
    is_right, is_asked = attribute_matches(logits, targets)  # (images, heads)
    num_asked = is_asked.sum(dim=1)
    share = is_right.sum(dim=1) / num_asked  # 0 / 0 = nan
    return share, torch.where(num_asked > 0, (is_right | ~is_asked).all(dim=1).float(), torch.nan)
