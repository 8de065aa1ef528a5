"""Lines in parallel beside the target in full context."""

from __future__ import annotations

import torch

from lantern.decoding import make_decoder
from lantern.generation import decode_timed
from lantern.methods import make_method
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_pipeline.data.text_encoders import WordEmbeddingEncoder
from lantern_pipeline.metrics.missing_context import measure_missing_context

PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass"])]


def measure(models, window: int, max_nodes: int = 48, batch_size: int = 2):
    decoder = make_decoder(models, make_method("zipar", window=window), SamplingConfig(top_k=8, cfg_scale=2.0))
    encoder = WordEmbeddingEncoder(None, 16, 5, 0)
    options = {"run_seed": 3, "max_nodes": max_nodes, "batch_size": batch_size}
    return decode_timed(decoder, PROMPTS, encoder, 3)[0], *measure_missing_context(decoder, PROMPTS, encoder, **options)


def test_nothing_is_missing_with_a_window_of_a_line(models):
    _, nodes, found = measure(models, 4)
    assert len(nodes) == 45 and nodes.image.bincount().tolist() == [15, 15, 15]
    assert float(found.tv_from(nodes.target_probs).max()) < 1e-4


def test_the_first_line_misses_nothing_and_what_follows_does(models):
    """All positions but 0, in order; what was drawn from gave the token that was drawn."""
    generation, nodes, found = measure(models, 2)
    tv = found.tv_from(nodes.target_probs).view(3, 15)
    assert float(tv[:, :3].max()) < 1e-4 and float(tv[:, 3:].mean()) > 0.01
    drawn = found.probs.view(3, 15, -1).gather(2, generation.codes[:, 1:, None])
    assert (drawn > 0).all() and torch.allclose(found.probs.sum(1), torch.ones(45))


def test_nodes_do_not_depend_on_the_batch(models):
    expected, found = (measure(models, 2, max_nodes=12, batch_size=size) for size in (3, 1))
    assert torch.equal(expected[1].image, found[1].image) and len(found[1]) < 12 + 1
    torch.testing.assert_close(expected[2].probs, found[2].probs)
