"""Prompt accuracy: are the attributes and relations that the prompt names found in the image by the attribute classifier?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lantern_pipeline.world.attribute_classifier import HEADS, AttributeClassifier, attribute_matches, attribute_targets


@dataclass(frozen=True)
class PromptAccuracy:
    """What the attribute classifier read back.

    Attributes:
        per_prompt: (images,) float32 in [0, 1], share of the prompt's attributes that were read correctly; nan without
            a scene.
        is_all_correct: (images,) float32, 1 where every attribute is right, 0 otherwise; nan without a scene.
        per_head: share right per attribute classifier head, over the images to which the head applies; nan where it applies to
            none.
    """

    per_prompt: torch.Tensor
    is_all_correct: torch.Tensor
    per_head: dict[str, float]


def score_attributes(logits: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]) -> PromptAccuracy:
    """Scores attribute classifier logits against the attributes that the prompts ask for.

    Every attribute of a prompt (background, layout, each object's size, colour and shape in canonical order, left or
    top object first) weighs the same within the prompt, and every prompt the same in a mean over `per_prompt`. Two
    objects drawn the wrong way round are wrong in every attribute in which they differ.

    Args:
        logits: per attribute classifier head (images, classes) float.
        targets: per head (images,) int64, the class asked for; -1 where the head does not apply to the prompt.

    Returns:
        A `PromptAccuracy`.
    """
    is_right, is_asked = attribute_matches(logits, targets)  # (images, heads)
    num_asked = is_asked.sum(dim=1)
    share = is_right.sum(dim=1) / num_asked  # 0 / 0 = nan: a prompt without any attribute has no accuracy
    all_right = torch.where(num_asked > 0, (is_right | ~is_asked).all(dim=1).float(), torch.nan)
    per_head = (is_right.sum(dim=0) / is_asked.sum(dim=0)).tolist()
    return PromptAccuracy(share, all_right, dict(zip(HEADS, per_head, strict=True)))


def score_prompts(
    attribute_classifier: AttributeClassifier, images: torch.Tensor, scenes: Sequence[dict | None]
) -> PromptAccuracy:
    """Reads images back and scores them against their prompts' scenes.

    Args:
        attribute classifier: in evaluation mode.
        images: (images, 3, size, size) float32 in [-1, 1].
        scenes: `Scene.to_dict()` of each image's prompt; None for a prompt of free text, which names no attribute that
            the attribute classifier knows: its values are nan.

    Returns:
        A `PromptAccuracy`.
    """
    known = [row for row, scene in enumerate(scenes) if scene is not None]
    per_prompt, is_all_correct = torch.full((2, len(scenes)), torch.nan)
    if not known:
        return PromptAccuracy(per_prompt, is_all_correct, {})
    logits = attribute_classifier.read_features(attribute_classifier.features(images[known]))
    scored = score_attributes(
        {head: values.cpu() for head, values in logits.items()}, attribute_targets([scenes[row] for row in known])
    )
    per_prompt[known], is_all_correct[known] = scored.per_prompt, scored.is_all_correct
    return PromptAccuracy(per_prompt, is_all_correct, scored.per_head)
