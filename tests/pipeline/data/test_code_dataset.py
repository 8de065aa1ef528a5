"""Tests of codes with their captions."""

import pytest
import torch

from lantern.io import save_tensors
from lantern.prompts import Prompt
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.data.code_dataset import load_codes, step_indices
from lantern_pipeline.data.prompt_files import write_prompts

ENCODER = WordEmbeddingEncoder(None, 8, 4, 0)


@pytest.fixture
def coded(tmp_path):
    """Write five captions, and the codes of four of them in two shards."""
    write_prompts(tmp_path / "captions.jsonl", [Prompt(f"p{i}", f"word {i}") for i in range(5)])
    for shard in (0, 1):
        codes = torch.arange(shard, 4, 2)[:, None].repeat(1, 3)
        ids = [f"p{i}" for i in range(shard, 4, 2)]
        save_tensors(tmp_path / f"{shard}.safetensors", {"codes": codes}, {"ids": ids})
    return tmp_path


def test_codes_meet_their_captions_in_the_order_of_the_captions(coded):
    shards = [coded / "1.safetensors", coded / "0.safetensors"]
    dataset = load_codes(shards, coded / "captions.jsonl", ENCODER)
    assert dataset.codes[:, 0].tolist() == [0, 1, 2, 3]
    assert dataset.captions == [f"word {i}" for i in range(4)]


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    orders = [tuple(step_indices(20, 20, seed, epoch).tolist()) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9 and all(sorted(order) == list(range(20)) for order in orders)
