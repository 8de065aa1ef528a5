"""Tests of the timing of images and of their forward passes."""

from __future__ import annotations

import sys
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from helpers.tiny_models import make_models
from lantern import stepping
from lantern.decoding import Decoder, TreeDecoder, make_decoder
from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern.tree_shapes import DynamicTreeOptions
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.measure.speed import clocks, latency
from lantern_pipeline.measure.speed.latency import (
    COLUMNS,
    accepted_drafts,
    load_timed_images,
    measure_latency,
    save_timed_images,
)
from lantern_pipeline.measure.speed.speedups import pair_latency

ENCODER = WordEmbeddingEncoder(None, 16, 5, 0)
PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass"])]
RELAXED = {"acceptance": "additive", "residual": "paper", "neighbours": "l2", "k": 3, "delta": 0.3}
DYNAMIC = DynamicTreeOptions(num_nodes=6, depth=2, top_k=3)
SPECS = {
    "autoregressive": MethodSpec.of("autoregressive", method_id="autoregressive"),
    "exact": MethodSpec.of("exact", tree="chain3", drafts="coupled", method_id="exact"),
    "rejected": MethodSpec.of("rejected", tree="chain3", drafts="sampled", method_id="rejected"),
    "near": MethodSpec.of("near", tree="dynamic", drafts="top", **RELAXED, method_id="near", tree_shape=DYNAMIC),
}


def make_decoders(temperature: float = 1.0) -> list[Decoder]:
    models, sampling = make_models(), SamplingConfig(temperature=temperature, cfg_scale=2.0)
    return [make_decoder(models, spec, sampling) for spec in SPECS.values()]


def is_as_made(decoder: Decoder) -> bool:
    """Return whether no timer is left on the decoder."""
    return decoder.on_forward is None


@pytest.mark.parametrize("place", ["step", "score", "run_target"])
def test_decoders_are_left_as_they_were_when_decoding_fails(monkeypatch, place):
    decoder = make_decoders()[1]

    def fail(*arguments):
        raise FloatingPointError("logits are not finite")

    monkeypatch.setattr(TreeDecoder, place, fail)
    with pytest.raises(FloatingPointError, match="not finite"):
        measure_latency([decoder], PROMPTS, ENCODER, run_seed=0, num_warmup=0)
    assert is_as_made(decoder)


def test_every_method_is_timed_on_every_prompt():
    table, _ = measure_latency(make_decoders(0.0), PROMPTS, ENCODER, run_seed=0, num_warmup=1)
    assert list(table.columns) == COLUMNS
    pairs = {(method_id, prompt.id) for method_id in SPECS for prompt in PROMPTS}
    assert set(zip(table["method_id"], table["prompt_id"], strict=True)) == pairs and len(table) == len(pairs)
    assert (table["temperature"] == 0).all() and (table["stepping"] == "eager").all() and (table["round"] == 0).all()
    assert (table["seconds"] > 0).all() and (table["cpu_seconds"] > 0).all()
    assert (table.loc[table["method_id"] == "autoregressive", "target_forwards"] == 16).all()


def test_methods_take_turns_in_every_round_and_the_warm_up_does_not_count(monkeypatch):
    """The time of a prompt is that of its fastest round."""
    order, cores, seconds = [], iter(range(100)), iter([9.0] * 3 + [0.5] * 6 + [0.25] * 6)

    def decode(decoder, prompts, encoder, run_seed):
        order.append((decoder.spec.method_id, prompts[0].id, run_seed))
        decoder.on_forward()
        return SimpleNamespace(target_forwards=torch.tensor([4])), next(seconds)

    monkeypatch.setattr(latency, "decode_timed", decode)
    monkeypatch.setattr(latency, "_core_seconds", lambda: next(cores) * np.array([1.0, 3.0]))
    stubs = [
        SimpleNamespace(
            spec=SimpleNamespace(to_dict=lambda name=name: {"method_id": name}, method_id=name),
            sampling=SimpleNamespace(temperature=1.0),
            runner=stepping.StepRunner("eager", torch.device("cpu"), name),
            device=torch.device("cpu"),
        )
        for name in "abc"
    ]
    table, images = measure_latency(stubs, PROMPTS[:2], ENCODER, run_seed=7, num_warmup=1, num_rounds=2)
    assert order == [
        *(("c", "p1", 7), ("a", "p1", 7), ("b", "p1", 7)),  # warm-up
        *(("a", "p0", 7), ("b", "p0", 7), ("c", "p0", 7)),
        *(("b", "p1", 7), ("c", "p1", 7), ("a", "p1", 7)),
        *(("c", "p0", 7), ("a", "p0", 7), ("b", "p0", 7)),
        *(("a", "p1", 7), ("b", "p1", 7), ("c", "p1", 7)),
    ]
    assert table["method_id"].tolist() == list("abcbcacababc") and table["round"].tolist() == 6 * [0] + 6 * [1]
    assert (table["cpu_seconds"] == 1).all() and table["busy_elsewhere"].tolist() == 6 * [4.0] + 6 * [8.0]
    assert [image.method["method_id"] for image in images] == list("abcbca")
    assert all(image.step_seconds == [0.25] for image in images)


