"""The job that tunes trees, on random models."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from conftest import make_models
from lantern.decoding import make_decoder
from lantern.generation import decode_timed
from lantern.io import write_json
from lantern.methods import MethodSpec, make_method
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_pipeline.analysis.tuned_trees import ASSUMED, TreeTuner, timed_shapes, unreported_prompts
from lantern_pipeline.data.decoders import resolve_tree
from lantern_pipeline.data.text_encoders import WordEmbeddingEncoder

PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass"])]
COST = {"base": 1.0, "per_node": 0.0, "per_depth": 0.01}
SETTINGS = {
    "num_prompts": 3,
    "num_ranks": 3,
    "measured_depth": 2,
    "windows": [2, 5],
    "max_nodes": 8,
    "max_depth": 3,
    "num_steps": 2,
    "cost": COST,
}
SAMPLING = {"cfg_scale": 2.0, "top_k": 6, "top_p": 1.0, "filter_order": "top_k_first"}


@pytest.fixture(scope="module")
def tuner():
    models = make_models()
    return TreeTuner(
        models=replace(models, nearest_codes=None),
        tables={"l2_normalised": models.nearest_codes},
        sampling=SAMPLING,
        prompts=PROMPTS,
        encoder=WordEmbeddingEncoder(None, 16, 5, 0),
        settings=SETTINGS,
        batch_size=2,
        stepping="auto",
        timed_threads=1,
        seed=0,
    )


def tuned(name, **parts):
    return make_method(name, tree="tuned", method_id=f"{name}-tuned", **parts)


@pytest.fixture(scope="module")
def chosen(tuner):
    runs = [(tuned("coupled"), 1.0), (tuned("proximity", k=3), 0.0), (tuned("jacobi"), 1.0), (tuned("hybrid"), 1.0)]
    return tuner.tune(runs)


def test_every_tuned_method_gets_a_tree_that_it_decodes_with(tuner, chosen, tmp_path):
    write_json(tmp_path / "s0.json", chosen[0])
    specs = {name: (tuned(name), 1.0) for name in ("coupled", "jacobi", "hybrid")}
    for spec, temperature in [*specs.values(), (tuned("proximity", k=3), 0.0)]:
        found = resolve_tree(spec, temperature, tmp_path / "s0.json")
        assert found.tree == "tuned" and found.tree_shape
        decoder = tuner._decoder(found, temperature)
        assert decode_timed(decoder, PROMPTS[:1], tuner.encoder, 0)[0].codes.shape == (1, 16)


def test_the_file_says_how_the_choice_was_made(chosen):
    trees = json.loads(json.dumps(chosen[0]))
    assert trees["num_prompts"] == 3
    assert list(trees["methods"]) == ["coupled-tuned T1", "proximity-tuned T0", "jacobi-tuned T1", "hybrid-tuned T1"]
    for found in trees["methods"].values():
        assert list(found["best"]) == ["batch 1", "batch 2"]
        assert found["tree_shape"] == found["best"]["batch 1"]["tree_shape"]
        for best in found["best"].values():
            assert best["tokens_per_forward"] >= 1 and best["speedup"] > 0
            assert min(best["cost"].values()) >= 0
    assert len(trees["methods"]["coupled-tuned T1"]["acceptance"]["by_rank"]) == 3
    assert list(trees["methods"]["jacobi-tuned T1"]["acceptance"]["by_window"]) == ["2", "5"]


def test_predictions_hold_every_cost_and_both_marked_trees(chosen):
    table = chosen[1]
    assert set(table["cost"]) == {"batch 1", "batch 2", ASSUMED}
    for (method_id, _, cost), rows in table.groupby(["method_id", "temperature", "cost"]):
        curve, marked = rows[rows["mark"] == "best of its size"], rows.set_index("mark")
        tree = marked.loc["tuned"]
        if cost == "batch 1":
            assert tree["speedup"] == curve["speedup"].max()
        if cost == ASSUMED:
            assert tree["speedup"] == pytest.approx(tree["tokens_per_forward"] / (1 + 0.01 * tree["depth"]))
        # of the published windows of nine drafts nothing is known where nine was not measured
        assert ("published" in marked.index) == (method_id in ("coupled-tuned", "proximity-tuned"))
    assert (table["tree"] == "tuned").all() and set(table["method"]) == {"coupled", "proximity", "jacobi", "hybrid"}


def test_timed_trees_tell_nodes_from_depths():
    for drafts in ("coupled", "sampled", "hybrid"):
        shapes = timed_shapes(drafts, SETTINGS)
        assert len(shapes) == 4
        for shape in shapes:
            MethodSpec.of("a", tree="tuned", drafts=drafts, tree_shape=shape)
    assert [len(shape) for shape in timed_shapes("jacobi", SETTINGS)] == [2, 3, 5]


def test_reported_prompts_are_left_out_by_their_texts():
    candidates = [Prompt("v0", "grass"), Prompt("v1", "sand"), Prompt("v2", "a cat"), Prompt("v3", "a dog")]
    assert [prompt.id for prompt in unreported_prompts(candidates, PROMPTS, 2)] == ["v1", "v2"]
    with pytest.raises(ValueError, match=r"all 1 prompts that trees could be tuned on are reported; ask for fewer"):
        unreported_prompts(candidates[:1], PROMPTS, 2)


def test_what_is_measured_is_what_decoding_gives(tuner):
    """Of the tree that was measured itself, the expectation is its mean over the steps."""
    acceptance = tuner.measure_acceptance(tuned("jacobi"), 1.0)
    shape = make_method("jacobi", tree="chain5k3d1").tree_shape
    decoder = make_decoder(tuner.models, tuned("jacobi", tree_shape=shape), SamplingConfig(temperature=1.0, **SAMPLING))
    forwards = decode_timed(decoder, PROMPTS, tuner.encoder, 0)[0].target_forwards - 1
    assert acceptance.candidate(shape).tokens == pytest.approx(3 * 15 / int(forwards.sum()))
