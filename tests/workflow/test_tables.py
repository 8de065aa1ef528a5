"""Tests of the tables of a finished tiny run: repeats, total variation, pairs, ablations, parts of a step, study."""

import json
import re

import pandas as pd
import pytest
import torch

from helpers.tiny_run import EXACT, METHODS, planned
from lantern.io import load_tensors, read_json
from lantern_pipeline.data.tables import read_table
from lantern_pipeline.measure.exactness.total_variation import RULES


def test_repeats_draw_other_images_and_are_pooled(finished):
    summary = pd.read_csv(finished.result("summary.csv")).set_index(["method_id", "repeat"])
    shards = [finished.result(f"generation/eagle2/seen/T1/{repeat}/1-of-1.safetensors") for repeat in ("s0n0", "s0n1")]
    codes = [load_tensors(shard)[0]["codes"] for shard in shards]
    assert not torch.equal(*codes)
    for method_id in METHODS:
        nll = summary.loc[method_id, "nll"]
        assert nll["pooled"] == pytest.approx((nll["s0n0"] + nll["s0n1"]) / 2, rel=1e-5)
    # one training seed, and draft models of ablations over training steps
    for name, expected in {"target": {"s0"}, "drafter": {"s0", "s0-3steps"}}.items():
        assert {path.name for path in finished.result(name).iterdir()} == expected


def test_every_method_is_compared_with_autoregressive_decoding_by_prompt(finished):
    paired = read_table(finished.result("paired.csv"))
    keys = ["method_id", "prompt_set", "temperature", "repeat", "metric"]
    assert not paired.duplicated(keys).any()
    metrics = {"nll", "clip_score", "prompt_accuracy", "pixel_mse", "feature_distance", "speedup"}
    assert set(paired["metric"]) == metrics
    assert len(paired) == (len(METHODS) - 1) * 3 * len(metrics)
    assert set(paired["repeat"]) == {"s0n0", "s0n1", "pooled"}
    exact = paired[paired["method_id"].isin(EXACT) & (paired["metric"] != "speedup")]
    assert (exact[["difference", "difference_low", "difference_high"]] == 0).all(axis=None)
    assert set(exact.loc[exact["metric"] == "pixel_mse", "conclusion"]) == {
        "identical images at n = 4",
        "identical images at n = 4 in 2 repeats",
    }


def test_the_premise_has_a_row_per_kind_of_other_codes_and_k(finished):
    premise = read_table(finished.result("premise.csv")).set_index(["neighbours", "k"])
    kinds = ("l2_normalised", "random")
    assert premise.index.tolist() == [("none", 0), *((kind, k) for kind in kinds for k in (1, 4))]
    assert premise["pixel_mse"].iloc[0] == 0 < premise["pixel_mse"].iloc[1:].min()
    assert premise["tv_mean_0.2"].iloc[0] < 1e-5
    assert (premise["acceptance_0.2"].iloc[0] <= premise["acceptance_0.2"] + 1e-9).all()
    measured = ["frechet_distance", "precision", "nll", "prompt_accuracy", "target_top1", "target_entropy"]
    assert premise[measured].notna().all(axis=None) and (premise["num_images"] == 4).all()


def test_exact_methods_keep_the_distribution_and_a_budget_is_kept(finished):
    law = read_table(finished.result("total_variation/methods.csv")).set_index("method_id")
    assert law.index.tolist() == METHODS
    expected = ["none", "enumeration", "coupling", "coupling", "coupling", "enumeration", "enumeration"]
    assert law["kind"].tolist() == expected
    assert set(law["repeat"]) == {"s0n0"} and set(law["prompt_set"]) == {"seen"}
    assert law.loc["eagle2", "tv_max"] < 1e-5 and law.loc["eagle2", "substitution_rate"] == 0
    for name in ("coupled", "jacobi", "hybrid"):
        assert law.loc[name, "substitution_rate"] == 0 < law.loc["proximity-k20", "substitution_rate"]
    assert 0 < law.loc["proximity-k20", "tv_mean"] < 1
    bounded = law.loc["bounded-k4-delta0.2"]
    assert 0 < bounded["tv_mean"] <= bounded["tv_max"] <= 0.2 + 1e-5
    assert bounded["tv_share_above_delta"] == 0 == bounded["tv_share_above_delta_high"]
    assert (law["num_images"].dropna() == 3).all() and (law["num_nodes"].dropna() <= 20).all()


