"""Tests of stored text features: they are read as they were encoded, and missing ones are named."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from lantern.prompts import Prompt
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.data.text_features import StoredTextEncoder, write_text_features

TEXTS = ["a red cat", "a blue dog on the grass", "night", "a red cat"]
PROMPTS = [Prompt(f"p-{number}", text) for number, text in enumerate(TEXTS)]
DESCRIPTION = {"t5": "tiny"}


@pytest.fixture
def encoder():
    return WordEmbeddingEncoder(None, caption_dim=8, max_tokens=6)


@pytest.fixture
def shards(encoder, tmp_path):
    paths = [tmp_path / f"features-{number}-of-2.safetensors" for number in (1, 2)]
    for number, path in enumerate(paths):
        write_text_features(path, PROMPTS[number::2], encoder, batch_size=1, description=DESCRIPTION)
    return paths


def test_stored_features_are_the_encoders_in_bfloat16(encoder, shards):
    stored = StoredTextEncoder(shards)
    assert (stored.caption_dim, stored.max_tokens) == (8, 6)
    order = [TEXTS[2], TEXTS[1], TEXTS[0], TEXTS[1]]  # from both files, one text twice
    features, mask = stored.encode(order)
    expected, expected_mask = encoder.encode(order)
    assert features.dtype == torch.float32 and mask.dtype == torch.bool
    assert torch.equal(mask, expected_mask)
    assert torch.equal(features, expected.bfloat16().float())
    assert (features[~mask] == 0).all()


def test_only_valid_tokens_are_stored(shards):
    tensors = load_file(shards[0])
    assert tensors["features"].dtype == torch.bfloat16
    assert tensors["features"].shape == (3 + 1, 8) and tensors["lengths"].tolist() == [3, 1]


def test_the_files_do_not_depend_on_the_batch_size(encoder, shards, tmp_path):
    write_text_features(tmp_path / "other.safetensors", PROMPTS[0::2], encoder, DESCRIPTION, 64)
    assert (tmp_path / "other.safetensors").read_bytes() == shards[0].read_bytes()


def test_a_text_that_is_not_stored_is_named(shards):
    with pytest.raises(
        ValueError, match=r"no text features are stored for 'a purple cow' \(3 texts are\).*encode_prompts"
    ):
        StoredTextEncoder(shards).encode([TEXTS[0], "a purple cow"])
    for text in ("A red cat", "a red cat "):
        with pytest.raises(ValueError, match=f"'{text}'"):
            StoredTextEncoder(shards).encode([text])


def test_no_features_are_read_before_they_are_asked_for(shards, monkeypatch):
    stored = StoredTextEncoder(shards)
    shards[1].unlink()  # holds the second and the fourth prompt
    assert stored.encode([TEXTS[2]])[1].sum() == 1


def test_damaged_and_missing_files_are_named(shards, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.safetensors"):
        StoredTextEncoder([tmp_path / "none.safetensors"])
    content = shards[0].read_bytes()
    for damaged, what in ((content[:-3], "truncated"), (content[:-1] + bytes([content[-1] ^ 1]), "damaged")):
        shards[0].write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"features-1-of-2\.safetensors is {what}"):
            StoredTextEncoder(shards)  # before any feature is used


def test_nothing_is_written_with_bad_features(tmp_path):
    path = tmp_path / "f.safetensors"

    class Broken(WordEmbeddingEncoder):
        def encode(self, texts):
            features, mask = super().encode(texts)
            features[texts.index("night")] = float("nan")
            return features, mask

    with pytest.raises(ValueError, match=r"prompt p-2 \('night'\) has features that are not finite"):
        write_text_features(path, PROMPTS[:3], Broken(None, 8, 6), {}, 3)
    assert not path.exists()
