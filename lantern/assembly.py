"""Puts together what several scripts and the command line need from the config's sections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lantern.data import ImageSource
from lantern.io import load_tensors
from lantern.metrics.scores import Rulers
from lantern.models import recogniser, tokenizer
from lantern.models.clip import ClipScorer
from lantern.models.target import load_target
from lantern.models.text import TextEncoder, WordEmbeddingEncoder
from lantern.scenes import VOCABULARY
from lantern.training.data import CodeDataset


def make_text_encoder(text: dict[str, Any], data_source: str, seed: int) -> WordEmbeddingEncoder:
    """Builds the text encoder of a run.

    Args:
        text: config section `text`: caption_dim (channels), max_tokens (words).
        data_source: config key data.source; the embedded world's words are known, a folder's captions may hold any.
        seed: run seed, of the embeddings.
    """
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


def load_rulers(files: Any, text: dict[str, Any], data_source: str, seed: int, device: torch.device) -> Rulers:
    """Loads what images are measured with.

    Args:
        files: paths as attributes: tokenizer, recogniser, clip, target.
        text: config section `text`.
        data_source: config key data.source.
        seed: run seed, of the word embeddings.
        device: where to measure.
    """
    return Rulers(
        tokenizer.load_model(files.tokenizer).to(device),
        recogniser.load_model(files.recogniser).to(device),
        ClipScorer.from_checkpoint(files.clip, device=device),
        load_target(files.target).to(device),
        make_text_encoder(text, data_source, seed),
    )
