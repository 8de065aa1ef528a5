"""Puts together what several scripts and the command line need from the config's sections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lantern.data import ImageSource
from lantern.io import load_tensors
from lantern.models.text import TextEncoder, WordEmbeddingEncoder
from lantern.scenes import VOCABULARY
from lantern.text_features import StoredTextEncoder
from lantern.training.data import CodeDataset


def make_text_encoder(
    text: dict[str, Any], data_source: str, seed: int, features: str | Sequence[str] = ()
) -> TextEncoder:
    """Builds the text encoder of a run.

    Args:
        text: config section `text`: caption_dim (channels), max_tokens (words).
        data_source: config key data.source; the embedded world's words are known, a folder's captions may hold any.
        seed: run seed, of the embeddings.
        features: files of stored features, where text.encoder is t5.
    """
    if text["encoder"] == "t5":
        return StoredTextEncoder([features] if isinstance(features, str) else features)
    vocabulary = VOCABULARY if data_source == "scenes" else None
    return WordEmbeddingEncoder(vocabulary, text["caption_dim"], text["max_tokens"], seed)


def load_codes(path: Path | str, source: ImageSource, split: str, encoder: TextEncoder) -> CodeDataset:
    """Reads the codes of a split's first images and joins them with their captions.

    Args:
        path: file with the tensor `codes`, (images, tokens).
        source: where the images came from.
        split: of the source.
        encoder: of captions.
    """
    tensors, _ = load_tensors(path)
    return CodeDataset(tensors["codes"], source.captions(split, range(len(tensors["codes"]))), encoder)
