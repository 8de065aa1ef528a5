"""Prompt accuracy: does the attribute classifier find in an image what the prompt names?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lantern.prompts import Prompt
from lantern_pipeline.metrics.feature_extractors import describe_weights
from lantern_pipeline.world.attribute_classifier import HEADS, AttributeClassifier, attribute_matches, attribute_targets
from lantern_pipeline.world.scenes import scene_of


@dataclass(frozen=True)
class PromptAccuracy:
    """What the attribute classifier read back.

    Attributes:
        per_prompt: (images,) float32 in [0, 1], share of the prompt's attributes that were read correctly; nan without
            a scene.
        is_all_correct: (images,) float32, 1 where every attribute is right, 0 otherwise; nan without a scene.
        per_head: share right per head of the classifier, over the images to which it applies; nan where to none.
    """

    per_prompt: Tensor
    is_all_correct: Tensor
    per_head: dict[str, float]


class AccuracyScore:
    """The columns prompt_accuracy and is_all_correct, by the attribute classifier; `sha256` is of its weights."""

    def __init__(self, classifier: AttributeClassifier, sha256: str | None = None) -> None:
        self.classifier, self.sha256 = classifier, sha256

    def describe(self) -> dict[str, str | None]:
        """Says in columns of a row what measures."""
        return describe_weights("accuracy", "attribute_classifier", self.sha256)

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Scores images (n, 3, S, S) in [-1, 1] of their prompts: column -> (n,) float32, on the CPU."""
        found = score_prompts(self.classifier, images, [scene_of(prompt.text) for prompt in prompts])
        return {"prompt_accuracy": found.per_prompt, "is_all_correct": found.is_all_correct}


def score_attributes(logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> PromptAccuracy:
    """Scores logits (head -> (images, classes)) against the classes that the prompts ask for (head -> (images,) int64,
    -1 where the head does not apply).

    Every attribute of a prompt (background, layout, each object's size, colour and shape in canonical order, left or
    top object first) weighs the same within the prompt, and every prompt the same in a mean over `per_prompt`. Two
    objects drawn the wrong way round are wrong in every attribute in which they differ.
    """
    is_right, is_asked = attribute_matches(logits, targets)  # (images, heads)
    num_asked = is_asked.sum(dim=1)
    share = is_right.sum(dim=1) / num_asked  # 0 / 0 = nan: a prompt without any attribute has no accuracy
    all_right = torch.where(num_asked > 0, (is_right | ~is_asked).all(dim=1).float(), torch.nan)
    per_head = (is_right.sum(dim=0) / is_asked.sum(dim=0)).tolist()
    return PromptAccuracy(share, all_right, dict(zip(HEADS, per_head, strict=True)))


def score_prompts(classifier: AttributeClassifier, images: Tensor, scenes: Sequence[dict | None]) -> PromptAccuracy:
    """Reads images (images, 3, S, S) in [-1, 1] back and scores them against their prompts' scenes (`Scene.to_dict()`);
    None, a prompt of free text, names no attribute that the classifier knows: its values are nan.
    """
    known = [row for row, scene in enumerate(scenes) if scene is not None]
    per_prompt, is_all_correct = torch.full((2, len(scenes)), torch.nan)
    if not known:
        return PromptAccuracy(per_prompt, is_all_correct, {})
    logits = classifier.read_features(classifier.features(images[known]))
    scored = score_attributes(
        {head: values.cpu() for head, values in logits.items()}, attribute_targets([scenes[row] for row in known])
    )
    per_prompt[known], is_all_correct[known] = scored.per_prompt, scored.is_all_correct
    return PromptAccuracy(per_prompt, is_all_correct, scored.per_head)
