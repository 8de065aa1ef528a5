"""Worlds: datasets whose captions follow a grammar. The attributes that a caption names can therefore be parsed.

A classifier is trained to recognise these attributes in images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lantern_pipeline.world import fashion, scenes


@dataclass(frozen=True)
class World:
    """What the captions of a dataset may say."""

    vocabulary: tuple[str, ...]  # all words of the captions
    captions: str  # regular expression of the captions, in lower case and without punctuation
    heads: Mapping[str, tuple[str, ...]]  # attribute -> its possible values
    attributes_of: Callable[[str], dict[str, str] | None]  # text -> attributes; None for other texts
    example: str  # a caption for messages


# The keys are the values of config key data.source.
WORLDS = {
    "scenes": World(
        scenes.VOCABULARY,
        scenes.CAPTIONS,
        scenes.HEADS,
        scenes.attributes_of,
        "a small white ring above a large blue triangle on grass",
    ),
    "fashion": World(
        fashion.VOCABULARY,
        fashion.CAPTIONS,
        fashion.HEADS,
        fashion.attributes_of,
        "a dark patterned dress",
    ),
}


def world_with(vocabulary: Sequence[str] | None) -> World | None:
    """Return the world with exactly this vocabulary, in its order, or None if there is none."""
    return next((world for world in WORLDS.values() if list(world.vocabulary) == list(vocabulary or ())), None)
