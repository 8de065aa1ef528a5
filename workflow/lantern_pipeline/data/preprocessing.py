"""Preparing images for published extractors. The way is named in the config and in every row, since it changes FID."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from lantern_pipeline.metrics.features import to_uint8

NONE = "none"
FILTERS = {
    "lanczos": Image.Resampling.LANCZOS,
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "box": Image.Resampling.BOX,
}


@dataclass(frozen=True)
class Preprocessing:
    """Cuts the centre square out of an image and scales it, as Pillow does on 8-bit pixels; or leaves it alone.

    Attributes:
        name: "none", or "centre_<filter>_<pixels>", for example "centre_lanczos_256".

    Raises:
        ValueError: the name is of another form.

    Source:
        The order, crop then scale, is that of jadohu/LANTERN@3a56e45, entrypoints/eval_fid_clip.py.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name != NONE and self._parts() is None:
            raise ValueError(
                f'preprocessing must be "{NONE}" or "centre_<filter>_<pixels>" with one of the filters '
                f"{', '.join(FILTERS)}, got {self.name!r}; the published numbers are of centre_lanczos_256"
            )

    def prepare(self, images: Tensor) -> Tensor:
        """Prepares images (n, 3, height, width), float32 in [-1, 1] or uint8; gives (n, 3, S, S) uint8, same device."""
        pixels = images if images.dtype == torch.uint8 else to_uint8(images)
        if self.name == NONE or tuple(pixels.shape[-2:]) == (self.size, self.size):
            return pixels
        return map_pictures(pixels, lambda picture: _to_tensor(self._crop_and_scale(picture)))

    def read(self, name: str, content: bytes) -> Tensor:
        """Reads and prepares an image file: (3, height, width) uint8.

        Args:
            name: of the file, for the error.
            content: of the file.

        Raises:
            ValueError: the file is no readable image; names it.
        """
        try:
            with Image.open(io.BytesIO(content)) as picture:
                return _to_tensor(self._crop_and_scale(picture.convert("RGB")))
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{name} is not a readable image ({error}); replace or remove it") from error

    @property
    def size(self) -> int | None:
        """Side of the prepared images in pixels; None where images are left alone."""
        parts = self._parts()
        return None if parts is None else int(parts[2])

    def _crop_and_scale(self, picture: Image.Image) -> Image.Image:
        if self.name == NONE:
            return picture
        side = min(picture.size)
        left, top = (round((length - side) / 2.0) for length in picture.size)
        square = picture.crop((left, top, left + side, top + side))
        return square.resize((self.size, self.size), FILTERS[self._parts()[1]])

    def _parts(self) -> re.Match | None:
        return re.fullmatch(rf"centre_({'|'.join(FILTERS)})_([1-9][0-9]*)", self.name)


def map_pictures(pixels: Tensor, change: Callable[[Image.Image], Tensor]) -> Tensor:
    """Applies a function of a Pillow image to every image of (n, 3, height, width) uint8; stacks on their device."""
    pictures = (Image.fromarray(rows.permute(1, 2, 0).numpy()) for rows in pixels.cpu())
    return torch.stack([change(picture) for picture in pictures]).to(pixels.device)


def _to_tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
