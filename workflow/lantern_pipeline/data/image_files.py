"""Images as files, tensors and codes: reading folders and archives, scaling and cropping, drawing codes as pixels."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lantern.checkpoints.tokenizers import ImageModel
from lantern.codebook import drop_line_ends

SUFFIXES = (".png", ".jpg", ".jpeg")
MAX_ARCHIVED_BYTES = 1 << 28  # unpacked, of an image in an archive
MAX_SIDES = 100  # an image's longer side in shorter ones; scaled up, a thinner one could fill the memory
# What Pillow raises on damaged files, and on files of a few kilobytes that unpack into gigabytes.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
TOKENS_AT_ONCE = 1024  # of images that are decoded together: four of 256 pixels or one of 512 take about 1 GiB
NONE = "none"
FILTERS = {
    "lanczos": Image.Resampling.LANCZOS,
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "box": Image.Resampling.BOX,
}


def read_images(place: Path | str) -> Iterator[tuple[str, bytes]]:
    """Yields (name relative to the place, content) of the images below a folder or in a zip archive (as COCO is
    published), sorted by name; hidden ones are left out.
    """
    place = Path(place)
    if place.is_dir():
        names = _select(place, [file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file()])
        yield from ((name, (place / name).read_bytes()) for name in names)
    elif zipfile.is_zipfile(place):
        try:
            with zipfile.ZipFile(place) as archive:
                for name in _select(place, archive.namelist()):
                    size = archive.getinfo(name).file_size  # zipfile gives no more bytes, whatever is packed
                    if size > MAX_ARCHIVED_BYTES:
                        raise ValueError(
                            f"{name!r} in {place} must be at most {MAX_ARCHIVED_BYTES} bytes when unpacked, got {size};"
                            " remove it"
                        )
                    yield name, archive.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted
            raise ValueError(f"the archive {place} is broken ({error}); fetch it again") from error
    else:
        raise ValueError(
            f"{place} is neither a folder of images nor a zip archive of them; give its path in the config"
        )


def _select(place: Path, names: list[str]) -> list[str]:
    chosen = [name for name in names if _is_image(PurePosixPath(name))]
    if len(chosen) < 2:
        raise ValueError(f"{place} holds {len(chosen)} images ({', '.join(SUFFIXES)}); need at least 2")
    return sorted(chosen)


def _is_image(path: PurePosixPath) -> bool:
    return path.suffix.lower() in SUFFIXES and not any(part.startswith((".", "__MACOSX")) for part in path.parts)


@dataclass(frozen=True)
class Preprocessing:
    """How images are prepared for published extractors, which changes FID: "none", or "centre_<filter>_<pixels>", for
    example "centre_lanczos_256": cut out the centre square and scale it, as Pillow does on 8-bit pixels.

    Source: the order, crop then scale, is that of jadohu/LANTERN@3a56e45, entrypoints/eval_fid_clip.py.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name != NONE and self._parts is None:
            raise ValueError(
                f'preprocessing must be "{NONE}" or "centre_<filter>_<pixels>" with one of the filters '
                f"{', '.join(FILTERS)}, got {self.name!r}; the published numbers are of centre_lanczos_256"
            )

    def prepare(self, images: Tensor) -> Tensor:
        """Prepares images (n, 3, height, width), float32 in [-1, 1] or uint8; gives (n, 3, S, S) uint8, same device."""
        pixels = images if images.dtype == torch.uint8 else to_uint8(images)
        if self.name == NONE or tuple(pixels.shape[-2:]) == (self.size, self.size):
            return pixels
        return map_images(pixels, lambda image: to_tensor(self._crop_and_scale(image)))

    def read(self, name: str, content: bytes) -> Tensor:
        """Reads and prepares the content of an image file: (3, height, width) uint8."""
        return to_tensor(open_image(name, io.BytesIO(content), self._crop_and_scale))

    @property
    def size(self) -> int | None:
        """Side of the prepared images in pixels; None where images are left alone."""
        return None if self._parts is None else self._parts[1]

    def _crop_and_scale(self, image: Image.Image) -> Image.Image:
        if self._parts is None:
            return image
        side = min(image.size)
        left, top = (round((length - side) / 2.0) for length in image.size)
        square = image.crop((left, top, left + side, top + side))
        kind, size = self._parts
        return square.resize((size, size), FILTERS[kind])

    @property
    def _parts(self) -> tuple[str, int] | None:
        """Filter and size; None if images are left alone."""
        match = re.fullmatch(rf"centre_({'|'.join(FILTERS)})_([1-9][0-9]*)", self.name)
        return None if match is None else (match[1], int(match[2]))


