"""What readers are shown: which rows and columns, on pages of the report and between the markers of documents."""

from __future__ import annotations

import numpy as np
import pytest
from result_tables import METHODS, SETTINGS, join, make_tables

from conftest import ROOT
from lantern.methods import MethodSpec
from lantern_pipeline.analysis.markdown import (
    README_COLUMNS,
    README_PLAIN,
    html_page,
    markdown_table,
    method_cells,
    results_table,
    select_few,
    update_marked_block,
    with_interval,
)
from lantern_pipeline.analysis.summary import build_summary

PUBLISHED = ROOT / "workflow" / "lantern_pipeline" / "analysis" / "published_results.csv"
RELAXED = {
    "lantern": {"tree": "dynamic", "drafts": "top", "acceptance": "additive", "k": 20, "delta": 0.1},
    "lantern_chain": {"tree": "chain5", "drafts": "sampled", "acceptance": "additive", "k": 20, "delta": 0.1},
    "lantern_pp": {"tree": "chain3", "drafts": "sampled", "acceptance": "multiplicative", "k": 10, "lambda_": 2.0},
    "proximity": {"tree": "chain3", "drafts": "coupled", "acceptance": "proximity", "k": 20},
    "bounded": {"tree": "dynamic", "drafts": "top", "acceptance": "bounded", "k": 20, "delta": 0.4},
    "mine": {"tree": "dynamic", "drafts": "top", "acceptance": "additive", "k": 5, "delta": 0.1},
}


def shown(methods=METHODS):
    return results_table(build_summary(make_tables(methods), settings=SETTINGS, seed=0), SETTINGS)


@pytest.fixture(scope="module")
def table():
    return shown()


@pytest.fixture(scope="module")
def many():
    """All presets, one of them twice, and one of the user's own; the later ones are the faster."""
    extra = {
        name: (
            MethodSpec.of(name, **parts, neighbours="l2_normalised", method_id=name),
            20,
            0.5,
            0.0,
            0.5 - 0.02 * number,
        )
        for number, (name, parts) in enumerate(RELAXED.items())
    }
    eagle2 = MethodSpec.of("eagle2", tree="dynamic", drafts="top", method_id="eagle2")
    exact = {name: METHODS[name] for name in ("autoregressive", "eagle1", "coupled")}
    return shown({**exact, "eagle2": (eagle2, 32, 0.0, 0.0, 1.5), **extra})


def test_the_full_table(table):
    titles, *rows = method_cells(table)
    assert titles == [
        *("method", "tokens / forward", "speed-up", "substitutions / image", "NLL (nats / token)"),
        *(
            "Fréchet distance (shape features)",
            "CLIP score",
            "prompt accuracy (%)",
            "tokens equal to autoregressive (%)",
            "TV from the target",
        ),
    ]
    assert len(rows) == len(METHODS) + 1 and len({len(row) for row in rows}) == 1
    assert rows[0][:4] == ["autoregressive", "1.00", "1.00", "2.0"]
    assert rows[-1] == ["real images", "–", "–", "–", "–", "9.0", "0.950", "97.0", "–", "–"]
    lantern = next(row for row in rows if row[0] == "LANTERN chain k 20, δ 0.1")
    assert lantern[-2:] == ["0", "0.200 [0.100, 0.300]"]
    free = method_cells(table.assign(prompt_accuracy=np.nan, hps=0.28, hps_low=0.27, hps_high=0.29))[0]
    assert "HPS" in free and "prompt accuracy (%)" not in free  # what was not measured has no column


def test_the_total_variation_is_bounded_by_the_substitutions_where_it_is_not_known(table):
    changed = table.copy()
    names = ["substitution_rate", "substitution_rate_low", "substitution_rate_high"]
    changed.loc[table["method_id"] == "coupled", names] = 0.03, 0.02, 0.04
    for plain, expected in (((), "≤ 0.030 [0.020, 0.040]"), (README_PLAIN, "≤ 0.030")):
        rows = method_cells(changed, plain=plain)
        assert next(row for row in rows if row[0] == "coupled")[-1] == expected


