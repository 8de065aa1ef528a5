"""Whether a drafter belongs to a target: its token embedding is a copy of one of the target's matrices.

The LANTERN authors' training copies the head where the target is one file, and the token embedding where it lies in
shards (jadohu/LANTERN@3a56e45, models/drafters/cnets_llamagen.py); a copy of neither is another target's drafter.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from lantern.models.draft import DraftModel

TARGET_MATRICES = ("token_embedding.weight", "head.weight")
ROUNDING = 0.01  # of the norm; bfloat16 rounds by 0.002


def find_embedding(model: DraftModel, target: Path | str) -> str | None:
    """Finds the matrix of the target that a drafter's token embedding was copied from.

    Args:
        model: drafter.
        target: file of the target in our own layout, of the same width and vocabulary.

    Returns:
        One of TARGET_MATRICES, equal up to the rounding of a half precision; None where neither is.
    """
    own = model.token_embedding.weight.detach().float()
    with safe_open(target, framework="pt") as file:
        for name in TARGET_MATRICES:
            matrix = file.get_tensor(name).float()
            if torch.linalg.norm(own - matrix) <= ROUNDING * torch.linalg.norm(matrix):
                return name
    return None
