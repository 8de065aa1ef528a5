"""Tests of the papers' claims: verdicts follow the numbers in either direction, for the methods that ran."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from helpers.result_tables import SETTINGS, join, make_tables
from lantern.methods import MethodSpec, make_method
from lantern_pipeline.tables.markdown import verdict_cells
from lantern_pipeline.tables.paper_claims import TITLES, judge_papers
from lantern_pipeline.tables.summary import build_summary

DYNAMIC, STATIC = "dynamic58k10d4", "naive_extend_57"


def method(name, parts, forwards, nll=0.0, lost=0.0):
    """Return an entry of `make_tables`: forward passes per image of 64 tokens, NLL added and accuracy lost."""
    id_ = "-".join([name, *(f"{value}" for value in parts.values())])
    return id_, (make_method(name, method_id=id_, **parts), forwards, nll, lost, 1.0)


def judge(*methods, temperatures=(1.0,), top1=0.1, repeats=("s0n0",)):
    entries = dict([("autoregressive", (make_method("autoregressive"), 64, 0.0, 0.0, 1.0)), *methods])
    tables = join(*(make_tables(entries, temperatures=temperatures, repeat=repeat) for repeat in repeats))
    rng = np.random.default_rng(0)
    tables.images["target_forwards"] += rng.integers(0, 3, len(tables.images))  # prompts differ
    summary = build_summary(*tables, settings=SETTINGS, seed=0)
    ambiguity = pd.DataFrame({"cfg_scale": [1.0, 3.0] * 4, "image": [0, 0, 1, 1] * 2, "top1": 0.9})
    ambiguity.loc[ambiguity["cfg_scale"] == 3, "top1"] = np.resize(top1, 4)  # of images 0, 1, 0 and 1
    found = judge_papers(summary, tables.images, ambiguity, settings=SETTINGS, seed=0)
    assert all(tuple(row) == TITLES for row in found)
    return {row["claim"]: row for row in found}


def verdict(found, start):
    (row,) = [row for claim, row in found.items() if claim.startswith(start)]
    return row["verdict"]


def lantern(delta, forwards, k=64, **others):
    parts = {"tree": DYNAMIC, "k": k, "delta": delta, "neighbours": "l2_normalised"}
    numbers = {name: others.pop(name) for name in ("nll", "lost") if name in others}
    return method("lantern", {**parts, **others}, forwards, **numbers)


EAGLE_2 = method("eagle2", {"tree": DYNAMIC}, 44)


def test_without_the_papers_methods_there_are_no_claims():
    assert judge(method("jacobi", {}, 20)) == {}


@pytest.mark.parametrize(("forwards", "expected"), [((30, 25), "holds"), ((46, 25), "in part"), ((60, 55), "does not")])
def test_lantern_is_compared_with_eagle_2_at_every_delta(forwards, expected):
    found = judge(EAGLE_2, *(lantern(delta, count) for delta, count in zip((0.1, 0.4), forwards, strict=True)))
    assert verdict(found, "LANTERN emits more than EAGLE-2 in the same tree, sampled") == expected
    assert not any("temperature 0" in claim for claim in found)
    here = found["LANTERN emits more than EAGLE-2 in the same tree, sampled"]["here"]
    ratio = 45 / (forwards[0] + 1)  # about one more step per image
    assert float(here.split()[2]) == pytest.approx(ratio, abs=0.05) and here.startswith("δ 0.1 ") and "; δ 0.4 " in here
    assert verdict(found, "the speed-up in time") == "needs a GPU"
    cells = verdict_cells(list(found.values()))
    assert cells[0] == list(TITLES) and len(cells) == len(found) + 1


def test_quality_must_fall_by_all_measures_for_the_claim_to_hold():
    assert verdict(judge(lantern(0.1, 30), lantern(0.4, 25)), "quality falls") == "does not"  # equal TV, no loss
    assert verdict(judge(lantern(0.1, 30), lantern(0.4, 25, lost=0.2)), "quality falls") == "in part"
    found = judge(lantern(0.1, 30, lost=0.0), lantern(0.4, 25, lost=0.0))
    assert verdict(found, "LANTERN at δ 0.1 loses no quality") == "holds"
    worse = judge(lantern(0.1, 30, lost=0.5), lantern(0.4, 25, lost=0.5))
    assert verdict(worse, "LANTERN at δ 0.1 loses no quality") == "in part"  # accuracy falls, the CLIP score does not


def test_random_codes_are_worse_only_if_nll_and_accuracy_say_so():
    random = {"neighbours": "random"}
    for nll, lost, expected in ((0.5, 0.5, "in part"), (0.0, 0.0, "does not"), (-0.5, 0.0, "does not")):
        found = judge(lantern(0.1, 30), lantern(0.1, 30, nll=nll, lost=lost, **random))
        assert verdict(found, "nearest codes are better") == expected
    other = judge(lantern(0.1, 30), lantern(0.1, 30, nll=0.5, **{"neighbours": "l2"}))
    assert verdict(other, "nearest codes by l2") == "in part"  # the steps differ by chance here


def test_exact_drafts_are_compared_with_lantern_pp_at_both_temperatures():
    methods = [
        method("lantern_pp", {"tree": STATIC, "k": 10, "lambda_": 5}, 17, nll=0.1),
        method("eagle1", {"tree": STATIC}, 20),
        method("hybrid", {"tree": "hybrid_50"}, 14),
        method("lantern_pp", {"tree": "hybrid_50", "drafts": "hybrid", "k": 10, "lambda_": 5}, 14),
    ]
    found = judge(*methods, temperatures=(0.0, 1.0))
    for name in ("sampled", "at temperature 0"):
        assert verdict(found, f"ours: exact drafts of hybrid_50 emit more than LANTERN++ with 57, {name}") == "holds"
    assert verdict(found, "LANTERN++ emits more than EAGLE-1") == "holds"
    assert verdict(found, "ours: relaxing the drafts of hybrid_50 emits more, sampled") == "in part"
    assert verdict(found, "LANTERN++ takes up to 3.63 times fewer steps, sampled") == "in part"
    slower = judge(methods[0], method("hybrid", {"tree": "hybrid_50"}, 30))
    assert verdict(slower, "ours: exact drafts of hybrid_50") == "does not"


def test_a_target_that_is_sure_is_said_to_be():
    # Of the steps, .25 and .82 accept the one draft.
    cases = ((0.1, 50, "holds"), (0.8, 50, "in part"), (0.1, 34, "in part"), (0.8, 34, "does not"))
    for top1, forwards, expected in cases:
        spec = MethodSpec.of("eagle2_one", tree="chain1", drafts="top", method_id="eagle2_one")
        one = ("eagle2_one", (spec, forwards, 0.0, 0.0, 1.0))
        assert verdict(judge(EAGLE_2, lantern(0.1, 30), one, top1=top1), "the target is unsure") == expected


def test_an_interval_that_holds_one_half_decides_nothing():
    for top1, expected in (([0.1, 0.9], "in part"), ([0.6, 0.9], "does not"), ([0.1, 0.4], "holds")):
        assert verdict(judge(EAGLE_2, lantern(0.1, 30), top1=top1), "the target is unsure") == expected


def test_a_run_with_two_noise_seeds_is_judged_as_well():
    divergence = {"acceptance": "jensen_shannon"}
    methods = [lantern(delta, count) for delta, count in ((0.1, 30), (0.4, 25))]
    methods += [lantern(delta, count, **divergence) for delta, count in ((0.1, 29), (0.4, 24))]
    found = judge(EAGLE_2, *methods, repeats=("s0n0", "s0n1"))
    assert verdict(found, "total variation and Jensen-Shannon divergence") == "holds"  # equal NLL
    assert verdict(found, "LANTERN emits more than EAGLE-2 in the same tree, sampled") == "holds"


def test_the_distance_of_the_runs_own_codes_is_the_usual_one():
    """A published model orders its codes by l2, and its run may add the cosine."""
    of_model = lantern(0.1, 30, neighbours="l2")
    assert verdict(judge(EAGLE_2, of_model), "LANTERN emits more than EAGLE-2 in the same tree, sampled") == "holds"
    found = judge(EAGLE_2, of_model, lantern(0.1, 25, nll=0.5, neighbours="l2_normalised"))
    assert found["LANTERN emits more than EAGLE-2 in the same tree, sampled"]["here"].count("δ") == 1
    assert verdict(found, "nearest codes by l2 and by cosine") == "in part"
