"""Tokenizers of a few words, with the special tokens that a family's prompts need, in the published format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers


def save_tokenizer(path: Path, specials: Mapping[str, int], words: Sequence[str], first_word: int = 100) -> Path:
    """`specials` are names and ids; the words, and <unk> before them, have the ids from `first_word` on."""
    vocabulary = {**specials, **{word: first_word + i for i, word in enumerate(["<unk>", *words])}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    tokenizer.save(str(path))
    return path
