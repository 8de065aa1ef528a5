"""Stored text features: computed once per prompt set, then read by everything that needs them.

A file holds the valid tokens' features of its prompts one after the other, in bfloat16, without pads: a prompt of 14
tokens takes 56 KiB at 2048 channels, where the padded one would take 480. Its header is the index: ids and hashes of
the texts, in the same order.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from tqdm import tqdm

from lantern.io import load_tensors, save_tensors
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt

logger = logging.getLogger(__name__)

KIND = "text_features"
# What files that are read together must agree on.
_COMMON = ("caption_dim", "max_tokens", "encoder")


def hash_text(text: str) -> str:
    """Hash of a text as a prompt has it, before any cleaning: 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_text_features(
    path: str | Path,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    batch_size: int,
    description: dict[str, Any] | None = None,
) -> None:
    """Encode prompts and store the features of their valid tokens, atomically.

    Args:
        path: file to write, *.safetensors.
        prompts: unique ids.
        encoder: what encodes them.
        batch_size: prompts encoded together.
        description: of the encoder, JSON values; files with different ones are not read together.

    Raises:
        ValueError: no prompts, or a feature that is not a number.
    """
    if not prompts:
        raise ValueError(f"{path}: there are no prompts to encode; ask for fewer shards (config key text.num_shards)")
    rows, lengths = [], []
    for begin in tqdm(range(0, len(prompts), batch_size), desc="encoding prompts", unit="batch", disable=None):
        batch = prompts[begin : begin + batch_size]
        features, mask = encoder.encode([prompt.text for prompt in batch])
        is_finite = features.isfinite().all(-1).all(-1)
        if not is_finite.all():
            bad = batch[int(is_finite.int().argmin())]
            raise ValueError(
                f"prompt {bad.id} ({bad.text!r:.80}) has features that are no numbers; check the encoder's weights"
            )
        rows.append(features[mask].bfloat16())  # (valid tokens, dim)
        lengths.append(mask.sum(1, dtype=torch.int32))
    metadata = {
        "kind": KIND,
        "caption_dim": encoder.caption_dim,
        "max_tokens": encoder.max_tokens,
        "encoder": description or {},
        "ids": [prompt.id for prompt in prompts],
        "hashes": [hash_text(prompt.text) for prompt in prompts],
    }
    save_tensors(path, {"features": torch.cat(rows), "lengths": torch.cat(lengths)}, metadata)


@dataclass(frozen=True)
class _Place:
    """Where a text's features lie: rows begin to end of the tensor in a file."""

    path: Path
    begin: int
    end: int


class StoredTextEncoder:
    """Reads stored features; a `lantern.models.text.TextEncoder` that holds no model and no features.

    The files are checked and the index is read at once, features when asked for. Files may be those of several prompt
    sets.

    Args:
        paths: files of `write_text_features`.

    Attributes:
        caption_dim: width of a feature.
        max_tokens: rows of a text's features.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: no file, a damaged or foreign file, files of different encoders, or an id with two texts.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        if not paths:
            raise ValueError("there are no text features to read; run the rule encode_prompts")
        self._places: dict[str, _Place] = {}
        self._hashes: dict[str, str] = {}
        self._common: dict[str, Any] = {}
        self._files: dict[Path, Any] = {}
        for path in map(Path, paths):
            self._read_index(path)
        self.caption_dim: int = self._common["caption_dim"]
        self.max_tokens: int = self._common["max_tokens"]

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Read the features of texts; see `lantern.models.text.TextEncoder.encode`.

        Raises:
            ValueError: a text has no stored features; names it.
        """
        places = [self._find(text) for text in texts]
        features = torch.zeros(len(texts), self.max_tokens, self.caption_dim)
        mask = torch.zeros(len(texts), self.max_tokens, dtype=torch.bool)
        for path in dict.fromkeys(place.path for place in places):
            if path not in self._files:  # kept open: the header of a large file takes milliseconds to read
                self._files[path] = safe_open(path, framework="pt")
            stored = self._files[path].get_slice("features")
            for row, place in enumerate(places):
                if place.path == path:
                    features[row, self.max_tokens - (place.end - place.begin) :] = stored[place.begin : place.end]
                    mask[row, self.max_tokens - (place.end - place.begin) :] = True
        return features, mask

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError unless every prompt's features are stored under its id, for the text that it has."""
        for prompt in prompts:
            self._find(prompt.text)
            if self._hashes.get(prompt.id) != hash_text(prompt.text):
                found = "for another text" if prompt.id in self._hashes else "under another id only"
                raise ValueError(
                    f"prompt {prompt.id}: text features are stored {found}; run the rule encode_prompts again"
                )

    def _find(self, text: str) -> _Place:
        place = self._places.get(hash_text(text))
        if place is None:
            raise ValueError(
                f"no text features are stored for {text!r:.200} ({len(self._places)} texts are); add it to a prompt "
                "set and run the rule encode_prompts"
            )
        return place

    def _read_index(self, path: Path) -> None:
        metadata, ends = _read_header(path)
        common = {key: metadata[key] for key in _COMMON}
        self._common = self._common or common
        for key in _COMMON:
            if common[key] != self._common[key]:
                raise ValueError(
                    f"{path}: {key} should be {self._common[key]} as in the other text features, found {common[key]}; "
                    "run the rule encode_prompts again for all prompt sets"
                )
        begin = 0
        for id, text_hash, end in zip(metadata["ids"], metadata["hashes"], ends, strict=True):
            if self._hashes.setdefault(id, text_hash) != text_hash:
                raise ValueError(
                    f"{path}: prompt {id} has another text than in an earlier file; give prompts unique ids"
                )
            self._places[text_hash] = _Place(path, begin, end)
            begin = end


def _read_header(path: Path) -> tuple[dict[str, Any], list[int]]:
    """Metadata, and where each prompt's rows end; the whole file is compared with its checksum, none of it is kept."""
    tensors, metadata = load_tensors(path)
    if metadata.get("kind") != KIND:
        raise ValueError(
            f"{path} should hold {KIND}, found {metadata.get('kind', 'no kind at all')}; delete it and run the rule "
            "encode_prompts"
        )
    return metadata, tensors["lengths"].long().cumsum(0).tolist()
