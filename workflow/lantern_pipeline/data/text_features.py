"""Stored text features: computed once per prompt set, then read by everything that needs them.

A file holds the valid tokens' features of its prompts one after the other, in bfloat16, without pads: a prompt of 14
tokens takes 56 KiB at 2048 channels, where the padded one would take 480. Its header is the index: hashes of
the texts, in the same order.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor
from tqdm import tqdm

from lantern.io import load_tensors, save_tensors
from lantern.prompts import Prompt
from lantern.text_encoders.base import TextEncoder

logger = logging.getLogger(__name__)


def hash_text(text: str) -> str:
    """Hash of a text as a prompt has it, before any cleaning: 32 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_text_features(
    path: str | Path,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    description: dict[str, object] | None = None,
    batch_size: int = 16,
) -> None:
    """Encodes prompts, `batch_size` together, and stores the features of their valid tokens, atomically; `description`
    says in JSON values by what encoder.
    """
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
        "caption_dim": features.shape[2],
        "max_tokens": features.shape[1],
        "encoder": description or {},
        "hashes": [hash_text(prompt.text) for prompt in prompts],
    }
    save_tensors(path, {"features": torch.cat(rows), "lengths": torch.cat(lengths)}, metadata)


class StoredTextEncoder:
    """A `TextEncoder` that reads what `write_text_features` wrote, for one prompt set or several.

    The files are checked and their index is read at once, features when they are asked for.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._places: dict[str, tuple[Path, int, int]] = {}  # by a text's hash: file, first row, row behind the last
        self._files: dict[Path, safe_open] = {}
        for path in map(Path, paths):
            self._read_index(path)

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """See `TextEncoder.encode`; a text without stored features is an error that names it."""
        places = [self._find(text) for text in texts]
        features = torch.zeros(len(texts), self.max_tokens, self.caption_dim)
        mask = torch.zeros(len(texts), self.max_tokens, dtype=torch.bool)
        for path in dict.fromkeys(file for file, _, _ in places):
            if path not in self._files:  # kept open: the header of a large file takes milliseconds to read
                self._files[path] = safe_open(path, framework="pt")
            stored = self._files[path].get_slice("features")
            for row, (file, begin, end) in enumerate(places):
                if file == path:
                    first = self.max_tokens - (end - begin)
                    features[row, first:], mask[row, first:] = stored[begin:end], True
        return features, mask

    def _find(self, text: str) -> tuple[Path, int, int]:
        if (place := self._places.get(hash_text(text))) is None:
            raise ValueError(
                f"no text features are stored for {text!r:.200} ({len(self._places)} texts are); add it to a prompt "
                "set and run the rule encode_prompts"
            )
        return place

    def _read_index(self, path: Path) -> None:
        tensors, metadata = load_tensors(path)  # the whole file is compared with its checksum
        self.caption_dim, self.max_tokens = metadata["caption_dim"], metadata["max_tokens"]
        begin, ends = 0, tensors["lengths"].long().cumsum(0).tolist()
        for text_hash, end in zip(metadata["hashes"], ends, strict=True):
            self._places[text_hash] = (path, begin, end)
            begin = end
