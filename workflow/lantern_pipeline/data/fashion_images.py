"""Fashion-MNIST as an image source: photographs of garments in IDX files, with captions that `world/fashion.py` writes.

The files are those of Debian's package dataset-fashion-mnist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from lantern_pipeline.data.fashion_files import find_fashion, image_file, label_file
from lantern_pipeline.data.idx_files import read_idx
from lantern_pipeline.data.listed_images import ListedSource
from lantern_pipeline.world.fashion import HELD_OUT, VOCABULARY, Garment, caption, read_garments

STORED_SIZE = 28  # side of a stored image in pixels


@dataclass(frozen=True)
class Photograph:
    """A photograph of a garment from Fashion-MNIST, with the attributes that its caption names."""

    number: int  # index in the training half or the test half of the dataset
    levels: np.ndarray  # grey levels, uint8 (STORED_SIZE, STORED_SIZE)
    garment: Garment


class FashionSource(ListedSource[Photograph]):
    """Fashion-MNIST: grey photographs of garments, with a black border and equal colour channels.

    The dataset's training half is divided into the splits "train" and "train_unseen", its test half into "unseen",
    "val" and "seen". No model is trained on the test half.

    Some combinations of tone, pattern and class (`world.fashion.HELD_OUT`) are held out from the training of generative
    models. Only "train_unseen" and "unseen" have these combinations, and they have no others. Only metric models are
    trained on "train_unseen".
    """

    splits = ("train", "val", "seen", "unseen")
    vocabulary: tuple[str, ...] | None = VOCABULARY

    def __init__(self, folder: str | Path | None, image_size: int, num_train: int) -> None:
        self.folder, self.image_size, self._most = find_fashion(folder), image_size, num_train
        self._splits: dict[str, list[Photograph]] = {}

    @property
    def num_train(self) -> int:
        """Number of images of split "train", at most the `num_train` with which the source was made."""
        return len(self.items("train"))

    @property
    def num_train_unseen(self) -> int:
        """Number of held-out images in the training half, which `num_train` does not limit."""
        return len(self.items("train_unseen"))

    def images(self, split: str, indices: Sequence[int]) -> Tensor:
        """Return images of a split, float32 (indices, 3, image_size, image_size) in [-1, 1]."""
        levels = np.zeros((len(indices), STORED_SIZE, STORED_SIZE), np.float32)
        for row, item in enumerate(self.cycle(split, indices)):
            levels[row] = item.levels
        # Images get a border instead of being scaled, which would blur them. The schema fixes image_size.
        padded = F.pad(torch.from_numpy(levels), ((self.image_size - STORED_SIZE) // 2,) * 4)
        return padded.mul_(2.0 / 255.0).sub_(1.0)[:, None].repeat(1, 3, 1, 1)

    @override
    def items(self, split: str) -> Sequence[Photograph]:
        # Reading and measuring takes a while, so a half is read only if one of its splits is used.
        if split not in self._splits:
            self._splits |= self._read_train() if split.startswith("train") else self._read_test()
        return self._splits[split]

    @override
    def caption_of(self, item: Photograph) -> str:
        return caption(item.garment)

    @override
    def name_of(self, item: Photograph) -> str:
        return f"{item.number:05d}"

    def _read_train(self) -> dict[str, list[Photograph]]:
        seen, unseen = self._read_half("train")
        return {"train": seen[: self._most], "train_unseen": unseen}

    def _read_test(self) -> dict[str, list[Photograph]]:
        seen, unseen = self._read_half("t10k")
        # Every other image, so both splits have the same distribution.
        return {"val": seen[::2], "seen": seen[1::2], "unseen": unseen}

    def _read_half(self, half: str) -> tuple[list[Photograph], list[Photograph]]:
        """Return the photographs of a half whose combination is not in HELD_OUT, then those whose combination is."""
        images, labels = read_idx(self.folder / image_file(half), 3), read_idx(self.folder / label_file(half), 1)
        found = [
            Photograph(*row) for row in zip(range(len(images)), images, read_garments(images, labels), strict=True)
        ]
        return (
            [photograph for photograph in found if photograph.garment not in HELD_OUT],
            [photograph for photograph in found if photograph.garment in HELD_OUT],
        )
