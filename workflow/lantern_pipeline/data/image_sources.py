"""Image sources: the embedded world or a folder of images and captions, behind one interface."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lantern.models.text import split_words
from lantern.prompts import Prompt
from lantern_pipeline.world.scenes import VOCABULARY, Scene, caption, render, sample_scene

logger = logging.getLogger(__name__)

T = TypeVar("T")
SPLITS = ("train", "val", "seen", "unseen")
HELD_OUT_SHARE = 0.1
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
MAX_SIDES = 100  # an image's longer side in shorter ones; scaled up, a thinner one could fill the memory
# What Pillow raises on damaged files, and on files of a few kilobytes that unpack into gigabytes.
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
CACHED_PIXELS = 1 << 31  # bytes of a folder's images that are kept in memory
_SPLIT_STRIDE = 1 << 40  # keeps the image numbers, and so the noise, of the splits apart


class ImageSource(Protocol):
    """Captioned images with fixed splits.

    Splits: "train"; "val", held-out images of the same composition; "seen" and "unseen", the two prompt sets.

    Attributes:
        image_size: side in pixels.
        num_train: training images; training indices lie in [0, num_train).
        vocabulary: all words of the captions, None where any word may come.
    """

    image_size: int
    num_train: int
    vocabulary: tuple[str, ...] | None

    def images(self, split: str, indices: Sequence[int]) -> Tensor:
        """Return (indices, 3, image_size, image_size) float32 in [-1, 1]; each a pure function of its index."""
        ...

    def captions(self, split: str, indices: Sequence[int]) -> list[str]:
        """Return the captions of the same images."""
        ...

    def prompts(self, split: str, num: int) -> list[Prompt]:
        """Return `num` prompts with ids, of the split's first images."""
        ...


class SceneSource:
    """The embedded world as an image source.

    Args:
        seed: of scenes and textures.
        image_size: side in pixels.
        num_train: distinct training images; other splits have no end.
    """

    def __init__(self, seed: int, image_size: int = 48, num_train: int = 32_000) -> None:
        self.seed = seed
        self.image_size = image_size
        self.num_train = num_train
        self.vocabulary: tuple[str, ...] | None = VOCABULARY

    def scenes(self, split: str, indices: Sequence[int]) -> list[Scene]:
        """Return the scenes behind the images."""
        scene_split = "train" if split == "val" else split
        return [sample_scene(self.seed, number, scene_split) for number in self._numbers(split, indices)]

    def images(self, split: str, indices: Sequence[int]) -> Tensor:
        """See `ImageSource.images`."""
        return render(self.scenes(split, indices), self.seed, self._numbers(split, indices), self.image_size)

    def captions(self, split: str, indices: Sequence[int]) -> list[str]:
        """See `ImageSource.captions`."""
        return [caption(scene) for scene in self.scenes(split, indices)]

    def prompts(self, split: str, num: int) -> list[Prompt]:
        """See `ImageSource.prompts`; ids are "<split>-00000" and so on."""
        scenes = self.scenes(split, range(num))
        return [Prompt(f"{split}-{i:05d}", caption(scene)) for i, scene in enumerate(scenes)]

    def _numbers(self, split: str, indices: Sequence[int]) -> list[int]:
        offset = _split_number(split) * _SPLIT_STRIDE
        return [offset + int(index) for index in indices]


