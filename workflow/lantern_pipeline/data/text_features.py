"""Stored caption features, which are computed once per prompt set and then read by every job.

A file concatenates the features of all prompts in bfloat16, without padding. With 2048 channels, a prompt of 14 tokens
needs 56 KiB; padded to the maximal length it would need 480 KiB. The header of the file has the hash of each prompt's
text, in the order of the features. A second tensor has the number of tokens of each prompt.
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
from lantern.prompts import Prompt, TextEncoder

logger = logging.getLogger(__name__)


def hash_text(text: str) -> str:
    """Return the hash, 32 hexadecimal digits, by which a prompt's features are looked up."""
    # The text as given, before an encoder cleans it: a job that reads features need not know the encoder.
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_text_features(
    path: str | Path,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    description: dict[str, object] | None = None,
    batch_size: int = 16,
) -> None:
    """Encode prompts and store their features, atomically. `description` has JSON values for the header."""
    valid_features = []
    lengths = []
    for begin in tqdm(range(0, len(prompts), batch_size), desc="encoding prompts", unit="batch", disable=None):
        batch = prompts[begin : begin + batch_size]
        features, mask = encoder.encode([prompt.text for prompt in batch])
        # Found here, the error names the prompt. Later jobs would read nan from the file.
        is_finite = features.isfinite().all(-1).all(-1)  # (prompts,)
        if not is_finite.all():
            bad = batch[int(is_finite.int().argmin())]  # the first False
            raise ValueError(
                f"prompt {bad.id} ({bad.text!r:.80}) has features that are not finite; check the encoder's weights"
            )
        valid_features.append(features[mask].bfloat16())  # (valid tokens, dim)
        lengths.append(mask.sum(1, dtype=torch.int32))
    metadata = {
        "caption_dim": features.shape[2],
        "max_tokens": features.shape[1],
        "encoder": description or {},
        "hashes": [hash_text(prompt.text) for prompt in prompts],
    }
    save_tensors(path, {"features": torch.cat(valid_features), "lengths": torch.cat(lengths)}, metadata)


class StoredTextEncoder:
    """A `TextEncoder` that computes nothing: it reads features that `write_text_features` has stored in files.

    The constructor checks the files and reads which prompts they contain. Features are read when they are requested.
    """

    def __init__(self, paths: Sequence[str | Path]) -> None:
        # Hash of a text -> file, first and end of its tokens in the file's features.
        self._spans: dict[str, tuple[Path, int, int]] = {}
        self._files: dict[Path, safe_open] = {}
        for path in map(Path, paths):
            self._read_index(path)

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the stored features of some texts, float32, padded on the left with 0, and their mask."""
        spans = [self._find(text) for text in texts]
        features = torch.zeros(len(texts), self.max_tokens, self.caption_dim)
        mask = torch.zeros(len(texts), self.max_tokens, dtype=torch.bool)
        # File by file, since a prompt set may be stored in several shards.
        for path in dict.fromkeys(file for file, _, _ in spans):
            if path not in self._files:  # kept open: the header of a large file takes milliseconds to read
                self._files[path] = safe_open(path, framework="pt")
            stored = self._files[path].get_slice("features")
            for row, (file, begin, end) in enumerate(spans):
                if file == path:
                    first = self.max_tokens - (end - begin)
                    features[row, first:], mask[row, first:] = stored[begin:end], True
        return features, mask

    def _find(self, text: str) -> tuple[Path, int, int]:
        if (span := self._spans.get(hash_text(text))) is None:
            raise ValueError(
                f"no text features are stored for {text!r:.200} ({len(self._spans)} texts are); add it to a prompt "
                "set and run the rule encode_prompts"
            )
        return span

    def _read_index(self, path: Path) -> None:
        tensors, metadata = load_tensors(path)  # reads the whole file and verifies its checksum
        self.caption_dim, self.max_tokens = metadata["caption_dim"], metadata["max_tokens"]
        # Features follow each other without gaps, so lengths suffice to find them.
        begin, ends = 0, tensors["lengths"].long().cumsum(0).tolist()
        for text_hash, end in zip(metadata["hashes"], ends, strict=True):
            self._spans[text_hash] = (path, begin, end)
            begin = end
