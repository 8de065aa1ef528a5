"""Tests of claims: numbers follow the tables in either direction, and missing runs or measurements are left out."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from helpers.configs import load_config_of_all_figures, render_caption, typed_config
from helpers.result_tables import METHODS, SETTINGS, join, make_tables, with_changes
from lantern.methods import make_method
from lantern_pipeline.fetch.entries import parse_entries
from lantern_pipeline.plan.figures import figure_table
from lantern_pipeline.plan.methods import expand
from lantern_pipeline.plan.paths import RunPlan
from lantern_pipeline.tables.claims import add_distance, describe_run, find_claims
from lantern_pipeline.tables.markdown import claim_cells
from lantern_pipeline.tables.method_rows import method_of
from lantern_pipeline.tables.summary import build_summary


def summarise(methods=METHODS, **options):
    return build_summary(*make_tables(methods, **options), settings=SETTINGS, seed=0)


@pytest.fixture(scope="module")
def table():
    return summarise()


def change(table, method_id, **values):
    """Return the table with some cells of a method replaced."""
    changed = table.copy()
    changed.loc[changed["method_id"] == method_id, list(values)] = list(values.values())
    return changed


def make_curves(bounded=0.09, published=0.3, deltas=(0.1,)):
    rules = {"sampled_paper": published, "top_children": published, "top_official": published + 0.1, "bounded": bounded}
    rows = [
        {"rule": rule, "delta": delta, "tv_mean": tv + delta, "tv_mean_low": tv, "tv_mean_high": tv + 0.2}
        | {"tv_max": tv, "tv_share_above_delta": float(tv > 0.1), "num_nodes": 300}
        for delta in deltas
        for rule, tv in rules.items()
    ]
    return pd.DataFrame(rows)


def find(summary, curves=None, images=None, reports=None):
    curves = make_curves() if curves is None else curves
    images = make_tables().images if images is None else images
    found = find_claims(summary, curves, images, reports or {}, settings=SETTINGS, seed=0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


# --- exactness and speed ---------------------------------------------------------------------------


def test_the_rows_of_most_tokens_per_forward(table):
    found = find(table)
    assert found["tokens"] == {"num_rows": 1, "num_equal": 1, "num_near_ties": 0}
    # EAGLE-1 and coupled emit the same number, so the first row is chosen.
    assert (found["exact"]["label"], found["exact"]["speedup"]) == ("EAGLE-1 (chain5)", pytest.approx(1 / 0.8))
    assert found["exact"]["relative_step_cost"] == pytest.approx(0.8 * 64 / 32)
    longer = find(change(table, "coupled", tokens_per_forward=2.1, speedup=0.9))
    assert (longer["exact"]["label"], longer["exact"]["speedup"]) == (
        "coupled (chain3)",
        0.9,
    )  # chosen by tokens, not by speed
    assert longer["exact_fastest"]["label"] == "EAGLE-1 (chain5)"
    # lantern-b emits more but loses 5 points of accuracy; lantern-a loses one
    assert (found["relaxed"]["method_id"], found["relaxed"]["speedup"]) == ("lantern-a", pytest.approx(1 / 0.6))
    assert found["relaxed"]["nll"] - found["baseline"]["nll"] == pytest.approx(0.5)
    assert found["relaxed"]["prompt_accuracy_change"] == pytest.approx(-0.01)
    assert "exact_without_draft_model" not in found and "relaxed_and_slow" not in found
    unequal = {"tokens_per_forward": 2.1, "tokens_equal_autoregressive": 0.75}
    unequal, rounded = (change(rows, "coupled", **unequal) for rows in (table, summarise(dtype="bfloat16")))
    assert find(unequal)["tokens"]["num_equal"] == 0 and find(unequal)["exact"]["label"] == "EAGLE-1 (chain5)"
    bfloat16 = find(rounded)
    expected = {"num_rows": 0, "num_equal": 0, "num_near_ties": 0, "share_equal_bfloat16": 0.75}
    assert (
        bfloat16["tokens"] == expected and bfloat16["exact"]["label"] == "coupled (chain3)"
    )  # reported and not demanded


def test_rows_of_single_repeats_are_counted_once_each_and_methods_without_a_draft_model_apart():
    methods = {**METHODS, "jacobi": (make_method("jacobi", tree="chain9", method_id="jacobi"), 24, 0.0, 0.0, 0.9)}
    tables = join(make_tables(methods), make_tables(methods, repeat="s1n0"))
    found = find(build_summary(*tables, settings=SETTINGS, seed=0))
    assert found["tokens"]["num_rows"] == 4
    assert (found["exact"]["method_id"], found["exact_without_draft_model"]["method_id"]) == ("jacobi", "jacobi")
    sjd = {"sjd": (make_method("sjd"), 20, 0.0, 0.0, 0.5)}  # exact by rejection, and emits more
    found_with_sjd = find(build_summary(*make_tables(methods | sjd), settings=SETTINGS, seed=0))
    assert found_with_sjd["exact_without_draft_model"]["method_id"] == "sjd"
    assert describe_run(found["setting"]).startswith("20 prompts in 2 repeats of the set seen, 6 of them timed, temp")


def test_what_loses_accuracy_is_not_ranked_and_what_is_slow_is_named(table):
    slow = summarise(with_changes(lantern_a=(20, 1, 0.01, 1.6), lantern_b=(16, 1, 0.9, 0.3)))
    found = find(slow)
    assert found["relaxed"]["method_id"] == "lantern-a" and found["relaxed"]["speedup"] == pytest.approx(0.625)
    assert found["relaxed_and_slow"] == ["LANTERN chain5 k 20, δ 0.1"]
    for timed in ({"num_timed": 5}, {"num_timed": 6, "num_repeats": 2}):
        assert "relaxed_and_slow" not in find(slow.assign(**timed))
    start = table.set_index("method_id").loc["autoregressive", "prompt_accuracy"]
    for lost, expected in ((0.02, "lantern-b"), (0.0201, "lantern-a")):  # two points may be lost
        assert find(change(table, "lantern-b", prompt_accuracy=start - lost))["relaxed"]["method_id"] == expected
    bad = change(change(table, "lantern-a", prompt_accuracy=0.1), "lantern-b", prompt_accuracy=0.1)
    assert "relaxed" not in find(bad)
    free = find(summarise(has_scenes=False))["relaxed"]  # prompts without attributes rule no method out
    assert free["method_id"] == "lantern-b" and free["prompt_accuracy"] is None


def test_a_run_without_timings_says_so(table):
    untimed = table.assign(speedup=np.nan, num_timed=np.nan)
    found = find(untimed)
    assert found["setting"]["num_timed"] == "no" and found["setting"]["autoregressive_latency_ms"] == "unknown"
    assert "none of them timed" in describe_run(found["setting"])
    assert found["exact"]["speedup"] is None and found["relaxed"]["tokens_per_forward"] == 3.2


# --- the bound, models, captions -------------------------------------------------------------------


def test_the_bound_follows_the_curves(table):
    """The delta nearest to 0.1 counts; of two equally near ones the smaller, in any order."""
    found = find(table, make_curves())["delta"]
    expected = {"tv_mean": 0.4, "tv_mean_low": 0.3, "tv_mean_high": 0.5}
    assert found["published"]["sampled_paper"] == pytest.approx(expected)
    assert (found["published_is_above"], found["ours_is_above"]) == (True, False)
    assert (found["delta"], found["num_nodes"], found["num_deltas"]) == (0.1, 300, 1)
    assert not find(table, make_curves(published=-0.05))["delta"]["published_is_above"]
    assert find(table, make_curves(bounded=0.2))["delta"]["ours_is_above"]
    assert not find(table, make_curves(bounded=0.1))["delta"]["ours_is_above"]  # at it is not above it
    assert "delta" not in find(table, make_curves().iloc[:0])
    for deltas, nearest in (((0.3, 0.11, 0.05), 0.11), ((0.2, 0.0), 0.0), ((0.0, 0.2), 0.0)):
        assert find(table, make_curves(deltas=deltas))["delta"]["delta"] == nearest


def test_models_are_described_by_their_reports_and_captions_ask_for_what_there_is(table):
    reports = {
        "target": {"val_cross_entropy": 3.456, "checkpoint": "x.pt", "num_steps": 3},
        "attribute_classifier": {"val": {"accuracy": 0.995}, "unseen": {"accuracy": 0.9}, "history": [{}]},
    }
    found = find(table, reports=reports)
    assert found["models"] == {
        "target": {"val_cross_entropy": 3.456},
        "attribute_classifier": {"val_accuracy": 0.995, "unseen_accuracy": 0.9},
    }
    setting = found["setting"]
    assert (setting["prompts"], setting["num_timed"], setting["num_methods"]) == ("20 prompts", "6", "5")
    assert setting["autoregressive_latency_ms"] == "1025"
    config = load_config_of_all_figures()
    checked = typed_config(config)
    plan = RunPlan(checked, parse_entries(checked.resource_entries), expand(checked))
    for name, figure in figure_table(plan).items():
        known = ("prompt_set", "temperature", "cfg_scale") if "summary" not in figure.files else setting
        render_caption(name, config, {key: setting[key] for key in known})  # raises an error for other names


def test_claims_survive_a_csv_file_and_fill_a_table(table, tmp_path):
    table.to_csv(tmp_path / "summary.csv", index=False)
    found = find(pd.read_csv(tmp_path / "summary.csv"))
    assert found == find(table)
    cells = dict(claim_cells(found)[1:])
    assert cells["exact: tokens_per_forward"] == "2" and cells["relaxed: tv_mean"] == "0.2 [0.1, 0.3]"
    assert cells["tokens: num_rows"] == "1" and "exact: speedup_low" not in cells


# --- methods with the target's distribution, and frontier ------------------------------------------


def make_peers(costs):
    """Return summary and images; `costs`: schedule of weights -> NLL added at two lengths that all schedules reach."""
    methods = {name: METHODS[name] for name in ("autoregressive", "eagle1", "coupled")}
    for schedule, both in costs.items():
        for omega, forwards, cost in zip((1.1, 2.0), (32, 20), both, strict=True):
            fall = {"annealed": 0.7, "constant": 0.0}[schedule]
            spec = make_method("cool", omega=omega, fall=fall, method_id=f"{schedule}-{omega}")
            methods[spec.method_id] = (spec, forwards, cost, 0.0, 0.5)
    methods["sjd_pp"] = (make_method("sjd_pp", tree="chain9", method_id="sjd_pp"), 25, 0.1, 0.0, 0.6)
    tables = make_tables(methods)
    summary = build_summary(*tables, settings=SETTINGS, seed=0).assign(law_p=0.5)
    summary = change(change(summary, "eagle1", tv_mean=1e-8), "coupled", substitution_rate=0.0)
    return change(summary, "sjd_pp", tv_mean=np.nan), tables.images


@pytest.fixture(scope="module")
def peers():
    return make_peers({"annealed": (0.1, 0.4), "constant": (0.3, 0.8)})


@pytest.mark.parametrize(
    ("method_id", "values", "num_refuted"),
    [
        ("eagle1", {"law_p": 0.05 / 7 - 1e-6}, 1),
        ("eagle1", {"law_p": 0.05 / 7}, 0),
        ("eagle1", {"tv_mean": 1e-5}, 0),
        ("eagle1", {"tv_mean": 2e-5}, 1),
        ("coupled", {"tokens_equal_autoregressive": 0.95}, 1),
        ("eagle1", {"tokens_equal_autoregressive": 0.95}, 0),  # keeps the distribution, not the tokens
    ],
)
def test_one_sign_refutes_a_claim(peers, method_id, values, num_refuted):
    found = find(change(peers[0], method_id, **values), images=peers[1])["distribution"]
    assert len(found["refuted"]) == num_refuted and found["num_confirmed"] == 2 - num_refuted


def test_rows_of_real_images_are_not_asked_whether_they_keep_tokens(table, monkeypatch):
    asked = []

    def ask(row):
        asked.append(row["is_exact"])
        return method_of(row)

    monkeypatch.setattr("lantern_pipeline.tables.claims.method_of", ask)
    find(table)
    assert asked and not pd.isna(asked).any()


def test_a_p_value_that_refutes_nothing_is_not_named(peers):
    for law_p in (0.5, np.nan):
        found = find(change(peers[0], "eagle1", tv_mean=0.1, law_p=law_p), images=peers[1])["distribution"]
        assert found["refuted"] == {"EAGLE-1 (chain5)": None}
    found = find(change(peers[0], "eagle1", tv_mean=0.1, law_p=0.001), images=peers[1])["distribution"]
    assert found["refuted"] == {"EAGLE-1 (chain5)": 0.001}


def test_claims_that_stand_what_the_test_cannot_tell_and_what_was_not_measured(peers):
    found = find(change(peers[0], "annealed-2.0", law_p=1e-9), images=peers[1])["distribution"]
    assert (found["num_claims"], found["num_confirmed"], found["refuted"], found["not_measured"]) == (2, 2, {}, [])
    assert (found["num_tests"], found["level"]) == (7, pytest.approx(0.05 / 7))
    assert (found["num_relaxed"], found["num_told"]) == (5, 1) and found["not_told"]["COOL-SD ω 1.1"] == 0.5
    found = find(change(peers[0], "eagle1", law_p=np.nan), images=peers[1])
    assert found["distribution"]["not_measured"] == ["EAGLE-1 (chain5)"] and found["distribution"]["num_confirmed"] == 1
    assert found["frontier"]["not_measured"] == ["SJD++ (chain9)"]
    assert "distribution" not in find(peers[0].assign(law_p=np.nan), images=peers[1])


def test_the_frontier_holds_what_no_row_beats_in_both(peers):
    summary = change(peers[0], "annealed-2.0", tokens_per_forward=4.0, tv_mean=0.3)
    summary = change(summary, "coupled", tokens_per_forward=2.5)
    found = find(change(summary, "constant-2.0", tokens_per_forward=3.0, tv_mean=0.4), images=peers[1])["frontier"]
    rows = [(row["label"], row["tokens_per_forward"], row["distance"]) for row in found["all"]]
    assert rows[0] == ("COOL-SD ω 2", 4.0, 0.3) and rows[-1] == ("coupled (chain3)", 2.5, 0)
    assert "COOL-SD ω 2, fall 0" not in {label for label, *_ in rows} and found["num_rows"] == 7
    assert [row["label"] for row in found["without_draft_model"]] == ["autoregressive"]
    exact = find(change(summary, "eagle1", tokens_per_forward=2.6), images=peers[1])["frontier"]["all"][-1]
    assert exact == {"label": "EAGLE-1 (chain5)", "tokens_per_forward": 2.6, "distance": 0}  # 1e-8 is rounding
    few = peers[0][peers[0]["method_id"].isin(["autoregressive", "coupled"])]
    assert "frontier" not in find(few, images=peers[1])


# --- equal accepted length -------------------------------------------------------------------------


@pytest.mark.parametrize(("costs", "sign"), [((0.3, 0.8), -1), ((0.0, 0.1), 1)])
def test_relaxations_of_the_same_drafts_and_tree_at_equal_length(costs, sign):
    summary, images = make_peers({"annealed": (0.1, 0.4), "constant": costs})
    summary.loc[summary["fall"] == 0, "tv_mean"] = 0.3
    (found,) = find(summary, images=images)["equal_length"]["annealed"].values()
    assert np.sign([found["difference"], found["low"], found["high"]]).tolist() == [sign] * 3
    assert (found["tv_first"], found["tv_second"]) == pytest.approx((0.2, 0.3))
    summary.loc[summary["fall"] == 0, "tree"] = "chain3"
    assert "equal_length" not in find(summary, images=images)


def test_mixing_is_compared_with_look_alikes_and_these_with_random_codes():
    of = {"tree": "chain5", "k": 10}
    rows = {
        "mixing": [("mixing", {"budget": 0.1}), ("mixing", {"budget": 0.3})],
        "multiplicative": [("lantern_pp", {**of, "lambda_": 2}), ("lantern_pp", {**of, "lambda_": 5})],
        "random": [("lantern_pp", {**of, "lambda_": value, "neighbours": "random"}) for value in (2, 5)],
    }
    methods = {"autoregressive": METHODS["autoregressive"]}
    for cost, (name, pair) in enumerate(rows.items()):
        for (preset, parts), forwards in zip(pair, (32, 20), strict=True):
            spec = make_method(preset, method_id=f"{name}-{forwards}", **parts)
            methods[spec.method_id] = (spec, forwards, 0.1 * (cost + 1), 0.0, 0.5)
    tables = make_tables(methods)
    found = find(build_summary(*tables, settings=SETTINGS, seed=0), images=tables.images)["equal_length"]
    assert found["mixing"].keys() == {"multiplicative"} and found["multiplicative"].keys() == {"random multiplicative"}
    assert found["mixing"]["multiplicative"]["difference"] == pytest.approx(-0.1)
    assert found["multiplicative"]["random multiplicative"]["difference"] == pytest.approx(-0.1)


def test_a_busy_machine_is_named_and_an_idle_one_is_not(table):
    setting = find(table)["setting"]
    for busy, is_told in ((None, False), ("0.10", False), ("0.20", True)):
        said = describe_run(setting if busy is None else {**setting, "busy_elsewhere": busy})
        assert ("it was not idle: other work kept 0.20 cores busy meanwhile" in said) == is_told, busy


def test_a_row_stands_at_its_total_variation_and_only_without_it_at_its_substitutions(table):
    known = change(table, "lantern-a", tv_mean=0.3, substitution_rate=0.1)
    rows = add_distance(known).set_index("method_id")
    assert rows.loc["lantern-a", "distance"] == 0.3 and rows.loc["autoregressive", "distance"] == 0
    bounded = change(table, "lantern-a", tv_mean=np.nan, substitution_rate=0.1)
    assert add_distance(bounded).set_index("method_id").loc["lantern-a", "distance"] == 0.1
    assert rows["has_draft_model"].to_dict()["autoregressive"] is False and rows.loc["coupled", "has_draft_model"]


def test_of_rows_of_equal_length_the_nearest_alone_is_on_the_frontier(table):
    tied = change(table, "lantern-a", tokens_per_forward=9.0, tv_mean=0.1)
    tied = change(tied, "lantern-b", tokens_per_forward=9.0, tv_mean=0.3)
    found = find(tied)["frontier"]["all"]
    assert [row["distance"] for row in found if row["tokens_per_forward"] == 9.0] == [0.1]


def test_a_frontier_needs_two_rows_beside_the_baseline(table):
    ids = ["autoregressive", "lantern-a", "lantern-b"]
    few = table[table["method_id"].isin(ids)].reset_index(drop=True)
    assert find(few)["frontier"]["num_rows"] == 3
    assert "frontier" not in find(few[few["method_id"] != "lantern-b"].reset_index(drop=True))


def test_what_is_at_its_limit_is_neither_told_apart_nor_slow_nor_rounded_away(peers, table):
    summary, images = peers
    found = find(change(summary, "annealed-2.0", law_p=0.05 / 7), images=images)["distribution"]
    assert found["num_told"] == 0 and found["not_told"]["COOL-SD ω 2"] == pytest.approx(0.05 / 7)
    for high, is_slow in ((1.0, False), (0.999, True), (1.5, False)):
        slow = find(change(table, "lantern-a", speedup_high=high)).get("relaxed_and_slow", [])
        assert (slow == ["LANTERN chain5 k 20, δ 0.1"]) == is_slow
    distances = [
        add_distance(change(table, "lantern-a", tv_mean=tv)).set_index("method_id").loc["lantern-a", "distance"]
        for tv in (0.9e-5, 1e-5)
    ]
    assert distances == [0, 1e-5]


def test_lists_of_claims_are_written_in_one_cell():
    claims = {"frontier": {"all": [{"label": "a"}, {"label": "b"}], "not_measured": []}, "relaxed_and_slow": ["c"]}
    assert claim_cells(claims)[1:] == [
        ["frontier: all", "a, b"],
        ["frontier: not_measured", "–"],
        ["relaxed_and_slow", "c"],
    ]