def test_rules_are_compared_at_the_same_nodes(finished):
    folder = finished.result("total_variation")
    curves = read_table(folder / "curves.csv")
    assert set(curves["rule"]) == set(RULES) and set(curves["delta"]) == {0.1, 0.2}
    assert len(curves) == 2 * len(RULES) and curves["num_nodes"].nunique() == 1
    assert (curves[curves["rule"] == "bounded"]["tv_share_above_delta"] == 0).all()


def test_ablations_hold_their_points_beside_autoregressive_decoding(finished):
    neighbours, steps = (
        read_table(finished.result(f"ablations/{name}.csv")) for name in ("neighbours", "drafter_steps")
    )
    assert neighbours["method_id"].tolist() == ["autoregressive", "proximity-l2-k4", "proximity-random-k4"]
    jacobi = read_table(finished.result("ablations/jacobi_relaxed.csv")).set_index("method_id")
    assert jacobi.index.tolist() == ["autoregressive", "jacobi-chain3k2d1", "proximity-chain3-jacobi-k20"]
    assert jacobi["tokens_equal_autoregressive"].iloc[1] == 1 and jacobi["tv_mean"].notna().tolist() == [
        False,
        False,
        True,
    ]
    assert finished.result("codebook/l2.safetensors").is_file()
    assert steps["method_id"].tolist() == ["autoregressive", "coupled", "coupled"]
    assert steps["drafter_steps"].fillna(0).tolist() == [0, 3, 0]
    assert (steps["nll_change"] == 0).all() and (steps["tokens_equal_autoregressive"] == 1).all()
    drawn = {
        name: read_table(finished.result(f"ablations/{name}.images.csv")) for name in ("neighbours", "drafter_steps")
    }
    ids = {name: images.groupby("prompt_id").size().to_dict() for name, images in drawn.items()}
    assert ids["neighbours"] == {"seen-00000": 3, "seen-00001": 3}  # a number of prompts of its own
    assert ids["drafter_steps"] == {"seen-00000": 3, "seen-00001": 3, "seen-00002": 3}


def test_the_page_of_the_race_shows_every_method_at_the_pace_of_the_table(finished):
    (text,) = re.findall(r'id="data">(.*?)</script>', finished.result("race.html").read_text())
    data, latency = json.loads(text), read_table(finished.result("latency/s0n0.csv"))
    assert [method["id"] for method in data["methods"]] == METHODS and len(data["prompts"]) == 2
    exact = [run for prompt in data["prompts"] for run in prompt["runs"][: len(EXACT)]]
    assert all(run["differs"] == 0 and sum(run["lengths"]) == 16 for run in exact)
    for place, prompt in enumerate(["seen-00000", "seen-00001"]):
        rows = latency[(latency["prompt_id"] == prompt) & (latency["temperature"] == 1)].sort_values("seconds")
        rows = rows.drop_duplicates("method_id").set_index("method_id")  # of the fastest round
        for method, run in zip(METHODS, data["prompts"][place]["runs"], strict=True):
            assert sum(run["ms"]) == pytest.approx(1000 * rows.loc[method, "seconds"], rel=1e-3)
            assert len(run["ms"]) == rows.loc[method, "target_forwards"]


def test_the_page_of_the_study_is_written_from_a_finished_run(copy_of_finished):
    code, output = copy_of_finished.run("--", "build_study")
    assert code == 0, output + copy_of_finished.logs()
    assert set(planned(output)) == {"build_study", "total"}
    assert "<html" in copy_of_finished.result("study/study.html").read_text()
    kinds = [trial["kind"] for trial in read_json(copy_of_finished.result("study/key.json"))["trials"].values()]
    assert kinds.count("check") == 2 and 2 < len(kinds) <= 2 + 2 * 2
