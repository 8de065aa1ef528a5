"""Dataset of tokenised images (codes) with captions, in reproducible batches.

A batch depends only on the seed and the training step, so a resumed training sees the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lantern.io import load_tensors
from lantern.text_encoders.base import TextEncoder
from lantern_pipeline.data.prompt_files import read_prompts


@dataclass
class CodeDataset:
    """Tokenised images with one caption each.

    Attributes:
        codes: integer (images, tokens).
        captions: one caption per image.
        encoder: text encoder of the captions.
    """

    codes: torch.Tensor
    captions: list[str]
    encoder: TextEncoder

    def __len__(self) -> int:
        return len(self.codes)

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the codes and encoded captions of some images.

        Args:
            indices: indices of the images, integer (batch,).

        Returns:
            (codes, prompts, mask):

            - codes: int64 (batch, tokens).
            - prompts: result of the encoder. Depending on the encoder it consists of caption features, float32 (batch,
              max_tokens, caption_dim), or of token ids, int64 (batch, max_tokens).
            - mask: bool (batch, max_tokens), False at padding.
        """
        features, mask = self.encoder.encode([self.captions[i] for i in indices.tolist()])
        return self.codes[indices].long(), features, mask


def load_codes(codes: Sequence[Path | str], captions: Path | str, encoder: TextEncoder) -> CodeDataset:
    """Load tokenised images and match them with their captions by id.

    The result has the order of the captions. It does not depend on how the codes are divided into files. Captions
    without codes are left out.

    Args:
        codes: files with the tensor `codes`, (images, tokens), and the ids of the images in their metadata.
        captions: prompt file with ids and captions.
        encoder: text encoder of the captions.
    """
    rows: dict[str, torch.Tensor] = {}
    for path in codes:
        tensors, metadata = load_tensors(path)
        rows |= zip(metadata["ids"], tensors["codes"], strict=True)
    texts = {prompt.id: prompt.text for prompt in read_prompts(captions)}
    ids = [id for id in texts if id in rows]
    return CodeDataset(torch.stack([rows[id] for id in ids]), [texts[id] for id in ids], encoder)


def step_indices(num_images: int, batch_size: int, seed: int, i: int) -> torch.Tensor:
    """Return the indices of the images of one training step.

    Every epoch goes through all images in a new random order. A batch may contain the last images of one epoch and the
    first images of the next.

    Args:
        num_images: number of images.
        batch_size: images per step.
        seed: random seed.
        i: number of the step, from 0.

    Returns:
        int64 (batch_size,).
    """
    picked = []
    position = i * batch_size
    while len(picked) < batch_size:
        epoch, offset = divmod(position, num_images)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(num_images, generator=generator)[offset : offset + batch_size - len(picked)]
        picked += order.tolist()
        position += len(order)
    return torch.tensor(picked)
