"""Prompt accuracy: are the attributes and relations that the prompt names found in the image by the recogniser?"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PromptAccuracy:
    """What the recogniser read back.

    Attributes:
        per_prompt: (images,) float32 in [0, 1], share of the prompt's attributes that were read correctly; nan without a scene.
        is_all_correct: (images,) float32, 1 where every attribute is right, 0 otherwise; nan without a scene.
        per_head: share right per recogniser head, over the images to which the head applies; nan where it applies to none.
    """

    per_prompt: torch.Tensor
    is_all_correct: torch.Tensor
    per_head: dict[str, float]


def score_attributes(logits: dict[str, torch.Tensor], targets: dict[str, torch.Tensor]) -> PromptAccuracy:
    """Scores recogniser logits against the attributes that the prompts ask for.

    Every applicable attribute of a prompt (background, each object's size, colour and shape, the number of objects and the relation)
    weighs the same within the prompt, and every prompt the same in a mean over `per_prompt`.

    Args:
        logits: per head (images, classes) float.
        targets: per head (images,) int64, the class asked for; -1 where the head does not apply to the prompt.

    Returns:
        A `PromptAccuracy`.

    Raises:
        ValueError: logits and targets have different heads.
    """
    if set(logits) != set(targets) or not targets:
        raise ValueError(f"recogniser heads {sorted(logits)} and target heads {sorted(targets)} must be the same")
    heads = sorted(targets)
    asked = torch.stack([targets[head] >= 0 for head in heads], dim=1)  # (images, heads)
    right = torch.stack([logits[head].argmax(dim=-1) == targets[head] for head in heads], dim=1) & asked
    counted = asked.sum(dim=1)
    share = right.sum(dim=1).float() / counted  # 0 / 0 = nan: a prompt without any attribute has no accuracy
    all_correct = torch.where(counted > 0, (right == asked).all(dim=1).float(), torch.nan)
    per_head = {head: float(right[:, j].sum() / asked[:, j].sum()) for j, head in enumerate(heads)}
    return PromptAccuracy(share, all_correct, per_head)


def without_scenes(num_images: int) -> PromptAccuracy:
    """The result for prompts of free text, which name no attributes that the recogniser knows: nan throughout."""
    nothing = torch.full((num_images,), float("nan"))
    return PromptAccuracy(nothing, nothing.clone(), {})
