"""Findings: the words follow the numbers, whichever way they fall."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from result_tables import METHODS, SETTINGS, join, make_tables, with_changes

from conftest import ROOT
from lantern.methods import MethodSpec
from lantern_pipeline.analysis.findings import MIN_TIMED, caption_numbers, find_answers, with_interval
from lantern_pipeline.analysis.summary import build_summary

EXACT, RELAXED, COST = "Exact, and faster?", "Relaxed, and faster still?", "At what cost?"
BOUND, RULES = "Is delta a bound?", "Does proximity beat the published rules?"
NEIGHBOURS, MODELS = "Do nearest codes beat others?", "How good are the models?"
REPORTS = {
    "clip": {"val_image_to_text_accuracy": 0.99, "val_text_to_image_accuracy": 0.98, "num_candidates": 32},
    "attribute_classifier": {"val": {"accuracy": 0.995}, "unseen": {"accuracy": 0.9}},
    "tokenizer": {"psnr_db": 23.4, "codes_used_share": 0.97, "accuracy": 0.96},
    "target": {"val_cross_entropy": 3.456},
}


@pytest.fixture(scope="module")
def table():
    return build_summary(make_tables(), settings=SETTINGS, seed=0)


def change(table, method, **values):
    """The table with cells of some method replaced."""
    changed = table.copy()
    for name, value in values.items():
        changed.loc[changed["method_id"] == method, name] = value
    return changed


def make_curves(bounded: float = 0.09, published: float = 0.3) -> pd.DataFrame:
    rules = {"sampled_paper": published, "top_children": published, "top_official": published + 0.1, "bounded": bounded}
    rows = [
        {"rule": rule, "label": rule, "delta": 0.1, "tv_mean": tv, "tv_mean_low": tv - 0.01, "tv_mean_high": tv + 0.01}
        | {"tv_max": tv, "tv_share_above_delta": float(tv > 0.1), "num_nodes": 300}
        for rule, tv in rules.items()
    ]
    return pd.DataFrame(rows)


def ablation(column: str, costs: dict[str, float]) -> pd.DataFrame:
    rows = [
        {"method": "proximity", "neighbours": "l2_normalised", **{column: name}, "method_id": f"{name}{k}"}
        | {"prompt_id": f"p{p}", "num_tokens": 12, "target_forwards": 6 - k, "nll": 3 + cost * k + 0.01 * p}
        for name, cost in costs.items()
        for k in (0, 1)
        for p in range(6)
    ]
    return pd.DataFrame(rows)


def find(summary, curves=None, ablations=None, reports=None):
    """Question -> finding."""
    curves = make_curves() if curves is None else curves
    found = find_answers(summary, curves, ablations or {}, reports or {}, settings=SETTINGS, seed=0)
    assert json.dumps([asdict(finding) for finding in found], allow_nan=False)
    return {finding.question: finding for finding in found}


# --- exactness and speed ---------------------------------------------------------------------------


def test_the_fastest_rows_are_named(table):
    found = find(table)
    assert found[EXACT].answer == ("Tokens equal in 1 of 1 rows; faster: yes, coupled, speed-up 1.43.")
    assert "0 images are excepted for a near-tie" in found[EXACT].details
    # lantern-b is faster but loses 5 points of accuracy; lantern-a loses one
    assert found[RELAXED].answer == "Yes, LANTERN k 20, δ 0.1, speed-up 1.67."
    assert "fastest with prompt accuracy within 2 points" in found[RELAXED].details
    assert found[RELAXED].numbers["method_id"] == "lantern-a"
    assert found[RELAXED].numbers["speedup"] == pytest.approx(1 / 0.6)


def test_a_row_that_should_be_exact_and_is_not_does_not_count(table):
    found = find(change(table, "coupled", tokens_equal_autoregressive=0.9))[EXACT]
    assert found.answer.startswith("NOT EXACT: tokens equal in 0 of 1 rows; faster: yes, EAGLE-1, speed-up 1.25")


@pytest.mark.parametrize("seconds", [0.6, 0.9])
def test_an_exact_method_without_a_draft_model_is_named(seconds):
    jacobi = MethodSpec("jacobi", "chain9", "jacobi", method_id="jacobi")
    methods = {**METHODS, "jacobi": (jacobi, 24, 0.0, 0.0, seconds)}
    found = find(build_summary(make_tables(methods), settings=SETTINGS, seed=0))[EXACT]
    assert found.answer.startswith("Tokens equal in 2 of 2 rows; faster: yes, ")
    if seconds == 0.6:
        assert found.answer.endswith("Jacobi, speed-up 1.67, without a draft model.")
    else:
        assert found.answer.endswith("coupled, speed-up 1.43.")
        assert found.details.endswith("The fastest without a draft model: Jacobi, speed-up 1.11.")


def test_rows_of_single_repeats_are_counted_once_each():
    repeated = build_summary(join(make_tables(), make_tables(repeat="s1n0")), settings=SETTINGS, seed=0)
    assert find(repeated)[EXACT].answer.startswith("Tokens equal in 2 of 2 rows")


def test_in_bfloat16_equality_is_reported_and_not_demanded():
    table = build_summary(make_tables(dtype="bfloat16"), settings=SETTINGS, seed=0)
    found = find(change(table, "coupled", tokens_equal_autoregressive=0.75, margin_at_difference=0.021))[EXACT]
    assert found.answer.startswith("Tokens equal in 75 % of the images (bfloat16); faster: yes, coupled, speed-up 1.43")
    assert "Decoded in bfloat16" in found.details and "candidates are 0.021 nats apart" in found.details


def test_slow_methods_are_called_slow():
    methods = with_changes(
        eagle1=(32, 0, 0, 2.0), coupled=(32, 0, 0, 1.5), lantern_a=(20, 1, 0.01, 1.6), lantern_b=(16, 1, 0.9, 0.3)
    )
    found = find(build_summary(make_tables(methods), settings=SETTINGS, seed=0))
    assert "faster: no, coupled, speed-up 0.67" in found[EXACT].answer
    assert found[RELAXED].answer.startswith("No, LANTERN k 20, δ 0.1, speed-up 0.62")
    assert "Slower than autoregressive decoding: LANTERN k 20, δ 0.1." in found[RELAXED].details


def test_no_row_that_keeps_the_accuracy():
    methods = with_changes(lantern_a=(20, 1, 0.9, 0.5), lantern_b=(16, 1, 0.9, 0.3))
    found = find(build_summary(make_tables(methods), settings=SETTINGS, seed=0))
    assert found[RELAXED].answer.startswith("No timed relaxed method has prompt accuracy within 2 points")
    assert COST not in found


@pytest.mark.parametrize("low, high, word", [(1.45, 1.8, "Yes"), (1.3, 1.8, "Perhaps")])
def test_faster_is_said_where_intervals_do_not_overlap(table, low, high, word):
    assert find(change(table, "lantern-a", speedup_low=low, speedup_high=high))[RELAXED].answer.startswith(f"{word}, ")


def test_a_relaxed_method_slower_than_an_exact_one_is_not_called_faster(table):
    changed = change(table, "lantern-a", speedup=1.2, speedup_low=1.1, speedup_high=1.6)
    assert find(changed)[RELAXED].answer.startswith("No, LANTERN k 20, δ 0.1, speed-up 1.20 [1.10, 1.60]")


@pytest.mark.parametrize("num_timed, num_repeats", [(2, 1), (MIN_TIMED, 2)])
def test_few_timed_prompts_cannot_tell(table, num_timed, num_repeats):
    found = find(table.assign(num_timed=num_timed, num_repeats=num_repeats))
    few = f"oo few timed prompts to tell ({num_timed // num_repeats})"
    assert f"faster: t{few}, coupled, speed-up" in found[EXACT].answer
    assert found[RELAXED].answer.startswith(f"T{few}, LANTERN k 20, δ 0.1, speed-up 1.67")


def test_prompts_without_attributes_rule_no_method_out():
    found = find(build_summary(make_tables(has_scenes=False), settings=SETTINGS, seed=0))
    assert found[RELAXED].details.startswith("Prompt accuracy is not measured on these prompts: no relaxed method is")
    assert found[RELAXED].numbers["method_id"] == "lantern-b"
    assert "accuracy" not in found[COST].answer + found[COST].details


def test_what_was_not_timed_is_not_judged(table):
    untimed = build_summary(make_tables(has_scenes=False), settings=SETTINGS, seed=0).assign(speedup=np.nan)
    found = find(untimed)
    assert found[EXACT].answer == "Tokens equal in 1 of 1 rows; none was timed."
    assert found[RELAXED].answer == "No relaxed row was timed." and COST not in found
    assert find(table.assign(speedup=np.nan))[RELAXED].answer.startswith("No timed relaxed method has prompt accuracy")


# --- what it costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nll, words", [(3.20, "rises from 3.00 to 3.20"), (2.5, "falls from 3.00 to 2.50"), (3.001, "stays from")]
)
def test_the_verb_follows_the_likelihood(table, nll, words):
    changed = change(
        change(table, "autoregressive", nll=3.0), "lantern-a", nll=nll, nll_low=nll - 0.1, nll_high=nll + 0.1
    )
    found = find(changed)[COST]
    assert f"The NLL {words}" in found.answer
    assert ("no merit by themselves" in found.details) == (nll < 3)


def test_the_cost_is_told_with_its_intervals(table):
    low, high = "prompt_accuracy_change_low", "prompt_accuracy_change_high"
    found = find(change(table, "lantern-a", prompt_accuracy_change=0.01, **{low: -0.01, high: 0.03}))[COST]
    assert "prompt accuracy changes by +1.0 [-1.0, +3.0] points." in found.answer
    assert "20 prompts cannot tell from none" in found.details
    assert "lies 0.20 in total variation" in found.details
    seen = find(change(table, "lantern-a", prompt_accuracy_change=-0.01, **{low: -0.02, high: -0.005}))[COST]
    assert "-1.0 [-2.0, -0.5] points" in seen.answer and "cannot tell" not in seen.details


# --- rules and neighbours --------------------------------------------------------------------------


def test_the_bound_follows_the_curves(table):
    found = find(table)[BOUND]
    assert found.answer == (
        "Not of the published rules: mean TV 0.30 to 0.40 at delta 0.1; ours never exceeds its delta."
    )
    assert "sampled_paper: 0.30 [0.29, 0.31]" in found.details and "300 nodes, 1 values" in found.details
    assert find(table, make_curves(published=-0.05))[BOUND].answer.startswith("Yes, at these nodes")
    assert "ours EXCEEDS its delta" in find(table, make_curves(bounded=0.2))[BOUND].answer


@pytest.mark.parametrize("costs, word", [((0.1, 0.5), "better"), ((0.5, 0.1), "worse")])
def test_comparisons_at_equal_length_either_way(table, costs, word):
    found = find(
        table, ablations={"rules": ablation("method", dict(zip(("proximity", "lantern"), costs, strict=True)))}
    )
    assert found[RULES].answer.startswith(f"LANTERN: {word}, NLL {(costs[0] - costs[1]) / 2:+.2f} [")
    assert "LANTERN, at 2.00 to 2.40 tokens per forward" in found[RULES].details


def test_comparisons_that_differ_are_told_one_by_one(table):
    images = ablation("method", {"proximity": 0.3, "lantern": 0.3, "lantern_pp": 0.1})
    answer = find(table, ablations={"rules": images})[RULES].answer
    assert answer.startswith("LANTERN: not told apart, NLL +0.00") and "; LANTERN++: worse, NLL +0.1" in answer


def test_curves_without_a_common_length_are_said_to_have_none(table):
    images = ablation("method", {"proximity": 0.1, "lantern": 0.5})
    images.loc[images["method"] == "lantern", "target_forwards"] = 12
    answer = find(table, ablations={"rules": images})[RULES].answer
    assert answer == "LANTERN: no accepted length in common."


def test_tables_of_different_prompts_are_an_error_and_no_finding(table):
    images = ablation("method", {"proximity": 0.1, "lantern": 0.5})
    images = images[(images["method"] != "lantern") | (images["prompt_id"] != "p0")]
    with pytest.raises(ValueError, match="compared on the same prompts only"):
        find(table, ablations={"rules": images})


def test_nearest_against_random(table):
    images = ablation("neighbours", {"l2_normalised": 0.1, "random": 0.4})
    answer = find(table, ablations={"neighbours": images})[NEIGHBOURS].answer
    assert answer.startswith("Random codes: better, NLL -0.15 [")


def test_what_was_not_run_is_left_out(table):
    assert list(find(table)) == [EXACT, RELAXED, COST, BOUND]
    alone = {"rules": ablation("method", {"lantern": 0.1}), "neighbours": ablation("neighbours", {"random": 0.1})}
    assert list(find(table, ablations=alone)) == [EXACT, RELAXED, COST, BOUND]


# --- models, captions ------------------------------------------------------------------------------


def test_models_are_described_by_their_reports(table):
    found = find(table, reports=REPORTS)[MODELS]
    assert "3.46 nats per token on held-out images" in found.answer
    for part in ("caption among 32 in 99.0 %", "trained on procedural shapes, reads 99.5 %", "at 23.4 dB, with 96.0 %"):
        assert part in found.details
    published = {"target": {"checkpoint": "x.pt", "num_parameters": 775e6}, "tokenizer": {"checkpoint": "vq.pt"}}
    found = find(table, reports=published)[MODELS]
    assert (found.answer, found.details) == (
        "The target is the published x.pt, 775 million parameters.",
        "The image tokenizer is the published vq.pt.",
    )


def test_captions_have_their_numbers(table):
    numbers = caption_numbers(table, SETTINGS)
    assert (numbers["prompts"], numbers["num_timed"], numbers["autoregressive_latency_ms"]) == (
        "20 prompts",
        "6",
        "1025",
    )
    assert caption_numbers(table.assign(speedup=np.nan, num_timed=np.nan), SETTINGS)["num_timed"] == "no"


def test_captions_ask_for_numbers_that_there_are(table):
    captions = "".join(path.read_text() for path in (ROOT / "workflow" / "report").glob("*.rst"))
    asked = set(re.findall(r"params\.numbers\.(\w+)", captions))
    assert asked and asked <= set(caption_numbers(table, SETTINGS)) and "config.numbers" not in captions


def test_survives_a_csv_file(table, tmp_path):
    table.to_csv(tmp_path / "summary.csv", index=False)
    assert find(pd.read_csv(tmp_path / "summary.csv")) == find(table)


def test_an_interval_is_left_out_where_there_is_none():
    row = {"x": 1.234, "x_low": 1.0, "x_high": 2.0, "y": 0.5, "y_low": np.nan, "y_high": np.nan}
    assert with_interval(row, "x") == "1.23 [1.00, 2.00]"
    assert with_interval(row, "x", "+.0f", 100) == "+123 [+100, +200]"
    assert with_interval(row, "y") == "0.50"
    assert with_interval({"z": 1, "z_low": 1, "z_high": 1}, "z", ".1f") == "1.0"
