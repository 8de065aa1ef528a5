"""Findings about the peers: the words follow the numbers, and what was not measured is said to be so."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from result_tables import METHODS, SETTINGS, make_tables

from lantern.methods import MethodSpec
from lantern_pipeline.analysis.peers import find_about_peers
from lantern_pipeline.analysis.summary import build_summary

CLAIMS, FRONTIER = "Which claims of losslessness stand?", "Who is on the frontier?"
ANNEALING, GROUPS = (
    "Does annealing beat a constant weight?",
    "Do groups of equally probable codes beat look-alikes?",
)
SJD = {"tree": "chain9", "drafts": "sjd", "coupling": "none", "initial": "random", "labels": "point"}


def cool(relaxation, omega):
    parts = {"tree": "chain5", "drafts": "sampled", "relaxation": relaxation, "residual": "matched", "omega": omega}
    return MethodSpec("cool", **parts, method_id=f"{relaxation}-{omega}")


def make(costs):
    """Summary and images; `costs`: relaxation -> NLL added at two lengths that all relaxations of cool reach."""
    methods = {name: METHODS[name] for name in ("autoregressive", "eagle1", "coupled")}
    for relaxation, both in costs.items():
        for omega, forwards, cost in zip((1.1, 2.0), (32, 20), both, strict=True):
            spec = cool(relaxation, omega)
            methods[spec.method_id] = (spec, forwards, cost, 0.0, 0.5)
    spec = MethodSpec("sjd_pp", **SJD, relaxation="threshold", threshold=0.5, method_id="sjd_pp")
    methods["sjd_pp"] = (spec, 25, 0.1, 0.0, 0.6)
    tables = make_tables(methods)
    summary = build_summary(tables, settings=SETTINGS, seed=0).assign(law_p=0.5)
    summary.loc[summary["method"] == "eagle1", "tv_mean"] = 1e-8
    summary.loc[summary["method"] == "coupled", "substitution_rate"] = 0.0
    summary.loc[summary["method"] == "sjd_pp", "tv_mean"] = np.nan
    return summary, tables.images


@pytest.fixture(scope="module")
def tables():
    return make({"annealed": (0.1, 0.4), "constant": (0.3, 0.8)})


def change(summary, method_id, **values):
    changed = summary.copy()
    for name, value in values.items():
        changed.loc[changed["method_id"] == method_id, name] = value
    return changed


def find(summary, images):
    found = find_about_peers(summary, images, settings=SETTINGS, seed=0)
    assert json.dumps([asdict(finding) for finding in found], allow_nan=False)
    return {finding.question: finding for finding in found}


def test_claims_that_stand_and_what_the_test_cannot_tell(tables):
    found = find(change(tables[0], "annealed-2.0", law_p=1e-9), tables[1])[CLAIMS]
    assert found.answer == "2 of 2 stand."
    assert "The test tells 1 of 5 relaxed rows from the target, but not COOL-SD (annealed) ω 1.1 (p 0.5)," in (
        found.details
    )


@pytest.mark.parametrize(
    ("method_id", "values"),
    [("eagle1", {"law_p": 1e-4}), ("eagle1", {"tv_mean": 0.01}), ("coupled", {"tokens_equal_autoregressive": 0.95})],
)
def test_one_sign_refutes_a_claim(tables, method_id, values):
    found = find(change(tables[0], method_id, **values), tables[1])[CLAIMS]
    assert found.answer.startswith("1 of 2 stand; refuted: ") and found.numbers["num_refuted"] == 1


def test_a_claim_without_a_known_law_stands_on_the_test_alone(tables):
    found = find(change(tables[0], "sjd_pp", relaxation="public_labels"), tables[1])[CLAIMS]
    assert found.answer == "3 of 3 stand." and "On that test alone stands SJD++" in found.details
    assert "alone" not in find(*tables)[CLAIMS].details


def test_what_was_not_measured_is_said(tables):
    found = find(change(tables[0], "eagle1", law_p=np.nan), tables[1])
    assert found[CLAIMS].answer == "1 of 2 stand; not measured: EAGLE-1."
    assert found[FRONTIER].details.endswith("Total variation not measured: SJD++.")  # its preset's own threshold
    assert found[ANNEALING].answer.endswith("Not measured: annealing from the other end.")
    assert GROUPS not in found and CLAIMS not in find(tables[0].assign(law_p=np.nan), tables[1])


def test_the_frontier_holds_what_no_row_beats_in_both(tables):
    summary = change(tables[0], "annealed-2.0", speedup=4.0, tv_mean=0.3)
    summary = change(summary, "constant-2.0", speedup=3.0, tv_mean=0.4)
    found = find(summary, tables[1])[FRONTIER]
    assert found.numbers["method_ids"][0] == "annealed-2.0" and "constant-2.0" not in found.numbers["method_ids"]
    assert found.numbers["method_ids"][-1] == "coupled"  # the fastest exact one
    assert "autoregressive (1.00, 0)" in found.details and "autoregressive" not in found.answer


@pytest.mark.parametrize(("costs", "word"), [((0.3, 0.8), "better"), ((0.0, 0.1), "worse")])
def test_annealing_at_equal_length_either_way(costs, word):
    summary, images = make({"annealed": (0.1, 0.4), "constant": costs})
    found = find(summary, images)[ANNEALING]
    assert found.answer.startswith(f"A constant weight: {word}, NLL")
    assert "Mean total variation there: 0.200 against 0.200 (a constant weight)." in found.details


def test_rows_on_other_trees_are_not_compared(tables):
    summary = tables[0].copy()
    summary.loc[summary["relaxation"] == "constant", "tree"] = "chain3"
    assert ANNEALING not in find(summary, tables[1])
