"""Images as files, tensors and codes: reading, scaling, cropping, and decoding of codes.

Tensors of images are float32 (images, 3, height, width) in [-1, 1], or uint8 of the same shape.
"""

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

from lantern.codebook import ImageModel
from lantern.io import check_finite_outputs
from lantern.models.config import codes_by_line

SUFFIXES = (".png", ".jpg", ".jpeg")
MAX_ARCHIVED_BYTES = 1 << 28  # largest unpacked size of an image in an archive
MAX_SIDES = 100  # largest ratio of an image's sides; a thinner image could fill the memory when it is scaled up
# Errors that Pillow raises on damaged files, and on files of a few kilobytes that unpack into gigabytes.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
# Codes decoded to pixels together: four images of 256 pixels a side or one of 512 need about 1 GiB.
CODES_AT_ONCE = 1024
NONE = "none"
FILTERS = {
    "lanczos": Image.Resampling.LANCZOS,
    "bicubic": Image.Resampling.BICUBIC,
    "bilinear": Image.Resampling.BILINEAR,
    "box": Image.Resampling.BOX,
}


def read_images(source: Path | str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the images below a folder or in a zip archive (as COCO is published), sorted by name.

    Names are relative to the folder or archive. Hidden files are left out.
    """
    source = Path(source)
    if source.is_dir():
        names = _select(source, [file.relative_to(source).as_posix() for file in source.rglob("*") if file.is_file()])
        yield from ((name, (source / name).read_bytes()) for name in names)
    elif zipfile.is_zipfile(source):
        try:
            with zipfile.ZipFile(source) as archive:
                for name in _select(source, archive.namelist()):
                    size = archive.getinfo(name).file_size  # zipfile returns no more bytes than this
                    if size > MAX_ARCHIVED_BYTES:
                        raise ValueError(
                            f"{name!r} in {source} must be at most {MAX_ARCHIVED_BYTES} bytes when unpacked, got "
                            f"{size}; remove it"
                        )
                    yield name, archive.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted
            raise ValueError(f"the archive {source} is broken ({error}); fetch it again") from error
    else:
        raise ValueError(
            f"{source} is neither a folder of images nor a zip archive of them; give its path in the config"
        )


def _select(source: Path, names: list[str]) -> list[str]:
    chosen = [name for name in names if _is_image(PurePosixPath(name))]
    # The Fréchet distance needs a covariance, hence two images.
    if len(chosen) < 2:
        raise ValueError(f"{source} holds {len(chosen)} images ({', '.join(SUFFIXES)}); need at least 2")
    return sorted(chosen)


def _is_image(path: PurePosixPath) -> bool:
    # Archives made by macOS hold a file __MACOSX/._NAME for each image NAME, which is no image.
    return path.suffix.lower() in SUFFIXES and not any(part.startswith((".", "__MACOSX")) for part in path.parts)


@dataclass(frozen=True)
class Preprocessing:
    """Scaling and cropping of images before a published network extracts features, for FID and similar metrics.

    Attributes:
        name: "none" leaves images unchanged. "centre_<filter>_<pixels>", for example "centre_lanczos_256", crops the
            centre square and scales it with Pillow, on 8-bit pixels.

    Source: the authors of LANTERN also crop before they scale, in jadohu/LANTERN@3a56e45, entrypoints/eval_fid_clip.py.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name != NONE and self._parts is None:
            raise ValueError(
                f'preprocessing must be "{NONE}" or "centre_<filter>_<pixels>" with one of the filters '
                f"{', '.join(FILTERS)}, got {self.name!r}; the published numbers are of centre_lanczos_256"
            )

    def prepare(self, images: Tensor) -> Tensor:
        """Return a batch of float32 or uint8 images as uint8 (images, 3, size, size), on the same device.

        If `size` is None, images keep their own size.
        """
        pixels = images if images.dtype == torch.uint8 else to_uint8(images)
        # Pillow would return the same pixels for images that have this size, but slowly: one image at a time.
        if self.name == NONE or tuple(pixels.shape[-2:]) == (self.size, self.size):
            return pixels
        return map_images(pixels, lambda image: to_tensor(self._crop_and_scale(image)))

    def read(self, name: str, content: bytes) -> Tensor:
        """Do the same with the content of an image file, uint8 (3, size, size). Errors state `name`."""
        return to_tensor(open_image(name, io.BytesIO(content), self._crop_and_scale))

    @property
    def size(self) -> int | None:
        """Side of the prepared images in pixels. None for "none"."""
        return None if self._parts is None else self._parts[1]

    def _crop_and_scale(self, image: Image.Image) -> Image.Image:
        if self._parts is None:
            return image
        side = min(image.size)
        # An odd margin is cut where the authors' code cuts it: `round` takes halves to the even neighbour.
        left, top = (round((length - side) / 2.0) for length in image.size)
        square = image.crop((left, top, left + side, top + side))
        kind, size = self._parts
        return square.resize((size, size), FILTERS[kind])

    @property
    def _parts(self) -> tuple[str, int] | None:
        """(key of FILTERS, size), or None for "none"."""
        match = re.fullmatch(rf"centre_({'|'.join(FILTERS)})_([1-9][0-9]*)", self.name)
        return None if match is None else (match[1], int(match[2]))


def open_image(name: Path | str, file: Path | io.BytesIO, change: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Open an image file, convert it to RGB, and return what `change` makes of it.

    All errors are ValueErrors that state `name`.
    """
    try:
        # `Image.open` reads only the header. `to_rgb` reads the pixels, and finds damage.
        with Image.open(file) as image:
            return change(to_rgb(image))
    except UNREADABLE as error:
        raise ValueError(f"{name} is not a readable image ({error}); replace or remove it") from error


def map_images(pixels: Tensor, change: Callable[[Image.Image], Tensor]) -> Tensor:
    """Apply `change` to each of the uint8 images, and return the results as one tensor on the images' device."""
    images = (Image.fromarray(rows.permute(1, 2, 0).numpy()) for rows in pixels.cpu())
    return torch.stack([change(image) for image in images]).to(pixels.device)


def to_tensor(image: Image.Image) -> Tensor:
    """Return the pixels of an RGB image, uint8 (3, height, width)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB with 8 bits per channel.

    Transparency is dropped, and only the first frame of an animation is kept.
    """
    # Pillow would clip 16-bit values at 255, which makes images white.
    if not image.mode.startswith("I;16"):
        return image.convert("RGB")
    # 65535 // 257 is 255.
    return Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8)).convert("RGB")


