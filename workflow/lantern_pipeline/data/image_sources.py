"""Sources of captioned images, with one interface: the shapes dataset, Fashion-MNIST, or a folder of images.

A source divides its images into *splits*. A split and an *index* in it always give the same image. Split "train" has
the training images, and "val" held-out images. The captions of splits "seen" and "unseen" serve as prompts. In the
shapes dataset and in Fashion-MNIST, "seen" has combinations of attributes that occur in training images, and "unseen"
has other combinations. Both datasets also have a split "train_unseen" with combinations as in "unseen". Only metric
models are trained on it. In a folder of images, "seen" has the same images as "val", and there is no "unseen".

`images` returns float32 (indices, 3, image_size, image_size) in [-1, 1].
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lantern.prompts import Prompt
from lantern_models.text.words import split_words
from lantern_pipeline.data.fashion_images import FashionSource
from lantern_pipeline.data.image_files import SUFFIXES, open_image, resize_and_crop, to_tensor
from lantern_pipeline.data.listed_images import ListedSource
from lantern_pipeline.data.prompt_files import load_prompt_set
from lantern_pipeline.schema.run_config import Captions
from lantern_pipeline.world.scenes import VOCABULARY, Scene, caption, render, sample_scene
from lantern_pipeline.world.worlds import WORLDS

logger = logging.getLogger(__name__)

T = TypeVar("T")
SPLITS = ("train", "val", "seen", "unseen")
HELD_OUT_SHARE = 0.1
CACHED_PIXELS = 1 << 31  # largest number of bytes of a folder's images that are kept in memory
_FAR = 1 << 30  # split "train_unseen" has the images of "unseen" from this index on; prompts have those before it
_SPLIT_STRIDE = 1 << 40  # added per split to the indices of images, so that no two splits have the same random numbers


class SceneSource:
    """The shapes dataset: images of coloured shapes, rendered on demand.

    Only split "train" is limited, to `num_train` images. Splits "val" and "seen" have the same distribution as "train".
    Every image of split "unseen" has an object whose combination of shape and colour is held out.
    """

    splits = SPLITS  # without "train_unseen": no evaluation and no prompt may use it
    vocabulary: tuple[str, ...] | None = VOCABULARY

    def __init__(self, seed: int, image_size: int = 48, num_train: int = 32_000) -> None:
        self.seed, self.image_size = seed, image_size
        # "train_unseen" has no end; this is how many of its images a trainer samples from.
        self.num_train = self.num_train_unseen = num_train

    def scenes(self, split: str, indices: Sequence[int]) -> list[Scene]:
        """Return the scene of each image: its background, its objects and their relation."""
        # world/scenes.py knows three splits. The offset of `_numbers` tells "val" from "train".
        scene_split = {"val": "train", "train_unseen": "unseen"}.get(split, split)
        return [sample_scene(self.seed, number, scene_split) for number in self._numbers(split, indices)]

    def images(self, split: str, indices: Sequence[int]) -> Tensor:
        """Render images. Each depends only on the seed, the split and its index."""
        return render(self.scenes(split, indices), self.seed, self._numbers(split, indices), self.image_size)

    def captions(self, split: str, indices: Sequence[int]) -> list[str]:
        """Return the captions of the same indices, in the grammar of world/scenes.py."""
        return [caption(scene) for scene in self.scenes(split, indices)]

    def prompts(self, split: str, num: int) -> list[Prompt]:
        """Return the first `num` captions of a split, with ids "<split>-00000" and so on."""
        return [Prompt(f"{split}-{i:05d}", text) for i, text in enumerate(self.captions(split, range(num)))]

    def _numbers(self, split: str, indices: Sequence[int]) -> list[int]:
        base, first = ("unseen", _FAR) if split == "train_unseen" else (split, 0)
        offset = SPLITS.index(base) * _SPLIT_STRIDE + first
        return [offset + int(index) for index in indices]


class FolderSource(ListedSource[Path]):
    """A folder and its subfolders with images such as a.png or a.jpg, each with its caption in a.txt beside it.

    Images are scaled until their short side has `image_size` pixels, then cropped to the centre square. A tenth of
    them, chosen by `seed`, is held out. Captions with more than `max_words` words are cut.
    """

    splits = ("train", "val", "seen")
    vocabulary: tuple[str, ...] | None = None

    def __init__(self, folder: str | Path, image_size: int = 48, seed: int = 0, max_words: int = 16) -> None:
        self.folder, self.image_size = Path(folder), image_size
        files = self._list_files()
        self._train, self._held_out = hold_out(files, seed)
        self.num_train = len(self._train)
        self._captions = self._read_captions(files, max_words)
        self._pixels: dict[Path, Tensor] = {}  # uint8 (3, image_size, image_size) each

    def images(self, split: str, indices: Sequence[int]) -> Tensor:
        """Load images. Indices past the end begin again (`cycle`)."""
        pixels = [self._load(file) for file in self.cycle(split, indices)]
        # `stack` rejects an empty list.
        if not pixels:
            return torch.empty(0, 3, self.image_size, self.image_size)
        return torch.stack(pixels).to(torch.float32).mul_(2.0 / 255.0).sub_(1.0)

    @override
    def items(self, split: str) -> Sequence[Path]:
        return self._train if split == "train" else self._held_out

    @override
    def caption_of(self, item: Path) -> str:
        return self._captions[item]

    @override
    def name_of(self, item: Path) -> str:
        return item.relative_to(self.folder).with_suffix("").as_posix()

    def _list_files(self) -> list[Path]:
        if not self.folder.is_dir():
            raise ValueError(
                f"data.folder {self.folder} is not a folder; give one that holds images and, beside each, its caption, "
                "such as cat.png and cat.txt"
            )
        files = sorted(file for file in self.folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if len(files) < 2:
            kinds = ", ".join(SUFFIXES)
            raise ValueError(f"data.folder {self.folder} holds {len(files)} images ({kinds}); need at least 2")
        # a.png and a.jpg would share the caption file a.txt and the id of their prompts.
        counts = Counter(map(self.name_of, files))
        if len(counts) < len(files):
            names = ", ".join(sorted(name for name, count in counts.items() if count > 1)[:5])
            raise ValueError(f"data.folder {self.folder} holds several images named {names}; keep one of each")
        return files

    def _read_captions(self, files: Sequence[Path], max_words: int) -> dict[Path, str]:
        captions, num_cut = {}, 0
        for file in files:
            text_file = file.with_suffix(".txt")
            if not text_file.is_file():
                raise ValueError(f"image {file} has no caption file {text_file.name} in its folder")
            # A prompt is one line.
            text = " ".join(_read_text(text_file).split())
            words = split_words(text)
            if not words:
                raise ValueError(f"caption file {text_file} is empty; write one line of text")
            num_cut += len(words) > max_words
            # A caption that is cut also loses its capitals and its punctuation, see `split_words`.
            captions[file] = text if len(words) <= max_words else " ".join(words[:max_words])
        if num_cut:
            logger.warning("%s: cut %d of %d captions to %d words", self.folder, num_cut, len(files), max_words)
        return captions

    def _load(self, file: Path) -> Tensor:
        if file in self._pixels:
            return self._pixels[file]
        pixels = to_tensor(open_image(file, file, lambda image: resize_and_crop(image, self.image_size)))
        # All images have the same number of bytes.
        if (len(self._pixels) + 1) * pixels.nbytes <= CACHED_PIXELS:
            self._pixels[file] = pixels
        return pixels


WorldSource = SceneSource | FashionSource
ImageSource = WorldSource | FolderSource


def hold_out(items: Sequence[T], seed: int) -> tuple[list[T], list[T]]:
    """Return (training items in the given order, held-out items): a tenth, at least one, is held out at random.

    The held-out items are in random order, because in the order of their names the first few might all be of one kind.
    """
    if len(items) < 2:
        raise ValueError(f"at least 2 captioned images or captions are needed to hold some out, got {len(items)}")
    # `key` must not be negative; the schema admits no negative seed.
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(items))
    num_held_out = max(1, round(HELD_OUT_SHARE * len(items)))
    return [items[i] for i in sorted(order[num_held_out:])], [items[i] for i in order[:num_held_out]]


class DataSection(TypedDict):
    """Keys of config section `data` that describe the image source."""

    # "scenes" (the shapes dataset), "fashion" (Fashion-MNIST), "folder" (images with captions), "captions" (a file of
    # captions without images) or "none"
    source: str
    image_size: int
    num_train: int  # training images of the shapes dataset, and largest number of those of Fashion-MNIST
    folder: str | None  # of images, or of Fashion-MNIST's files (None: those of Debian's package)
    max_words: int


def make_source(data: DataSection, seed: int) -> ImageSource | None:
    """Build the image source that config section `data` describes, or return None if the run has no images."""
    if data["source"] in WORLDS:
        return make_world_source(data, seed)[1]
    if data["source"] == "folder" and data["folder"]:  # the schema requires a folder then
        return FolderSource(data["folder"], data["image_size"], seed, data["max_words"])
    return None


def make_world_source(data: DataSection, seed: int) -> tuple[str, WorldSource]:
    """Build the image source on which the attribute classifier is trained, and return (its key in WORLDS, the source).

    The classifier needs captions that name known attributes. Only the *worlds* have these: the shapes dataset and
    Fashion-MNIST. If the images of the run are from elsewhere, the source is the shapes dataset.
    """
    if data["source"] == "fashion":
        return "fashion", FashionSource(data["folder"], data["image_size"], data["num_train"])
    return "scenes", SceneSource(seed, data["image_size"], data["num_train"])


def training_captions(
    data: DataSection, num_val: int, seed: int, settings: Captions | None = None, path: str | Path | None = None
) -> dict[str, list[Prompt]]:
    """Return "train" -> all training captions, "val" -> the first `num_val` held-out captions.

    `settings` (config section data.captions) and `path` are needed if data.source is "captions".
    """
    if data["source"] == "captions":
        if settings is None or path is None:
            raise ValueError("data.source captions needs a prompt file, got none; pass that of data.captions")
        train, held_out = hold_out(load_prompt_set(path, settings, seed), seed)
        return {"train": train, "val": held_out[:num_val]}
    source = make_source(data, seed)
    if source is None:
        raise ValueError("data.source none has no captions to train on; choose folder or captions")
    return {"train": source.prompts("train", source.num_train), "val": source.prompts("val", num_val)}


def batch_indices(seed: int, step: int, batch_size: int, num_train: int) -> list[int]:
    """Sample the indices of the training images of one step, with replacement, in [0, num_train)."""
    # The key alone determines the numbers of a counter-based generator, so a checkpoint need not store it. Keys are
    # unsigned: the mask maps negative seeds, which only direct callers give, to large numbers.
    generator = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), step]))
    return generator.integers(num_train, size=batch_size).tolist()


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"caption file {file} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
