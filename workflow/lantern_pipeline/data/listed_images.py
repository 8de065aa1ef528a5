"""Base class of image sources with a fixed, limited list of images per split, such as the files of a folder."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

from lantern.prompts import Prompt

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


class ListedSource(ABC, Generic[Item]):
    """A source whose *items*, such as files, each hold the data of one image.

    Indices beyond the end of a split begin again with its first image, and one warning is logged.
    """

    folder: Path  # named in warnings
    _has_repeated = False

    @abstractmethod
    def items(self, split: str) -> Sequence[Item]:
        """Return the items of a split."""

    @abstractmethod
    def caption_of(self, item: Item) -> str:
        """Return the caption of an item's image."""

    @abstractmethod
    def name_of(self, item: Item) -> str:
        """Return the name of an item's image, which is unique in its split."""

    def captions(self, split: str, indices: Sequence[int]) -> list[str]:
        """Return the captions of the images that `images` returns for the same arguments."""
        return [self.caption_of(item) for item in self.cycle(split, indices)]

    def prompts(self, split: str, num: int) -> list[Prompt]:
        """Return the captions of the first `num` images of a split as prompts, or all captions if there are fewer.

        The id of a prompt is "<split>-<name of the image>".
        """
        items = self.items(split)
        if num > len(items):
            logger.warning(
                "%s: %d captions of split %s were requested, but there are %d: these",
                self.folder,
                num,
                split,
                len(items),
            )
        prompts = []
        for item in items[:num]:
            try:
                prompts.append(Prompt(f"{split}-{self.name_of(item)}", self.caption_of(item)))
            except ValueError as error:  # the id is the file's name, which `Prompt` may refuse, as it may the caption
                raise ValueError(f"image {str(item)!r}: {error}") from error
        return prompts

    def cycle(self, split: str, indices: Sequence[int]) -> list[Item]:
        """Return the item of each index, modulo the number of items."""
        # Evaluation may ask for more held-out images than a small folder has.
        items = self.items(split)
        if not self._has_repeated and max(indices, default=0) >= len(items):
            self._has_repeated = True
            logger.warning(
                "%s: image %d of split %s was requested, but there are %d: they come again from the first; add images",
                self.folder,
                *(int(max(indices)) + 1, split, len(items)),
            )
        return [items[int(index) % len(items)] for index in indices]