def resize_and_crop(image: Image.Image, image_size: int) -> Image.Image:
    """Scale an image so that its short side has `image_size` pixels (Lanczos filter), and crop the centre square.

    A folder of images is read so. `Preprocessing`, for metrics, crops first, as the published code does.
    """
    if max(image.size) > MAX_SIDES * min(image.size):
        width, height = image.size
        # `open_image` puts the name of the image before this.
        raise ValueError(f"its sides must be at most 1 : {MAX_SIDES}, got {width} x {height} pixels")
    scale = image_size / min(image.size)
    # Never less than the square, however `scale` is rounded.
    width, height = (max(image_size, round(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    left, top = (width - image_size) // 2, (height - image_size) // 2
    return image.crop((left, top, left + image_size, top + image_size))


def code_positions(tokenizer: ImageModel, tokens: Tensor) -> Tensor:
    """Return where among the tokens (images, tokens) of one target an image's codes are, int64 (height, width).

    The other tokens are left out: some targets also emit a token at the end of each line, and GLM-Image first emits the
    tokens of a smaller preview of the image.
    """
    # Codes are below codebook_size, and the line-end token equals it. A preview comes first, so `codes_by_line` counts
    # from the end.
    has_line_ends = bool((tokens == tokenizer.config.codebook_size).any())
    return codes_by_line(torch.arange(tokens.shape[1]), tokenizer.config.shape, has_line_ends=has_line_ends)


def decode_images(tokenizer: ImageModel, tokens: Tensor, num_at_once: int | None = None) -> Tensor:
    """Decode the codes among the tokens (images, tokens) to float32 pixels, on the device of `tokens`.

    Args:
        num_at_once: number of images decoded together, which limits the memory of the decoder's activations. None for
            the largest number with at most CODES_AT_ONCE codes in total, at least 1.
    """
    device = next(tokenizer.parameters()).device
    positions = code_positions(tokenizer, tokens)
    size = max(1, CODES_AT_ONCE // positions.numel()) if num_at_once is None else num_at_once
    with torch.inference_mode():
        parts = tokens[:, positions.to(tokens.device)].split(size)
        images = torch.cat([tokenizer.decode(part.long().to(device)).float().to(tokens.device) for part in parts])
    check_finite_outputs(images, [f"image {index}" for index in range(len(images))], "pixels", "the image tokenizer")
    return images


def to_uint8(images: Tensor) -> Tensor:
    """Map [-1, 1] to the levels 0 to 255. Values outside are clipped."""
    # `add` makes the copy which the other operations change in place.
    return images.add(1.0).mul_(127.5).round_().clamp_(0, 255).to(torch.uint8)


def to_float(pixels: Tensor) -> Tensor:
    """Map the levels 0 to 255 to [-1, 1]."""
    return pixels.float() / 127.5 - 1.0


def to_pixels(images: Tensor) -> np.ndarray:
    """Convert float images (..., 3, height, width) to arrays as Pillow takes them, uint8 (..., height, width, 3)."""
    return to_uint8(images).movedim(-3, -1).cpu().numpy()