def open_image(name: Path | str, file: Path | io.BytesIO, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Opens an image file, converts it to red, green and blue, and changes it; what goes wrong names the file."""
    try:
        with Image.open(file) as image:
            return change(to_rgb(image))
    except UNREADABLE as error:
        raise ValueError(f"{name} is not a readable image ({error}); replace or remove it") from error


def map_images(pixels: Tensor, change: Callable[[Image.Image], Tensor]) -> Tensor:
    """Applies a function of a Pillow image to every image of (n, 3, height, width) uint8; stacks on their device."""
    images = (Image.fromarray(rows.permute(1, 2, 0).numpy()) for rows in pixels.cpu())
    return torch.stack([change(image) for image in images]).to(pixels.device)


def to_tensor(image: Image.Image) -> Tensor:
    """Pixels of an image, (3, height, width) uint8."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def to_rgb(image: Image.Image) -> Image.Image:
    """Converts an image to red, green and blue, 8 bits each; of an animation its first picture, transparency dropped.

    Pillow cuts the 16 bits of a grey image off at 255, which makes it white; here they are scaled.
    """
    if not image.mode.startswith("I;16"):
        return image.convert("RGB")
    return Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8)).convert("RGB")


def resize_and_crop(image: Image.Image, image_size: int) -> Image.Image:
    """Scales the short side to `image_size` pixels (Lanczos) and crops the centre square."""
    if max(image.size) > MAX_SIDES * min(image.size):
        width, height = image.size
        raise ValueError(f"its sides must be at most 1 : {MAX_SIDES}, got {width} x {height} pixels")
    scale = image_size / min(image.size)
    width, height = (max(image_size, round(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    left, top = (width - image_size) // 2, (height - image_size) // 2
    return image.crop((left, top, left + image_size, top + image_size))


def decode_images(tokenizer: ImageModel, codes: Tensor, num_at_once: int | None = None) -> Tensor:
    """Draws codes (images, tokens) as (images, 3, S, S) float32 in [-1, 1] on the codes' device; few at once, by
    default, since a decoder's activations are large. Tokens that end lines are left out.
    """
    device = next(tokenizer.parameters()).device
    codes = drop_line_ends(codes, tokenizer.config.grid)
    size = num_at_once or max(1, TOKENS_AT_ONCE // codes.shape[1])
    with torch.inference_mode():
        parts = [tokenizer.decode(part.long().to(device)).float().to(codes.device) for part in codes.split(size)]
        return torch.cat(parts)


def to_uint8(images: Tensor) -> Tensor:
    """Rounds images in [-1, 1] to 256 levels, as a stored PNG would."""
    return images.add(1.0).mul_(127.5).round_().clamp_(0, 255).to(torch.uint8)


def to_float(pixels: Tensor) -> Tensor:
    """Maps uint8 images back to float32 in [-1, 1]."""
    return pixels.float() / 127.5 - 1.0


def to_pixels(images: Tensor) -> np.ndarray:
    """Images (..., 3, S, S) in [-1, 1] as figures and PNG files want them: (..., S, S, 3) uint8."""
    return to_uint8(images).movedim(-3, -1).cpu().numpy()
