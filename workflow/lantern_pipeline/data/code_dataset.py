"""Codes and captions in batches that are pure functions of (seed, step), so that a resumed training repeats an
undisturbed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lantern.models.text import TextEncoder


@dataclass
class CodeDataset:
    """Tokenised images with their captions.

    Attributes:
        codes: integer, (images, tokens).
        captions: one per image.
        encoder: turns captions into features.
    """

    codes: torch.Tensor
    captions: Sequence[str]
    encoder: TextEncoder

    def __post_init__(self) -> None:
        if len(self.codes) != len(self.captions):
            raise ValueError(f"codes and captions must be as many, got {len(self.codes)} and {len(self.captions)}")

    def __len__(self) -> int:
        return len(self.codes)

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Codes int64 (batch, tokens), caption features (batch, num_text_tokens, caption_dim) and mask of some
        images.
        """
        features, mask = self.encoder.encode([self.captions[i] for i in indices.tolist()])
        return self.codes[indices].long(), features, mask


def step_indices(num_images: int, batch_size: int, seed: int, i: int) -> torch.Tensor:
    """Which images step i sees: every epoch is a permutation of its own. int64, (batch_size,)."""
    picked = []
    position = i * batch_size
    while len(picked) < batch_size:
        epoch, offset = divmod(position, num_images)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(num_images, generator=generator)[offset : offset + batch_size - len(picked)]
        picked += order.tolist()
        position += len(order)
    return torch.tensor(picked)
