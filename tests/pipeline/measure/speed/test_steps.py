"""Tests of the time of decoding steps."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_models import make_models
from lantern.decoding import make_decoder
from lantern.methods import make_method
from lantern.sampling import SamplingConfig
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.measure.speed import steps

ENCODER = WordEmbeddingEncoder(None, 16, 5, 0)


class Encoder:
    """Encoder of the empty texts of `fill`."""

    def encode(self, texts):
        """Encode any text in their place."""
        return ENCODER.encode(["grass"] * len(texts))


def make_decoders(*names):
    models, sampling = make_models(), SamplingConfig(temperature=1.0, cfg_scale=2.0)
    return [make_decoder(models, make_method(name, **parts), sampling) for name, parts in names]


def test_a_step_emits_tokens_of_every_image():
    (decoder,) = make_decoders(("jacobi", {"tree": "chain3"}))
    state = steps.fill(decoder, Encoder(), 3)
    before = state.lengths.clone()
    steps.run_step(decoder, state)
    assert len(before) == 3 and (state.lengths > before).all()


def test_methods_take_turns_and_a_summary_has_the_rounds_so_far(monkeypatch):
    names = [("autoregressive", {}), ("jacobi", {"tree": "chain3"}), ("hybrid", {"tree": "chain4+chain2"})]
    # seconds of a step at batch 1 and of a batch, method by method
    seconds = iter([1.0, 4.0, 2.0, 6.0, 3.0, 9.0, 2.0, 4.0, 3.0, 8.0, 8.0, 9.0])
    turns = []

    def time_block(decoder, state):
        turns.append((decoder.spec.name, len(state.lengths)))
        return next(seconds)

    monkeypatch.setattr(steps, "_time_block", time_block)
    first, second = steps.step_rounds(make_decoders(*names), Encoder(), batch_size=2, num_rounds=2)
    assert turns == 2 * [(name, size) for name, _ in names for size in (1, 2)]
    assert [row["num_drafts"] for row in first] == [0, 3, 6]
    assert [row["relative_step_cost"] for row in first] == [1.0, 2.0, 3.0]
    assert [row["batch_forward_s"] for row in second] == [4.0, 7.0, 9.0]
    assert [second[1][f"relative_step_cost{end}"] for end in ("", "_low", "_high")] == [1.75, 1.5, 2.0]
    assert [second[2][f"forward_s{end}"] for end in ("", "_low", "_high")] == [5.5, 3.0, 8.0]
    assert second[0]["peak_memory_gib"] > 0


def test_the_baseline_comes_first():
    with pytest.raises(ValueError, match="the first decoder must be autoregressive, got jacobi"):
        next(steps.step_rounds(make_decoders(("jacobi", {})), Encoder(), batch_size=1, num_rounds=1))


def test_a_graph_is_replayed(monkeypatch):
    (decoder,) = make_decoders(("autoregressive", {}))
    state, replayed = steps.fill(decoder, Encoder(), 1), []
    state.graphs = {state.cache.num_used: type("Graph", (), {"replay": lambda self: replayed.append(1)})()}
    steps.run_step(decoder, state)
    assert replayed == [1] and torch.equal(state.num_steps, torch.zeros_like(state.num_steps))
