"""Tests of many targets: gains over the exact method with the same drafts, ambiguity, claims that follow the table."""

from __future__ import annotations

import math
from functools import cache

import pandas as pd
import pytest

from helpers.result_tables import SETTINGS, make_tables, with_changes
from lantern.io import write_json
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.tables.comparisons import build_paired
from lantern_pipeline.tables.generality import (
    COLUMNS,
    describe_changes,
    find_generality_claims,
    find_grid_side,
    measure_gains,
    measure_masses,
    target_rows,
)
from lantern_pipeline.tables.markdown import target_cells
from lantern_pipeline.tables.summary import build_summary

LANTERN = "LANTERN chain5 k 20, δ 0.1"


@cache
def make_rows(forwards):
    """Return the rows of a target. EAGLE-1 takes 32 forward passes per image, LANTERN the given number."""
    tables = make_tables(with_changes(eagle1=(32, 0.0, 0.0, 0.8), lantern_a=(forwards, 0.5, 0.04, 0.6)))
    options = {"settings": SETTINGS, "seed": 0}
    summary, paired = build_summary(*tables, **options), build_paired(tables.images, tables.latency, **options)
    decoded = tables.images[tables.images["method_id"] != "real"]
    return target_rows(summary, paired, decoded, SETTINGS, 0)


def make_target(name, top10, forwards=20, differs=None):
    masses = {f"{kind}{end}": mass for kind, mass in (("top1", 0.3), ("top10", top10)) for end in ("", "_low", "_high")}
    about = {"target": name, "grid_side": 8, "differs": differs, "made_by": "this"}
    return make_rows(forwards).assign(**about, **masses)[list(COLUMNS)]


def make_table(*targets):
    return pd.concat([make_target(*target) for target in targets], ignore_index=True)


GROWING = [("base", 0.8, 20), *((f"t{i}", 0.8 - 0.1 * i, 20 - i, "tokenizer.grid 12") for i in range(1, 6))]


def test_gains_are_over_the_exact_method_on_the_same_drafts_and_tree():
    rows = make_target("base", 0.8).set_index("method_id")
    assert rows["gain"].dropna().to_dict() == pytest.approx({"lantern-a": 32 / 20, "lantern-b": 2.0})
    assert rows["gain_over"].dropna().unique().tolist() == ["eagle1"]
    assert (rows.loc["lantern-a", ["gain_low", "gain_high"]] == 1.6).all()  # all images take equally many passes
    changes = {"eagle1": 0, "coupled": 0, "lantern-a": 0.5, "lantern-b": 1}
    assert rows["nll_change"].dropna().to_dict() == pytest.approx(changes)
    alone = make_rows(20)[["method_id", "is_exact", "drafts", "tree"]]
    alone.loc[alone["method_id"] == "lantern-b", "tree"] = "chain3"
    gains = measure_gains(
        alone, make_tables().images.dropna(subset="target_forwards"), {"num_resamples": 20, "seed": 0}
    )
    assert gains["gain"].notna().tolist() == (alone["method_id"] == "lantern-a").tolist()


def test_ambiguity_is_the_guided_targets():
    images = {"image": [0, 0, 1, 1], "position": [0, 1, 0, 1], "top1": [0.2, 0.4, 0.5, 0.7], "top10": 0.9}
    other = pd.DataFrame({"cfg_scale": 1.0, **images}).assign(top1=0.0)
    table = pd.concat([other, pd.DataFrame({"cfg_scale": 3.0, **images})], ignore_index=True)
    found = measure_masses(table, 3.0, {"num_resamples": 200, "seed": 0})
    assert found["top1"] == pytest.approx(0.45) and found["top10"] == pytest.approx(0.9)
    assert found["top1_low"] == pytest.approx(0.3) and found["top1_high"] == pytest.approx(0.6)


