"""Many targets: gains over the exact method on the same drafts, ambiguity, and a verdict that follows the numbers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
from result_tables import SETTINGS, make_tables, with_changes

from lantern_pipeline.analysis.comparisons import build_paired
from lantern_pipeline.analysis.generality import (
    COLUMNS,
    describe_changes,
    judge_generality,
    measure_gains,
    measure_masses,
    with_labels,
)
from lantern_pipeline.analysis.markdown import render_generality, render_generality_page
from lantern_pipeline.analysis.summary import build_summary
from lantern_pipeline.analysis.targets import target_rows
from lantern_pipeline.data.tables import read_table, write_table

OPTIONS = {"num_resamples": 200, "seed": 0}
EAGLE, LANTERN = (32, 0.0, 0.0, 0.8), (0.5, 0.04, 0.6)  # without LANTERN's forwards


def make_target(name, top10, forwards=20, differs=""):
    """A target's rows: EAGLE-1 takes 32 forwards an image, LANTERN so many."""
    masses = {f"{kind}{end}": mass for kind, mass in (("top1", 0.3), ("top10", top10)) for end in ("", "_low", "_high")}
    return make_rows(forwards).assign(target=name, differs=differs, **masses)


@cache
def make_rows(forwards):
    tables = make_tables(with_changes(eagle1=EAGLE, lantern_a=(forwards, *LANTERN)))
    options = {"settings": SETTINGS, "seed": 0}
    summary, paired = build_summary(tables, **options), build_paired(tables.images, tables.latency, **options)
    rows = target_rows(summary, paired, SETTINGS, "this")
    images = tables.images[tables.images["method_id"].isin(rows["method_id"])]
    return rows.join(measure_gains(rows, images, OPTIONS))


def make_table(*targets, path=None):
    table = pd.concat([make_target(*target) for target in targets], ignore_index=True)[list(COLUMNS)]
    if path is None:
        return with_labels(table)
    write_table(path, table)
    return read_table(path)


GROWING = [("base", 0.8, 20), *((f"t{i}", 0.8 - 0.1 * i, 20 - i, "tokenizer.grid 12") for i in range(1, 6))]


def test_gains_are_over_the_exact_method_on_the_same_drafts_and_tree():
    rows = make_target("base", 0.8).set_index("method_id")
    assert rows["gain"].dropna().to_dict() == pytest.approx({"lantern-a": 32 / 20, "lantern-b": 2.0})
    assert rows["gain_over"].dropna().unique().tolist() == ["eagle1"]
    assert (rows.loc["lantern-a", ["gain_low", "gain_high"]] == 1.6).all()  # every image takes as many forwards


def test_ambiguity_is_the_guided_targets():
    images = {"image": [0, 0, 1, 1], "position": [0, 1, 0, 1], "top1": [0.2, 0.4, 0.5, 0.7], "top10": 0.9}
    other = pd.DataFrame({"cfg_scale": 1.0, **images}).assign(top1=0.0)
    table = pd.concat([other, pd.DataFrame({"cfg_scale": 3.0, **images})], ignore_index=True)
    found = measure_masses(table, 3.0, OPTIONS)
    assert found["top1"] == pytest.approx(0.45) and found["top10"] == pytest.approx(0.9)
    assert found["top1_low"] == pytest.approx(0.3) and found["top1_high"] == pytest.approx(0.6)


def test_what_a_variant_changes_is_told_without_its_files():
    changes = {"tokenizer": {"checkpoint": "a"}, "target": {"rope": "1d", "has_qk_norm": True}}
    assert describe_changes(changes) == "target.rope 1d, target.has_qk_norm true" and describe_changes({}) == ""


def test_the_verdict_follows_the_numbers():
    carries, grows, exact = judge_generality(make_table(*GROWING))
    assert carries.answer.startswith("LANTERN k 20, δ 0.1: on 6 of 6 targets, 1.60 to 2.13 times, 1.60 on base")
    assert "(unlike it: t1 1.68, t2 1.78, t3 1.88, t4 2.00, t5 2.13)" in carries.answer
    assert "NLL +0.50 to +0.50, total variation 0.200 to 0.200" in carries.details
    assert grows.answer.startswith("LANTERN k 20, δ 0.1: grows (tau +1.00, p 0.0028; 1.60 on base, 2.13 on t5); LAN")
    assert "EAGLE-1: the same on all" in exact.answer
    falling = [(name, 1 - mass, *rest) for name, mass, *rest in GROWING]
    assert "δ 0.1: falls (tau -1.00" in judge_generality(make_table(*falling))[1].answer
    assert "on 0 of 2 targets" in judge_generality(make_table(("base", 0.8, 32), ("t", 0.7, 40)))[0].answer


def test_a_section_and_a_page(tmp_path):
    table = make_table(*GROWING, path=tmp_path / "generality.csv")
    text, page = render_generality(table), render_generality_page(table)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert rows[0][:5] == ["target", "what differs", "cross-entropy", "top-1", "top-10"]
    assert rows[2][:5] == ["base", "-", "3.90", "0.30", "0.80"] and rows[3][1] == "tokenizer.grid 12"
    assert rows[2][rows[0].index("EAGLE-1")] == "2.00 [2.00, 2.00]"
    assert rows[8][:3] == ["target", "NLL", "LANTERN k 20, δ 0.1: gain"] and len(rows) == 2 * (2 + 6)
    assert "(fig_r_generality.png)" in text and page.count("<table>") == 2
    assert all(finding.answer in page for finding in judge_generality(with_labels(table)))
    assert "nan" not in text and not np.isnan(table["top10"]).any()
