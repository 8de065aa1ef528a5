"""Image sources: the embedded world or a folder of images and captions, behind one interface."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor

from lantern.prompts import Prompt
from lantern.text_encoders.base import split_words
from lantern_pipeline.data.image_files import SUFFIXES, open_image, resize_and_crop, to_tensor
from lantern_pipeline.data.prompt_files import load_prompt_set
from lantern_pipeline.settings.run_config import Captions
from lantern_pipeline.world.scenes import VOCABULARY, Scene, caption, render, sample_scene

logger = logging.getLogger(__name__)

T = TypeVar("T")
SPLITS = ("train", "val", "seen", "unseen")
HELD_OUT_SHARE = 0.1
CACHED_PIXELS = 1 << 31  # bytes of a folder's images that are kept in memory
_SPLIT_STRIDE = 1 << 40  # keeps the image numbers, and so the noise, of the splits apart


class SceneSource:
    """The embedded data set, with `num_train` distinct training images; its other splits have no end.

    Splits are "train"; "val", held-out images of the same composition; and the prompt sets "seen" and, where
    combinations can be held out of training, "unseen". Indices of training images lie in [0, num_train).
    """

    splits = SPLITS
    vocabulary: tuple[str, ...] | None = VOCABULARY  # all words of the captions, None where any word may come

    def __init__(self, seed: int, image_size: int = 48, num_train: int = 32_000) -> None:
        self.seed, self.image_size, self.num_train = seed, image_size, num_train

    def scenes(self, split: str, indices: Sequence[int]) -> list[Scene]:
        """The scenes behind the images."""
        scene_split = "train" if split == "val" else split
        return [sample_scene(self.seed, number, scene_split) for number in self._numbers(split, indices)]

    def images(self, split: str, indices: Sequence[int]) -> Tensor:
        """Images (indices, 3, image_size, image_size) float32 in [-1, 1]; each a pure function of its index."""
        return render(self.scenes(split, indices), self.seed, self._numbers(split, indices), self.image_size)

    def captions(self, split: str, indices: Sequence[int]) -> list[str]:
        """The captions of the same images."""
        return [caption(scene) for scene in self.scenes(split, indices)]

    def prompts(self, split: str, num: int) -> list[Prompt]:
        """The captions of the split's first `num` images; ids are "<split>-00000" and so on."""
        return [Prompt(f"{split}-{i:05d}", text) for i, text in enumerate(self.captions(split, range(num)))]

    def _numbers(self, split: str, indices: Sequence[int]) -> list[int]:
        offset = SPLITS.index(split) * _SPLIT_STRIDE
        return [offset + int(index) for index in indices]