class FolderSource:
    """A folder of name.png (or .jpg) and name.txt, resized so that the short side fits, then centre-cropped.

    A tenth of the images, drawn by `seed`, is held out; "val", "seen" and "unseen" all mean these. Indices beyond the
    number of images start again from the first.

    Args:
        folder: where the files lie, in it or in folders below it.
        image_size: side in pixels.
        seed: of the hold-out.
        max_words: longer captions are cut to so many words, and the number cut is logged.

    Raises:
        ValueError: no folder, fewer than two images, an image without a caption file or with an empty one.
    """

    def __init__(self, folder: str | Path, image_size: int = 48, seed: int = 0, max_words: int = 16) -> None:
        self.folder = Path(folder)
        self.image_size = image_size
        self.vocabulary: tuple[str, ...] | None = None
        files = self._list_files()
        train, held_out = hold_out(files, seed)
        self._files = {"train": train, "held_out": held_out}
        self.num_train = len(self._files["train"])
        self._captions = self._read_captions(files, max_words)
        self._pixels: dict[Path, Tensor] = {}

    def images(self, split: str, indices: Sequence[int]) -> Tensor:
        """See `ImageSource.images`.

        Raises:
            ValueError: a file is no readable image; names it.
        """
        pixels = [self._load(self._file(split, index)) for index in indices]
        if not pixels:
            return torch.empty(0, 3, self.image_size, self.image_size)
        return torch.stack(pixels).to(torch.float32).mul_(2.0 / 255.0).sub_(1.0)

    def captions(self, split: str, indices: Sequence[int]) -> list[str]:
        """See `ImageSource.captions`."""
        return [self._captions[self._file(split, index)] for index in indices]

    def prompts(self, split: str, num: int) -> list[Prompt]:
        """See `ImageSource.prompts`; ids are "<split>-<file>", the file without its ending and with its folders below
        `folder`, and with "-r1" and so on when captions come again.
        """
        prompts = []
        for index in range(num):
            file = self._file(split, index)
            turn = index // len(self._split_files(split))
            suffix = f"-r{turn}" if turn else ""
            text = self._captions[file]
            try:
                prompts.append(Prompt(f"{split}-{self._name(file)}{suffix}", text))
            except ValueError as error:  # the id is the file's name
                raise ValueError(f"image {str(file)!r}: {error}") from error
        return prompts

    def _list_files(self) -> list[Path]:
        if not self.folder.is_dir():
            raise ValueError(f"data.folder {self.folder} is not a folder; give one of name.png and name.txt files")
        files = sorted(
            file for file in self.folder.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()
        )
        if len(files) < 2:
            kinds = ", ".join(IMAGE_SUFFIXES)
            raise ValueError(f"data.folder {self.folder} holds {len(files)} images ({kinds}); need at least 2")
        counts = Counter(map(self._name, files))
        if len(counts) < len(files):
            names = ", ".join(sorted(name for name, count in counts.items() if count > 1)[:5])
            raise ValueError(f"data.folder {self.folder} holds several images named {names}; keep one of each")
        return files

    def _read_captions(self, files: Sequence[Path], max_words: int) -> dict[Path, str]:
        captions, num_cut = {}, 0
        for file in files:
            text_file = file.with_suffix(".txt")
            if not text_file.is_file():
                raise ValueError(f"image {file} has no caption file {text_file.name} beside it")
            text = " ".join(_read_text(text_file).split())
            words = split_words(text)
            if not words:
                raise ValueError(f"caption file {text_file} is empty; write one line of text")
            num_cut += len(words) > max_words
            captions[file] = text if len(words) <= max_words else " ".join(words[:max_words])
        if num_cut:
            logger.warning("%s: cut %d of %d captions to %d words", self.folder, num_cut, len(files), max_words)
        return captions

    def _split_files(self, split: str) -> list[Path]:
        _split_number(split)
        return self._files["train" if split == "train" else "held_out"]

    def _file(self, split: str, index: int) -> Path:
        files = self._split_files(split)
        return files[int(index) % len(files)]

    def _name(self, file: Path) -> str:
        return file.relative_to(self.folder).with_suffix("").as_posix()

    def _load(self, file: Path) -> Tensor:
        """Return (3, image_size, image_size) uint8; the first CACHED_PIXELS bytes stay in memory after their call."""
        if file in self._pixels:
            return self._pixels[file]
        try:
            with Image.open(file) as image:
                cropped = resize_and_crop(to_rgb(image), self.image_size)
        except UNREADABLE as error:
            raise ValueError(f"{file} is not a readable image ({error}); replace or remove it") from error
        pixels = torch.from_numpy(np.array(cropped)).permute(2, 0, 1).contiguous()
        if (len(self._pixels) + 1) * pixels.nbytes <= CACHED_PIXELS:
            self._pixels[file] = pixels
        return pixels


def hold_out(items: Sequence[T], seed: int) -> tuple[list[T], list[T]]:
    """Split items into (train, held out): a tenth of them, at least one, drawn by `seed`; both keep the order.

    Raises:
        ValueError: fewer than two items.
    """
    if len(items) < 2:
        raise ValueError(f"at least 2 captioned images or captions are needed to hold some out, got {len(items)}")
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(items))
    num_held_out = max(1, round(HELD_OUT_SHARE * len(items)))
    held_out, train = sorted(order[:num_held_out]), sorted(order[num_held_out:])
    return [items[i] for i in train], [items[i] for i in held_out]


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to red, green and blue, 8 bits each; of an animation its first picture, transparency dropped.

    Pillow cuts the 16 bits of a grey image off at 255, which makes it white; here they are scaled.
    """
    if not image.mode.startswith("I;16"):
        return image.convert("RGB")
    return Image.fromarray((np.asarray(image).astype(np.uint32) // 257).astype(np.uint8)).convert("RGB")


def resize_and_crop(image: Image.Image, image_size: int) -> Image.Image:
    """Scale the short side to `image_size` pixels (Lanczos) and crop the centre square.

    Raises:
        ValueError: one side is more than MAX_SIDES times the other.
    """
    if max(image.size) > MAX_SIDES * min(image.size):
        width, height = image.size
        raise ValueError(f"its sides must be at most 1 : {MAX_SIDES}, got {width} x {height} pixels")
    scale = image_size / min(image.size)
    width, height = (max(image_size, round(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    left, top = (width - image_size) // 2, (height - image_size) // 2
    return image.crop((left, top, left + image_size, top + image_size))


def make_source(config: Mapping, seed: int) -> SceneSource | FolderSource | None:
    """Build the source that the `data` section of the configuration names.

    Args:
        config: keys source ("scenes" | "folder" | "captions" | "none"), image_size (pixels), num_train (images, scenes
            only), folder and max_words (folder only).
        seed: run seed.

    Returns:
        The source; None where a run has no images of its own.

    Raises:
        ValueError: unknown data.source, or a folder source without data.folder.
    """
    if config["source"] == "scenes":
        return SceneSource(seed, config["image_size"], config["num_train"])
    if config["source"] == "folder":
        if not config.get("folder"):
            raise ValueError("data.folder must name a folder of name.png and name.txt files when data.source is folder")
        return FolderSource(config["folder"], config["image_size"], seed, config.get("max_words", 16))
    if config["source"] in ("captions", "none"):
        return None
    raise ValueError(f"data.source must be scenes, folder, captions or none, got {config['source']!r}")


def batch_indices(seed: int, step: int, batch_size: int, num_train: int) -> list[int]:
    """Draw the training indices of one step, with replacement; a pure function of the arguments."""
    generator = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), step]))
    return generator.integers(num_train, size=batch_size).tolist()


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"caption file {file} is not UTF-8 text (byte {error.start}); save it so") from error


def _split_number(split: str) -> int:
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    return SPLITS.index(split)
