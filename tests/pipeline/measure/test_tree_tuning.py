"""Tuned trees: the fastest of those that the config names, on prompts that no table reports."""

from __future__ import annotations

import pandas as pd
import pytest

from conftest import make_models
from lantern.decoding import make_decoder
from lantern.io import write_json
from lantern.methods import make_method
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern.text_encoders.words import WordEmbeddingEncoder
from lantern_pipeline.config.methods import candidates_of
from lantern_pipeline.data.decoders import resolve_tree
from lantern_pipeline.measure import tree_tuning
from lantern_pipeline.measure.tree_tuning import choose_tree, unreported_prompts

PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass"])]
ENCODER = WordEmbeddingEncoder(None, 16, 5, 0)
TREES = {"jacobi": ["chain2", "mine"], "hybrid": ["chain2+chain1"], "draft_model": ["chain1", "chain3", "mine"]}
CONFIG = {"tree_tuning": TREES, "trees": {"mine": [[0], [1], [0, 0]]}}


def candidates(name, **parts):
    tuned = make_method(name, tree="tuned", method_id=f"{name}-tuned", **parts)
    sampling = SamplingConfig(temperature=1.0, cfg_scale=2.0)
    return [make_decoder(make_models(), spec, sampling, stepping="eager") for spec in candidates_of(tuned, CONFIG)]


@pytest.mark.parametrize(
    ("name", "trees"),
    [("coupled", "draft_model"), ("eagle1", "draft_model"), ("jacobi", "jacobi"), ("hybrid", "hybrid")],
)
def test_a_method_decodes_with_the_tree_that_is_chosen(name, trees, tmp_path):
    found = choose_tree(candidates(name), PROMPTS, ENCODER, run_seed=0)
    assert list(found["timed"]) == TREES[trees] and found["tree"] in TREES[trees]
    assert all(timed["seconds"] > 0 and timed["tokens_per_forward"] >= 1 for timed in found["timed"].values())
    write_json(tmp_path / "s0.json", {"methods": {"a T1": found}})
    tuned = resolve_tree(make_method(name, tree="tuned", method_id="a"), 1.0, tmp_path / "s0.json")
    expected = next(one for one in candidates(name) if one.spec.tree == found["tree"])
    assert (tuned.tree, tuned.tree_shape) == ("tuned", expected.spec.tree_shape)


def test_the_fastest_is_chosen_by_the_median_ratio_of_its_own_stepping(monkeypatch):
    """One slow image does not decide, and of steps that are captured the eager ones, timed too, do not count."""
    seconds = {"chain1": [6.0, 3.0, 2.0], "chain3": [3.0, 2.0, 5.0], "mine": [4.0, 2.5, 1.5]}  # of each prompt
    forwards = {"chain1": 16, "chain3": 4, "mine": 8}
    decoders = candidates("coupled")
    for decoder in decoders:
        decoder.runner.mode = "graph"

    def timed(given, prompts, encoder, *, run_seed, num_warmup):
        assert (given, prompts, run_seed, num_warmup) == (decoders, PROMPTS, 7, 1)
        rows = [
            (tree, mode, prompt.id, one if mode == "graph" else forwards[tree], forwards[tree])
            for tree, found in seconds.items()
            for mode in ("graph", "eager")
            for prompt, one in zip(PROMPTS, found, strict=True)
        ]
        columns = ["method_id", "stepping", "prompt_id", "seconds", "target_forwards"]
        return pd.DataFrame(rows, columns=columns), []

    monkeypatch.setattr(tree_tuning, "measure_latency", timed)
    found = choose_tree(decoders, PROMPTS, ENCODER, run_seed=7)
    assert (found["tree"], found["tree_shape"]) == ("chain3", ((0,), (0, 0), (0, 0, 0)))
    assert found["timed"]["mine"] == {"seconds": pytest.approx(8 / 3), "tokens_per_forward": 2.0}


def test_a_tree_that_a_method_cannot_take_is_named_with_its_key():
    tuned = make_method("coupled", tree="tuned")
    wrong = {**CONFIG, "tree_tuning": {**TREES, "draft_model": ["chain3", "chian3"]}}
    with pytest.raises(ValueError, match=r"config key tree_tuning\.draft_model: tree must be one of .*'chian3'"):
        candidates_of(tuned, wrong)


def test_reported_prompts_are_left_out_by_their_texts():
    found = [Prompt("v0", "grass"), Prompt("v1", "sand"), Prompt("v2", "a cat"), Prompt("v3", "a dog")]
    assert [prompt.id for prompt in unreported_prompts(found, PROMPTS, 2)] == ["v1", "v2"]
    with pytest.raises(ValueError, match=r"all 1 prompts that trees could be tuned on are reported; ask for fewer"):
        unreported_prompts(found[:1], PROMPTS, 2)