def test_the_readme_has_few_rows_and_columns(many):
    few = select_few(many)
    titles, *rows = method_cells(few, README_COLUMNS, README_PLAIN)
    assert [row[0] for row in rows] == [
        *("autoregressive", "EAGLE-1 (chain5)", "coupled", "LANTERN chain k 20, δ 0.1", "LANTERN++ k 10, λ 2"),
        *("proximity k 20", "bounded k 20, δ 0.4", "real images"),
    ]
    assert [title.partition(" (")[0] for title in titles[1:]] == [
        *("tokens / forward", "speed-up", "NLL", "prompt accuracy", "TV from the target")
    ]
    untimed = select_few(many.assign(speedup=np.nan))  # the first of each preset
    expected = ["autoregressive", "eagle1", "coupled", "lantern", "lantern_pp", "proximity", "bounded", "real"]
    assert untimed["method_id"].tolist() == expected


def test_the_readme_has_the_fastest_method_without_a_draft_model_besides():
    drafts = {"eagle1": "sampled", "coupled": "coupled", "jacobi": "jacobi", "hybrid": "hybrid"}
    methods = {"autoregressive": METHODS["autoregressive"]}
    for number, (name, kind) in enumerate(drafts.items()):
        tree = "chain6+chain3" if kind == "hybrid" else "chain6"
        methods[name] = (MethodSpec.of(name, tree=tree, drafts=kind, method_id=name), 32, 0.0, 0.0, 0.8 - 0.1 * number)
    methods["slower"] = (MethodSpec.of("jacobi", tree="chain9", drafts="jacobi", method_id="slower"), 32, 0.0, 0.0, 0.9)
    assert select_few(shown(methods))["method_id"].tolist() == ["autoregressive", "coupled", "jacobi", "hybrid", "real"]


def test_pooled_rows_are_shown():
    summary = build_summary(join(make_tables(), make_tables(repeat="s1n0")), settings=SETTINGS, seed=0)
    table = results_table(summary, SETTINGS)
    assert len(table) == len(METHODS) + 1 and set(table["repeat"]) == {"pooled"}


def test_a_page_stands_alone(table):
    page = html_page("1 < 2?", "<script> & more", method_cells(table))
    assert "<h2>1 &lt; 2?</h2>" in page and "<p>&lt;script&gt; &amp; more</p>" in page
    assert page.count("<tr>") == 1 + len(table) and "<td>LANTERN chain k 20, δ 0.1</td>" in page
    assert "src=" not in page and "href=" not in page


def test_an_interval_is_left_out_where_there_is_none():
    row = {"x": 1.234, "x_low": 1.0, "x_high": 2.0, "y": 0.5, "y_low": np.nan, "y_high": None, "z": 1, "z_low": 1}
    assert with_interval(row, "x") == "1.23 [1.00, 2.00]"
    assert with_interval(row, "x", "+.0f", 100) == "+123 [+100, +200]"
    assert with_interval(row, "y") == "0.50" and with_interval(row, "nothing") == "–"
    assert with_interval({**row, "z_high": 1}, "z", ".1f") == with_interval(row, "z", ".1f") == "1.0"


def test_a_marked_block_is_replaced_and_only_it(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- results:begin -->\nold\n<!-- results:end -->\nafter\n")
    assert update_marked_block(path, "new | table", "results")
    assert path.read_text() == "before\n<!-- results:begin -->\nnew | table\n<!-- results:end -->\nafter\n"
    stamp = path.stat().st_mtime_ns
    assert not update_marked_block(path, "new | table", "results")
    assert path.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("text", ["none", "<!-- results:end --> <!-- results:begin -->", "<!-- results:begin -->"])
def test_missing_markers_are_named(tmp_path, text):
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(ValueError, match="must hold the marker"):
        update_marked_block(path, "new", "results")
    assert path.read_text() == text


def test_cells_become_markdown():
    assert markdown_table([["a", "b"], ["1", "2"]]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"
