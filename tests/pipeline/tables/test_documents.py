"""Tests that tables in README.md and docs/ are those of docs/*.csv, docs/claims.json and the batch benchmark."""

from __future__ import annotations

import shutil

import pytest

from helpers.paths import ROOT
from lantern.io import read_json
from lantern_pipeline.data.tables import read_table, write_table
from lantern_pipeline.tables import documents
from lantern_pipeline.tables.claims import claims_of_rows, describe_setting
from lantern_pipeline.tables.documents import (
    BATCHES,
    bound_cells,
    curve_cells,
    distribution_cells,
    grid_cells,
    publish,
)
from lantern_pipeline.tables.generality import find_generality_claims
from lantern_pipeline.tables.method_labels import label_rows

ON_PHOTOGRAPHS = ("fashion", "fashion_papers", "fashion_peers", "fashion_mixing")
SECTIONS = ("results", "papers", "peers", "mixing", "targets", "generality", "nodes", "grid_sizes", *ON_PHOTOGRAPHS)
TABLES = {name: read_table(ROOT / "docs" / f"{name}.csv") for name in SECTIONS}
CLAIMS = read_json(ROOT / "docs" / "claims.json")


@pytest.fixture
def copy(tmp_path):
    """Copy the files that `publish` reads and writes."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns(".*"))
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / BATCHES).parent.mkdir(parents=True)
    shutil.copy(ROOT / BATCHES, tmp_path / BATCHES)
    return tmp_path


def test_published_tables_are_up_to_date(copy):
    assert publish(copy) == []
    path = copy / "docs" / "peers.csv"
    table = read_table(path)
    table.loc[table["method_id"] == "zipar-window1", "speedup"] = 9.1617
    write_table(path, table)
    assert publish(copy) == ["docs/results.md"] and publish(copy) == []
    assert "| 9.16 [" in (copy / "docs" / "results.md").read_text()


def test_a_paragraph_about_a_run_is_broken_before_the_121st_letter(copy, monkeypatch):
    monkeypatch.setattr(documents, "describe_run", lambda setting: " ".join(["word", "long"] * 30 + ["a"] * 200))
    assert set(publish(copy)) == {"README.md", "docs/results.md"}
    lines = [line for line in (copy / "README.md").read_text().splitlines() if line.startswith(("word", "a a"))]
    assert [len(line) for line in lines[:2]] == [119, 119] and max(map(len, lines)) == 119


@pytest.mark.parametrize("name", TABLES)
def test_published_claims_are_those_of_the_table(name):
    table = TABLES[name]
    if "differs" in table:
        assert_close(find_generality_claims(table), CLAIMS[name])
        return
    rows = table[table["acceptance"].notna()].reset_index(drop=True)
    rows = rows[rows["temperature"] == 1].reset_index(drop=True)
    assert label_rows(rows).tolist() == rows["label"].tolist()
    for key, value in {"setting": describe_setting(rows), **claims_of_rows(rows)}.items():
        assert_close(value or None, CLAIMS[name].get(key))


def test_the_readmes_first_finding_is_what_the_tables_say():
    for name in ("papers", "fashion_papers"):
        lengths = TABLES[name].set_index(["temperature", "method_id"])["tokens_per_forward"]
        for temperature, is_ahead in ((1, True), (0, False)):
            at = lengths[temperature]
            others = at[at.index.str.startswith("lantern_pp-naive_extend_57")]
            assert len(others) == 3 and (at["hybrid-hybrid_50"] > others).eq(is_ahead).all()


def assert_close(found, stored):
    """Assert equality up to the digits that a table leaves out."""
    if isinstance(found, dict):
        assert found.keys() == stored.keys()
        for key, value in found.items():
            assert_close(value, stored[key])
    elif isinstance(found, list):
        for pair in zip(found, stored, strict=True):
            assert_close(*pair)
    else:
        assert found == (pytest.approx(stored, rel=1e-4, abs=1e-6) if isinstance(found, float) else stored)


def test_a_run_without_a_published_method_leaves_its_cell_empty(copy):
    path = copy / "docs" / "peers.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.endswith(",SCD\n")))
    assert publish(copy) == ["docs/results.md"]
    assert "| SCD | – | 4.20x, 4.21 |" in (copy / "docs" / "results.md").read_text()


def test_targets_are_named_by_their_grid_and_relaxed_methods_have_the_added_nll(copy):
    table = TABLES["generality"]
    table = table[table["target"].isin(["base", "grid_12"])]
    table = table.assign(grid_side=table["target"].map({"base": 8, "grid_12": 12}))
    titles, *rows = grid_cells(table)
    lines = {row[0]: row[1:] for row in rows}
    assert titles == ["", "8 x 8", "12 x 12"] and lines["what differs"] == ["–", "tokenizer.grid 12"]
    assert lines["Jacobi (chain9): tokens / forward"] == ["2.92 [2.83, 3.01]", "3.09 [2.98, 3.20]"]
    relaxed = "LANTERN++ (chain5) k 10, λ 5"
    assert lines[f"{relaxed}: NLL added"] == ["+0.18 [+0.12, +0.23]", "+0.25 [+0.19, +0.31]"]
    assert [name for name in lines if relaxed in name] == [f"{relaxed}: tokens / forward", f"{relaxed}: NLL added"]
    write_table(copy / "docs" / "grid_sizes.csv", table)
    assert publish(copy) == ["docs/results.md"]
    assert "|  | 8 x 8 | 12 x 12 |" in (copy / "docs" / "results.md").read_text()


def test_two_curves_without_a_common_length_are_not_compared():
    part = {"shortest": 2.0, "longest": 3.0, "difference": 0.5, "low": 0.25, "high": 0.75}
    part |= {"tv_first": 0.125, "tv_second": 0.0625}
    _, *rows = curve_cells({"mixing": {"constant": part, "ensemble": None}})
    assert rows[0] == ["mixing", "constant", "2.00 to 3.00", "+0.50 [+0.25, +0.75]", "0.125", "0.062"]
    assert rows[1] == ["mixing", "ensemble", "none", "–", "–", "–"]


def test_refuted_methods_are_named_with_their_p():
    found = {"num_claims": 3, "num_confirmed": 1, "num_tests": 5, "level": 0.01, "num_relaxed": 4, "num_told": 2}
    (row,) = distribution_cells({**found, "refuted": {"mine": 0.0006, "other": 0.002}})[1:]
    assert row == ["3", "1", "mine (p 0.0006), other (p 0.0020)", "5", "0.0100", "4", "2"]
    assert distribution_cells({**found, "refuted": {"mine": None}})[1][2] == "mine"
    assert distribution_cells({**found, "refuted": {}})[1][2] == "none"


def test_a_bound_that_is_exceeded_is_said():
    published = {rule: {"tv_mean": 0.25} for rule in ("sampled_paper", "top_children", "top_official")}
    found = {"delta": 0.1, "published": published, "ours_is_above": True, "num_nodes": 7, "num_deltas": 2}
    titles, *rows = bound_cells(found)
    assert titles[1] == "TV from the target at delta 0.1" and rows[2] == ["the authors' code", "0.25"]
    assert rows[3] == ["`bounded`", "above delta on 7 nodes at 2 values of it"]
