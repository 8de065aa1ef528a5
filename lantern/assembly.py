"""Puts together what several scripts and the command line need from the config's sections."""

from __future__ import annotations

from typing import Any

from lantern.models.text import WordEmbeddingEncoder
from lantern.scenes import VOCABULARY


def make_text_encoder(text: dict[str, Any], data_source: str, seed: int) -> WordEmbeddingEncoder:
    """Builds the text encoder of a run.

    Args:
        text: config section `text`: caption_dim (channels), max_tokens (words).
        data_source: config key data.source; the embedded world's words are known, a folder's captions may hold any.
        seed: run seed, of the embeddings.
    """
    vocabulary = VOCABULARY if data_source == "scenes" else None
    return WordEmbeddingEncoder(vocabulary, text["caption_dim"], text["max_tokens"], seed)