def test_captured_decoders_are_timed_eagerly_too(monkeypatch):
    def capture(step, state, limits):
        """Return stand-ins for CUDA graphs, which run the step again."""
        return {limit: SimpleNamespace(replay=lambda: step(state)) for limit in limits}

    monkeypatch.setattr(stepping, "capture", capture)
    decoders = make_decoders(0.0)
    for decoder in decoders:
        decoder.runner = stepping.StepRunner("auto", torch.device("cuda"), decoder.spec.name)
    table, images = measure_latency(decoders, PROMPTS, ENCODER, run_seed=0, num_warmup=1)
    assert (table.groupby(["method_id", "prompt_id"])["stepping"].agg(set) == {"eager", "graph"}).all()
    assert len(table) == 2 * len(images) == 2 * len(decoders) * len(PROMPTS)
    replayed = table[table["stepping"] == "graph"].set_index(["method_id", "prompt_id"])["seconds"]
    for image in images:
        assert sum(image.step_seconds) == pytest.approx(replayed[image.method["method_id"], image.prompt_id])
    paired = pair_latency(table.assign(prompt_set="seen", repeat=0)).set_index(["method_id", "prompt_id"])
    assert (paired.loc["autoregressive", "baseline"] == paired.loc["autoregressive", "seconds"]).all()
    assert paired["seconds"].to_dict() == replayed.to_dict()


def test_a_forward_lasts_until_the_next_begins_and_the_last_one_to_the_end(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    take = [5.0, 0.25, 0.5, 1.0]  # prefill and three steps

    def decode(decoder, prompts, encoder, run_seed):
        for seconds in take:
            decoder.on_forward()
            clock.now += seconds
        return SimpleNamespace(target_forwards=torch.tensor([4])), sum(take)

    monkeypatch.setattr(latency, "decode_timed", decode)
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    decoder = make_decoders()[0]
    _, (image,) = measure_latency([decoder], PROMPTS[:1], ENCODER, run_seed=0, num_warmup=0)
    assert image.step_seconds == take and is_as_made(decoder)


def test_on_a_gpu_forwards_are_timed_by_events_and_nothing_waits(monkeypatch):
    class Event:
        """Stand-in for a CUDA event: it stores the milliseconds at which it was recorded."""

        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.moment = next(moments)

        def elapsed_time(self, later):
            return later.moment - self.moment

    moments = iter([1000.0, 1020.0, 1025.0])
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", None)
    marks = [clocks.now(torch.device("cuda")) for _ in range(3)]
    assert latency._step_seconds(marks, seconds=0.036) == pytest.approx([0.020, 0.005, 0.011])


def test_timed_images_are_written_with_their_seconds_and_what_was_drafted_and_substituted(tmp_path):
    table, images = measure_latency(make_decoders(), PROMPTS, ENCODER, run_seed=0, num_warmup=1)
    rows = table.set_index(["method_id", "prompt_id"])
    assert len(images) == len(rows)
    save_timed_images(tmp_path / "images.safetensors", images)
    timed = load_timed_images(tmp_path / "images.safetensors")
    assert timed.prompt_ids == [image.prompt_id for image in images]
    assert timed.method_ids == [image.method["method_id"] for image in images]
    assert timed.metadata["temperature"] == 1.0 and timed.metadata["gpu"] is None
    assert timed.metadata["methods"] == {name: spec.to_dict() for name, spec in SPECS.items()}
    for row, image in enumerate(images):
        forwards, timing = len(image.step_seconds), rows.loc[(image.method["method_id"], image.prompt_id)]
        assert forwards == timing["target_forwards"] and min(image.step_seconds) > 0
        assert sum(image.step_seconds) == pytest.approx(timing["seconds"])
        assert torch.equal(timed.codes[row], image.generation.codes[0].int())
        assert timed.step_lengths[row].sum() == 16 and (timed.step_lengths[row] > 0).sum() == forwards
        assert timed.step_seconds[row, :forwards].tolist() == pytest.approx(list(image.step_seconds))
        # one token sampled by the target per forward pass, except in a last one at the end of the image
        assert forwards - 1 <= (~timed.is_draft[row]).sum() <= forwards
        assert not (timed.is_substituted[row] & ~timed.is_draft[row]).any()
    by_method = {name: [row for row, found in enumerate(timed.method_ids) if found == name] for name in SPECS}
    assert not timed.is_draft[by_method["autoregressive"]].any() and timed.is_draft[by_method["exact"]].any()
    assert timed.is_substituted[by_method["near"]].any()


@pytest.mark.parametrize(
    ("accepted", "expected"), [([2, 0, 2], "tddttddt"), ([3, 3], "tdddtddd"), ([3, 2], "tdddtddt")]
)
def test_accepted_drafts_come_before_the_targets_own_token_unless_the_image_ends_before(accepted, expected):
    codes = torch.zeros(1, 8, dtype=torch.int64)
    found = accepted_drafts(SimpleNamespace(codes=codes, accepted_lengths=torch.tensor([accepted])))
    assert "".join("d" if is_draft else "t" for is_draft in found[0]) == expected


@pytest.mark.parametrize("name", ["user", "nice", "system", "steal", "iowait", "irq"])
def test_whatever_keeps_a_core_from_being_idle_counts_as_busy(monkeypatch, name):
    fields = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
    times = dict.fromkeys(fields, 1.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda: namedtuple("Times", fields)(**times))
    before = latency._core_seconds()[1]
    times["idle"] += 100.0
    times["guest"] += 100.0  # within user time already
    times[name] += 3.0
    assert latency._core_seconds()[1] - before == 3.0


def test_without_psutil_the_load_of_other_processes_is_unknown(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    process, machine = latency._core_seconds()
    assert process > 0 and np.isnan(machine)
