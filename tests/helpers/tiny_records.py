"""Records of images that tiny models generate from a few prompts."""

from __future__ import annotations

from lantern.generation import generate_records
from lantern.prompts import Prompt
from lantern_models.text.words import WordEmbeddingEncoder

PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass", "a cat", "sand"])]


def make_records(decoder, batch_size, prompts=PROMPTS, **options):
    """Generate images of the prompts with a decoder. `options` go to `generate_records`."""
    encoder = WordEmbeddingEncoder(None, 16, 5, 0)
    return generate_records(decoder, prompts, encoder, run_seed=3, batch_size=batch_size, **options)
