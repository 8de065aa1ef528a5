"""Dataset of tokenised images (codes) with captions, in reproducible batches.

A batch depends only on the seed and the training step, so a resumed training sees the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lantern.io import load_tensors
from lantern.prompts import TextEncoder
from lantern_pipeline.data.prompt_files import read_prompts


@dataclass
class CodeDataset:
    """`codes`, of any integer dtype, is (images, tokens). The caption of image i is captions[i]."""

    codes: torch.Tensor
    captions: list[str]
    encoder: TextEncoder

    def __len__(self) -> int:
        return len(self.codes)

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (codes, prompts, mask) of the images with the given indices.

        Codes are int64 (batch, tokens). Prompts are caption features, float32 (batch, max_tokens, caption_dim), or
        token ids, int64 (batch, max_tokens), depending on the encoder. The mask, bool (batch, max_tokens), is False at
        padding.
        """
        # Encoded for each batch, since the features of all captions would need much memory.
        features, mask = self.encoder.encode([self.captions[i] for i in indices.tolist()])
        return self.codes[indices].long(), features, mask


def load_codes(codes: Sequence[Path | str], captions: Path | str, encoder: TextEncoder) -> CodeDataset:
    """Load tokenised images and match them with their captions by id.

    The result has the order of the captions. It does not depend on how the codes are divided into files, which have the
    tensor `codes` and, as metadata, the ids of the images. Captions without codes are left out.
    """
    rows: dict[str, torch.Tensor] = {}
    for path in codes:
        tensors, metadata = load_tensors(path)
        rows |= zip(metadata["ids"], tensors["codes"], strict=True)
    texts = {prompt.id: prompt.text for prompt in read_prompts(captions)}
    ids = [id for id in texts if id in rows]
    return CodeDataset(torch.stack([rows[id] for id in ids]), [texts[id] for id in ids], encoder)


def step_indices(num_images: int, batch_size: int, seed: int, i: int) -> torch.Tensor:
    """Return the indices of the images of training step i, int64 (batch_size,).

    Every epoch goes through all images in a new random order. A batch may contain the last images of one epoch and the
    first images of the next.
    """
    picked = []
    # Position in the endless sequence of all epochs.
    position = i * batch_size
    while len(picked) < batch_size:
        epoch, offset = divmod(position, num_images)
        # 1_000_003 is more than the number of epochs, so no two pairs of seed and epoch have the same generator.
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(num_images, generator=generator)[offset : offset + batch_size - len(picked)]
        picked += order.tolist()
        position += len(order)
    return torch.tensor(picked)