def test_the_claims_follow_the_numbers(tmp_path):
    claims = find_generality_claims(make_table(*GROWING))
    write_json(tmp_path / "claims.json", claims)
    found = claims["lantern-a"]
    assert (found["label"], found["measure"]) == (LANTERN, "gain")
    assert (found["num_targets"], found["num_above_one"], found["base"]) == (6, 6, pytest.approx(1.6))
    assert (found["gain_min"], found["gain_max"]) == pytest.approx((1.6, 32 / 15))
    assert list(found["unlike_base"]) == ["t1", "t2", "t3", "t4", "t5"]
    assert found["tau"] == pytest.approx(1) and found["p"] == pytest.approx(2 / 720)  # two of 6! orders
    assert (found["nll_change_min"], found["tv_mean_max"]) == pytest.approx((0.5, 0.2))
    exact = claims["eagle1"]
    assert (exact["measure"], exact["unlike_base"]) == ("tokens_per_forward", {}) and "tau" not in exact  # all alike
    falling = [(name, 1 - mass, *rest) for name, mass, *rest in GROWING]
    assert find_generality_claims(make_table(*falling))["lantern-a"]["tau"] == pytest.approx(-1)
    assert find_generality_claims(make_table(("base", 0.8, 32), ("t", 0.7, 40)))["lantern-a"]["num_above_one"] == 0


def test_an_interval_that_touches_another_or_no_gain_is_not_apart_from_it():
    table = make_table(("base", 0.8, 20), ("t1", 0.7, 18), ("t2", 0.6, 16))
    is_lantern = table["method_id"] == "lantern-a"
    for target, low, high in (("base", 1.4, 1.6), ("t1", 1.6, 2.0), ("t2", 1.0, 1.4)):
        table.loc[is_lantern & (table["target"] == target), ["gain_low", "gain_high"]] = low, high
    found = find_generality_claims(table)["lantern-a"]
    assert found["unlike_base"] == {} and found["num_above_one"] == 2
    table.loc[is_lantern & (table["target"] == "t1"), "gain_low"] = 1.61
    table.loc[is_lantern & (table["target"] == "t2"), ["gain_low", "gain_high"]] = 1.01, 1.39
    found = find_generality_claims(table)["lantern-a"]
    assert list(found["unlike_base"]) == ["t1", "t2"] and found["num_above_one"] == 3


def test_the_grid_is_that_of_the_run_unless_a_target_changes_it():
    assert find_grid_side({"tokenizer": {"codebook_size": 256}}, 8) == find_grid_side({}, 8) == 8
    assert find_grid_side({"tokenizer": {"grid": 12}}, 8) == 12
    assert find_grid_side({"tokenizer": {"grid": [36, 24]}}, 8) == find_grid_side({}, (36, 24)) == 36


def test_a_table_of_targets(tmp_path):
    write_table(tmp_path / "generality.csv", make_table(*GROWING))
    titles, *rows = target_cells(read_table(tmp_path / "generality.csv"))
    lines = {row[0]: row[1:] for row in rows}
    changes = {"tokenizer": {"checkpoint": "a", "grid": 12}, "target": {"has_qk_norm": True}}
    assert describe_changes(changes) == "tokenizer.grid 12, target.has_qk_norm true"
    assert titles == ["", "base", "t1", "t2", "t3", "t4", "t5"] and len(rows) == len(lines)
    assert lines["what differs"] == ["–", *["tokenizer.grid 12"] * 5]
    assert lines["cross-entropy (nats / token)"][0] == "3.90" and lines["top-10"][:2] == ["0.80", "0.70"]
    assert lines[f"{LANTERN}: tokens / forward"][0] == "3.20" and lines[f"{LANTERN}: gain"][-1] == "2.13"
    assert lines[f"{LANTERN}: NLL added"][0] == "+0.50" and lines[f"{LANTERN}: TV"][0] == "0.200 [0.100, 0.300]"
    assert [name for name in lines if name.startswith("EAGLE-1")] == ["EAGLE-1 (chain5): tokens / forward"]
    assert "nan" not in str(rows)
    rows = target_cells(make_table(*GROWING).assign(tv_mean=math.nan))
    assert not any(row[0].endswith(": TV") for row in rows)  # a measurement that no target has
