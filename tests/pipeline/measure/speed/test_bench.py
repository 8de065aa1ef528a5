"""Tests of the speed of several methods: whole batches, and steps that run as CUDA graphs."""

from types import SimpleNamespace

import pytest
import torch

from helpers.tiny_models import make_models
from lantern import stepping
from lantern.decoding import make_decoder
from lantern.methods import make_method
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.measure.speed import bench

CPU = torch.device("cpu")
ENCODER = WordEmbeddingEncoder(None, 16, 5, 0)
PROMPTS = [Prompt("p0", "a red circle"), Prompt("p1", "grass")]


@pytest.mark.parametrize("mode, num_runs", [("eager", 1), ("graph", 2)])
def test_the_batch_that_captures_graphs_does_not_count(monkeypatch, mode, num_runs):
    batches, seconds = [], iter([8.0, 2.0][-num_runs:])

    def decode(decoder, prompts, encoder, run_seed):
        batches.append(prompts)
        return None, next(seconds)

    monkeypatch.setattr(bench, "decode_timed", decode)
    job = SimpleNamespace(runner=SimpleNamespace(mode=mode), device=CPU)
    decoder = SimpleNamespace(runner=SimpleNamespace(mode=mode), stepped={mode: job}.__getitem__)
    found = bench.time_batch(decoder, PROMPTS, ENCODER, 3)
    assert found.images_per_s == 1.5 and found.peak_gib > 0 and len(batches) == num_runs
    for batch in batches:
        assert [prompt.text for prompt in batch] == ["a red circle", "grass", "a red circle"]
        assert len({prompt.id for prompt in batch}) == 3


def test_rounds_add_up_and_steps_as_graphs_count(monkeypatch):
    """Graphs are stand-ins that run the step again."""

    def capture(step, state, limits):
        return {limit: SimpleNamespace(replay=lambda: step(state)) for limit in limits}

    speeds = iter([4.0, 6.0, 5.0, 2.0])
    monkeypatch.setattr(stepping, "capture", capture)
    monkeypatch.setattr(bench, "time_batch", lambda *_: bench.BatchTime(next(speeds), 1.0))
    sampling = SamplingConfig(temperature=1.0, cfg_scale=2.0)
    decoders = [make_decoder(make_models(), make_method(name), sampling) for name in ("autoregressive", "jacobi")]
    for decoder in decoders:
        decoder.runner = stepping.StepRunner("auto", torch.device("cuda"), decoder.spec.name)
    rounds = bench.bench_rounds(decoders, PROMPTS, ENCODER, batch_size=3, num_rounds=2)
    first, second = (found.rows for found in rounds)
    assert [row["method"]["method_id"] for row in first] == ["autoregressive", "jacobi"]
    assert [row["images_per_s"] for row in first] == [4.0, 6.0] and [row["images_per_s"] for row in second] == [
        5.0,
        6.0,
    ]
    for before, after in zip(first, second, strict=True):
        assert after["latency_s"] <= before["latency_s"] and after["num_timed"] == 2
        assert (after["num_equal"], after["num_images"]) == (2, 2)
        assert after["forward_s"] == pytest.approx(after["latency_s"] * after["tokens_per_forward"] / 16)
    assert second[0]["speedup"] == 1 and second[0]["tokens_per_forward"] == 1
