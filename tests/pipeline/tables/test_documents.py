"""Tests that tables in README.md and docs/ are those of docs/*.csv, docs/claims.json and the batch benchmark."""

from __future__ import annotations

import re
import shutil

import pytest

from helpers.paths import ROOT
from lantern.io import read_json
from lantern.methods import make_method
from lantern_pipeline.cli_words import read_method
from lantern_pipeline.data.tables import method_columns, read_table, write_table
from lantern_pipeline.tables import documents
from lantern_pipeline.tables.claims import claims_of_rows, describe_setting
from lantern_pipeline.tables.documents import (
    BATCHES,
    CHOICES,
    bound_cells,
    choice_cells,
    curve_cells,
    describe_briefly,
    distribution_cells,
    grid_cells,
    publish,
    setting_cells,
)
from lantern_pipeline.tables.generality import LENGTH, find_generality_claims
from lantern_pipeline.tables.method_labels import SYMBOLS, label_rows

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
    assert publish(copy) == ["docs/peers.md"] and publish(copy) == []
    assert "| 9.16 [" in (copy / "docs" / "peers.md").read_text()


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
    assert publish(copy) == ["docs/peers.md", "docs/which_method.md"]
    assert "| SCD | – | 4.20x, 4.21 |" in (copy / "docs" / "peers.md").read_text()
    assert "| `scd` | –; 2.82 | –; 2.48 † |" in (copy / "docs" / "which_method.md").read_text()


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
    assert publish(copy) == ["docs/grids.md"]
    assert "|  | 8 x 8 | 12 x 12 |" in (copy / "docs" / "grids.md").read_text()


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


def sections(page):
    """Return anchor -> text of the sections of a page, whose whole text has the anchor ""."""
    text = (ROOT / "docs" / page).read_text()
    parts = re.split(r"^#+ (.*)$", text, flags=re.M)
    return {
        "": text,
        **{title.lower().replace(" ", "-"): part for title, part in zip(parts[1::2], parts[2::2], strict=True)},
    }


def test_each_number_of_a_finding_stands_in_the_section_that_it_links_to():
    findings = sections("results.md")["results"].split("\n- ")[1:]
    assert len(findings) == 10
    for finding in findings:
        links = re.findall(r"\]\(([\w.]*)#?([\w-]*)\)", finding)
        assert links
        # Numbers within links and of papers' settings have no decimals, so that only those of tables count.
        wanted = set(re.findall(r"\d+\.\d+", finding.split("\n\n")[0]))
        text = "".join(sections(page or "results.md")[anchor] for page, anchor in links)
        assert not {number for number in wanted if number not in text}, finding


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice[3])
def test_a_recommended_method_is_the_one_that_was_measured(choice):
    preset, parts = read_method(choice[3], "bench")
    told = method_columns(make_method(preset, **parts).to_dict())
    for table in choice[4]:
        row = TABLES[table].set_index(["method_id", "temperature"]).loc[choice[5], choice[6]]
        for name in ("tree", "drafts", "acceptance", *SYMBOLS):
            if name in row.index and (name in parts or name in ("tree", "drafts", "acceptance")):
                assert row[name] == told[name] or (row.isna()[name] and told[name] is None), name


def test_which_method_is_what_the_tables_say():
    for name in ("results", "fashion", "peers", "fashion_peers"):
        table = TABLES[name].set_index("method_id")
        exact = table[table["is_exact"].eq(True)]
        assert exact["speedup"].idxmax() == "jacobi", name
    relaxed = "lantern_pp_hybrid-hybrid_50-hybrid-k10-lambda5"
    for names in (("results", "peers"), ("fashion", "fashion_peers")):
        lengths = {}
        for name in names:
            lengths |= TABLES[name].set_index("method_id")[LENGTH].to_dict()
        assert lengths["jacobi_50"] > lengths["scd"] and lengths["hybrid-hybrid_50"] > lengths["jacobi_50"]
        assert lengths["hybrid-hybrid_50"] > lengths["eagle1-naive_extend_57"]
    cases = read_json(ROOT / BATCHES)["cases"]["embedded"]
    for batch in ("batch 8", "batch 48"):
        rates = {method: found["this"]["images_per_s"] for method, found in cases[batch].items()}
        assert max(rates, key=lambda method: rates[method]) == "autoregressive"
    for name in ("papers", "fashion_papers"):
        papers = TABLES[name].set_index(["temperature", "method_id"])[LENGTH]
        gains = [papers[at, relaxed] / papers[at, "hybrid-hybrid_50"] for at in (1, 0)]
        assert 1.01 < gains[0] < 1.03 and gains[1] > 1.25
        assert papers[0, relaxed] == papers.loc[0].max()


def test_a_choice_has_the_numbers_of_shapes_then_of_clothes():
    titles, *rows = choice_cells(TABLES)
    lines = {(row[2], row[3]): dict(zip(titles, row, strict=True)) for row in rows}
    line = lines["either", "`zipar window=2`"]
    assert line["tokens / forward"] == "2.91; 2.91" and line["NLL added"] == "+0.20; +1.24"
    assert line["TV"] == "0.127; 0.232" and line["relative step cost, CPU"] == "1.28; 1.32 †"
    relaxed = "`lantern_pp tree=hybrid_50 drafts=hybrid k=10 lambda_=5`"
    assert lines["GPU", relaxed]["TV"].startswith("≤ 0.021; ≤ ")
    assert lines["GPU", relaxed]["NLL added"] == "+0.01; +0.00"
    assert lines["GPU, temperature 0", relaxed]["TV"] == "–"
    assert lines["GPU", "`jacobi_50`"]["NLL added"] == "0"


def test_a_method_at_its_authors_settings_has_a_line_if_it_ran_at_both_temperatures():
    worlds = {world: (TABLES[name], []) for name, world in (("papers", "shapes"), ("fashion_papers", "clothes"))}
    titles, *rows = setting_cells(worlds)
    lines = {row[0]: row[1:] for row in rows}
    assert titles[1] == "shapes: tokens / forward" and len(lines) == len(TABLES["papers"].query("temperature == 0"))
    assert lines["EAGLE-2 (dynamic 58)"][0] == "1.54 [1.49, 1.59]" and "EAGLE-2 (chain1)" not in lines


def test_a_run_is_described_in_a_line_and_other_work_is_told():
    setting = {"prompts": "8 prompts", "prompt_set": "seen", "num_timed": "no", "temperature": "1", "cfg_scale": "3"}
    assert describe_briefly(setting) == "8 prompts of the set seen, no times, temperature 1, guidance scale 3."
    timed = {**setting, "num_timed": "4", "machine": "M", "busy_elsewhere": "0.50"}
    assert ", 4 of them timed on M, while other work kept 0.50 cores busy, temperature 1," in describe_briefly(timed)
