"""Puts together what several scripts and the command line need from the config's sections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lantern.io import load_tensors
from lantern.models.text import TextEncoder, WordEmbeddingEncoder
from lantern_pipeline.data.code_dataset import CodeDataset
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.text_features import StoredTextEncoder
from lantern_pipeline.world.scenes import VOCABULARY


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


def load_codes(codes: Sequence[Path | str], captions: Path | str, encoder: TextEncoder) -> CodeDataset:
    """Joins codes with their captions by id.

    Args:
        codes: files with the tensor `codes`, (images, tokens), and the images' ids in the metadata; the shards of one
            split in any order.
        captions: prompt file with the ids and captions of that split; captions without codes are left out.
        encoder: of captions.

    Returns:
        The images in the order of the captions, however they were sharded.

    Raises:
        ValueError: an image without a caption; names its id.
    """
    rows: dict[str, torch.Tensor] = {}
    for path in codes:
        tensors, metadata = load_tensors(path)
        rows |= zip(metadata["ids"], tensors["codes"], strict=True)
    texts = {prompt.id: prompt.text for prompt in read_prompts(captions)}
    if foreign := next((id for id in rows if id not in texts), None):
        raise ValueError(
            f"{captions} has no caption for the image {foreign} of {codes[0]}; run rule write_captions again"
        )
    ids = [id for id in texts if id in rows]
    return CodeDataset(torch.stack([rows[id] for id in ids]), [texts[id] for id in ids], encoder)