class FolderSource:
    """A folder of name.png (or .jpg) and name.txt, resized so that the short side fits, then centre-cropped.

    A tenth of the images, drawn by `seed`, is held out: "val" and "seen" both mean these. Beyond the last image of a
    split its first ones come again, which is said once. Captions of more than `max_words` words are cut.
    """

    splits = ("train", "val", "seen")
    vocabulary: tuple[str, ...] | None = None

    def __init__(self, folder: str | Path, image_size: int = 48, seed: int = 0, max_words: int = 16) -> None:
        self.folder, self.image_size = Path(folder), image_size
        files = self._list_files()
        self._train, self._held_out = hold_out(files, seed)
        self.num_train = len(self._train)
        self._captions = self._read_captions(files, max_words)
        self._pixels: dict[Path, Tensor] = {}
        self._has_repeated = False

    def images(self, split: str, indices: Sequence[int]) -> Tensor:
        """Images, as `SceneSource.images` gives them."""
        pixels = [self._load(file) for file in self._cycle(split, indices)]
        if not pixels:
            return torch.empty(0, 3, self.image_size, self.image_size)
        return torch.stack(pixels).to(torch.float32).mul_(2.0 / 255.0).sub_(1.0)

    def captions(self, split: str, indices: Sequence[int]) -> list[str]:
        """The captions of the same images."""
        return [self._captions[file] for file in self._cycle(split, indices)]

    def prompts(self, split: str, num: int) -> list[Prompt]:
        """The captions of the split's first `num` images, or of all that there are; ids are "<split>-<file>", the file
        without its ending and with its folders below `folder`.
        """
        files = self._files(split)
        if num > len(files):
            logger.warning(
                "%s: %d captions of split %s asked for, but there are %d: these", self.folder, num, split, len(files)
            )
        prompts = []
        for file in files[:num]:
            try:
                prompts.append(Prompt(f"{split}-{self._name(file)}", self._captions[file]))
            except ValueError as error:  # the id is the file's name
                raise ValueError(f"image {str(file)!r}: {error}") from error
        return prompts

    def _list_files(self) -> list[Path]:
        if not self.folder.is_dir():
            raise ValueError(f"data.folder {self.folder} is not a folder; give one of name.png and name.txt files")
        files = sorted(file for file in self.folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if len(files) < 2:
            kinds = ", ".join(SUFFIXES)
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

    def _files(self, split: str) -> list[Path]:
        return self._train if split == "train" else self._held_out

    def _cycle(self, split: str, indices: Sequence[int]) -> list[Path]:
        files = self._files(split)
        if not self._has_repeated and max(indices, default=0) >= len(files):
            self._has_repeated = True
            logger.warning(
                "%s: image %d of split %s was asked for, but there are %d: they come again from the first; add images",
                self.folder,
                *(int(max(indices)) + 1, split, len(files)),
            )
        return [files[int(index) % len(files)] for index in indices]

    def _name(self, file: Path) -> str:
        return file.relative_to(self.folder).with_suffix("").as_posix()

    def _load(self, file: Path) -> Tensor:
        """Pixels (3, image_size, image_size) uint8; the first CACHED_PIXELS bytes stay in memory after their call."""
        if file in self._pixels:
            return self._pixels[file]
        pixels = to_tensor(open_image(file, file, lambda image: resize_and_crop(image, self.image_size)))
        if (len(self._pixels) + 1) * pixels.nbytes <= CACHED_PIXELS:
            self._pixels[file] = pixels
        return pixels


ImageSource = SceneSource | FolderSource


def hold_out(items: Sequence[T], seed: int) -> tuple[list[T], list[T]]:
    """Splits items into (train, held out): a tenth of them, at least one, drawn by `seed`. The held-out ones come as
    they are drawn: in the order of their names, the first of them would be of one kind.
    """
    if len(items) < 2:
        raise ValueError(f"at least 2 captioned images or captions are needed to hold some out, got {len(items)}")
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(items))
    num_held_out = max(1, round(HELD_OUT_SHARE * len(items)))
    return [items[i] for i in sorted(order[num_held_out:])], [items[i] for i in order[:num_held_out]]


class DataSection(TypedDict):
    """Config section `data`."""

    source: str
    image_size: int
    num_train: int
    folder: str
    max_words: int


def make_source(data: DataSection, seed: int) -> ImageSource | None:
    """Builds the source that the config section `data` names; None where a run has no images of its own."""
    if data["source"] == "scenes":
        return SceneSource(seed, data["image_size"], data["num_train"])
    if data["source"] == "folder":
        return FolderSource(data["folder"], data["image_size"], seed, data["max_words"])
    return None


def training_captions(
    data: DataSection, num_val: int, seed: int, settings: Captions | None = None, path: str | Path | None = None
) -> dict[str, list[Prompt]]:
    """Captions of the images that models learn from, in the order of the source's images: "train", all of them, and
    "val", the first `num_val` held-out ones, or all that there are.

    Captions without images come from the prompt file `path`, as `settings`, config section data.captions, describes it;
    a tenth of them, drawn by `seed`, is held out.
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
    """Draws the training indices of one step, with replacement; a pure function of the arguments."""
    generator = np.random.Generator(np.random.Philox(key=[seed & (2**64 - 1), step]))
    return generator.integers(num_train, size=batch_size).tolist()


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"caption file {file} is not UTF-8 text (byte {error.start}); save it so") from error
