"""Tests of rows and columns in tables for readers: on pages of the report and between markers of documents."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from helpers.result_tables import METHODS, SETTINGS, join, make_tables, with_changes
from lantern.methods import make_method
from lantern_pipeline.measure.registry import METRICS
from lantern_pipeline.tables.claims import claims_of_rows
from lantern_pipeline.tables.markdown import (
    FIRST,
    README_PLAIN,
    best_cells,
    claim_cells,
    describe_speed,
    html_page,
    markdown_table,
    method_cells,
    results_table,
    select_few,
    update_marked_block,
    with_interval,
)
from lantern_pipeline.tables.summary import build_summary, select_headline


def shown(tables=None):
    return results_table(build_summary(*(tables or make_tables()), settings=SETTINGS, seed=0), SETTINGS)


@pytest.fixture(scope="module")
def table():
    return shown()


def test_the_full_table(table):
    titles, *rows = method_cells(table)
    assert titles == [
        *("method", "tokens / forward", "NLL (nats / token)", "TV from the target", "prompt accuracy (%)"),
        *("substitutions / image", "Fréchet distance (classifier features)", "CLIP score"),
        *("tokens equal to autoregressive (%)", "relative step cost", "speed-up"),
    ]
    assert len(rows) == len(METHODS) + 1 and len({len(row) for row in rows}) == 1
    assert [rows[0][place] for place in (0, 1, 5, 9, 10)] == ["autoregressive", "1.00", "2.0", "1.00", "1.00"]
    assert rows[-1] == ["real images", "–", "–", "–", "97.0", "–", "9.0", "0.950", "–", "–", "–"]
    lantern = next(row for row in rows if row[0] == "LANTERN chain5 k 20, δ 0.1")
    assert [lantern[place] for place in (1, 3, 8, 9, 10)] == ["3.20", "0.200 [0.100, 0.300]", "0", "1.92", "1.67"]
    free = method_cells(table.assign(prompt_accuracy=np.nan, hps=0.28, hps_low=0.27, hps_high=0.29))[0]
    assert "HPS" in free and "prompt accuracy (%)" not in free  # a metric that was not measured has no column
    pooled = shown(join(make_tables(), make_tables(repeat="s1n0")))
    assert len(pooled) == len(METHODS) + 1 and set(pooled["repeat"]) == {"pooled"}

    # Where the total variation is not known, the substitutions bound it.
    names = ["substitution_rate", "substitution_rate_low", "substitution_rate_high"]
    bounded = table.copy()
    bounded.loc[table["method_id"] == "coupled", names] = 0.03, 0.02, 0.04
    for plain, expected in (((), "≤ 0.030 [0.020, 0.040]"), (README_PLAIN, "≤ 0.030")):
        assert next(row for row in method_cells(bounded, plain=plain) if row[0] == "coupled (chain3)")[3] == expected


def best(*changes, **columns):
    """Return the rows of `best_cells` for METHODS.

    Args:
        changes: (method id, values) pairs that replace entries of METHODS.
        columns: columns of the table of results to replace.
    """
    tables = make_tables(with_changes(**{"coupled": (31, 0, 0, 0.7), **dict(changes)}))  # emits more than EAGLE-1
    summary = build_summary(*tables, settings=SETTINGS, seed=0).assign(**columns)
    return best_cells(claims_of_rows(select_headline(summary, SETTINGS)))[1:]


def test_the_best_methods_are_shown_with_their_cost():
    exact, relaxed = best()
    both = "most tokens / forward and highest speed-up"
    assert exact == [
        f"exact: {both}",
        "coupled (chain3)",
        "2.06",
        "1.43",
        "none: the tokens of autoregressive decoding",
    ]
    assert relaxed[:3] == [f"relaxed: {both}", "LANTERN chain5 k 20, δ 0.1", "3.20"]
    assert relaxed[4].startswith("TV 0.20 [0.10, 0.30]; NLL 3.") and " → " in relaxed[4]
    assert "; prompt accuracy -1.0 [" in relaxed[4] and relaxed[4].endswith("] points")
    exact, _ = best(("eagle1", (30, 0, 0, 0.5)))  # exact, with other tokens
    assert exact[1:3] == ["EAGLE-1 (chain5)", "2.13"] and exact[4] == "none: the distribution of the target"


def test_a_method_that_is_faster_with_fewer_tokens_has_its_own_row():
    longest, fastest, _ = best(("eagle1", (30, 0, 0, 0.8)))
    assert longest[:4] == ["exact: most tokens / forward", "EAGLE-1 (chain5)", "2.13", "1.25"]
    assert fastest[:4] == ["exact: highest speed-up", "coupled (chain3)", "2.06", "1.43"]


def test_the_best_methods_say_what_is_missing():
    bad = [("lantern_a", (20, 1, 0.9, 0.5)), ("lantern_b", (16, 1, 0.9, 0.3))]
    assert best(*bad)[1] == ["relaxed", "none was run that keeps the prompt accuracy", "–", "–", "–"]
    assert best(num_timed=2)[0][3] == "1.43 (only 2 prompts timed: too few to tell)"
    untimed = best(speedup=np.nan, num_timed=np.nan)[0]
    assert untimed[0] == "exact: most tokens / forward" and untimed[2:4] == ["2.06", "–"]
    known = {"substitution_rate": 0.03, "substitution_rate_low": 0.02, "substitution_rate_high": 0.04}
    assert best(tv_mean=np.nan, **known)[1][4].startswith("TV ≤ 0.03 [0.02, 0.04]; NLL")
    assert best(tv_mean=np.nan)[1][4].startswith("TV –; NLL")
    assert "prompt accuracy" not in best(prompt_accuracy_change=np.nan)[1][4]


def test_every_metric_is_shown_with_its_digits_and_shares_in_percent():
    columns = [metric.column for metric in METRICS]
    row = pd.DataFrame([{"label": "m", "drafts": None, **dict.fromkeys(columns, 0.123456)}])
    titles, cells = method_cells(row, columns)
    shown = dict(zip(titles, cells, strict=True))
    expected = {
        "12": "tokens equal to autoregressive (%)",
        "0.1": "substitutions / image, FID, Fréchet distance (classifier features), "
        "Fréchet distance (ImageNet features)",
        "12.3": "precision (%), recall (%), precision on ImageNet features (%), recall on ImageNet features (%), "
        "prompt accuracy (%), images with every attribute right (%)",
        "0.12": "tokens / forward, relative step cost, latency (s), speed-up, NLL (nats / token), feature distance",
        "0.123": "KID, kernel distance (classifier features), kernel distance (ImageNet features), CLIP score, "
        "TV from the target, p of the chi-square test",
        "0.1235": "HPS, pixel MSE",
    }
    for text, names in expected.items():
        assert {name for name in titles if shown[name] == text} == set(names.split(", ")), text


def test_the_readme_shows_the_authors_trees_and_ours_of_as_many_nodes():
    trees = {
        "eagle1": ("naive_extend_57", "chain5"),
        "eagle2": ("dynamic58k10d4", "dynamic6k4d1"),
        "hybrid": ("hybrid_50", "chain9+chain3"),
        "jacobi": ("chain9", "chain5"),
    }
    methods = {"autoregressive": METHODS["autoregressive"]}
    for name, tree in ((name, tree) for name, pair in trees.items() for tree in pair):
        id_ = f"{name}-{tree}"
        seconds = 0.5 if tree == "chain9" else 2.0
        methods[id_] = (make_method(name, tree=tree, method_id=id_), 32, 0.0, 0.0, seconds)
    table = shown(make_tables(methods))
    titles, *rows = method_cells(select_few(table), FIRST, README_PLAIN)
    assert [row[0] for row in rows] == [
        *("autoregressive", "EAGLE-1 (static 57)", "EAGLE-2 (dynamic 58)", "hybrid, 50 nodes", "Jacobi (chain9)"),
        "real images",
    ]
    assert [title.partition(" (")[0] for title in titles] == [
        *("method", "tokens / forward", "NLL", "prompt accuracy")  # the table has no total variation
    ]
    speed = describe_speed(table)
    assert (
        "CPU: Jacobi (chain9) 2.00, trees of 50 to 58 drafts 0.50 to 0.50" in speed and "as 4.00 to 4.00 steps" in speed
    )


def test_a_page_stands_alone_and_escapes_texts():
    page = html_page("1 < 2?", "<script> & more", [["method", "x"], ["a > b", "1"]])
    assert "<h2>1 &lt; 2?</h2>" in page and "<p>&lt;script&gt; &amp; more</p>" in page
    assert "<tr><th>method</th><th>x</th></tr>" in page and "<tr><td>a &gt; b</td><td>1</td></tr>" in page
    assert "src=" not in page and "href=" not in page


def test_a_page_breaks_lines_before_intervals_and_folds_what_few_readers_want():
    folded = {"all numbers": claim_cells({"exact": {"tv_mean": None, "speedup": 1.5}})}
    page = html_page("title", [["method", "x"], ["a", "1.5 [1.0, 2.0]"]], folded=folded)
    assert "<td>1.5 <span>[1.0, 2.0]</span></td>" in page
    cells = claim_cells({"exact": {"speedup": 1.5, "speedup_low": 1.0, "speedup_high": 2.0}})
    assert cells[1:] == [["exact: speedup", "1.5 [1, 2]"]]  # the ends of the interval are in the cell of the value
    head, tail = page.split("<details><summary>all numbers</summary>")
    assert "exact: speedup" not in head and "<td>exact: tv_mean</td><td>–</td>" in tail
    assert "prefers-color-scheme: dark" in page


@pytest.mark.slow
def test_the_table_of_results_has_the_whole_width_of_its_window(browser, tmp_path, table):
    (tmp_path / "page.html").write_text(html_page("title", method_cells(table)), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1126, "height": 800})  # of the report in a window of 1400 pixels
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("div").evaluate("box => box.scrollWidth <= box.clientWidth")
    page.set_viewport_size({"width": 390, "height": 800})  # the table scrolls, the page does not
    assert page.locator("div").evaluate("box => box.scrollWidth > box.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_an_interval_is_left_out_where_there_is_none():
    row = {"x": 1.234, "x_low": 1.0, "x_high": 2.0, "y": 0.5, "y_low": np.nan, "y_high": None, "z": 1, "z_low": 1}
    assert with_interval(row, "x") == "1.23 [1.00, 2.00]"
    assert with_interval(row, "x", "+.0f", 100) == "+123 [+100, +200]"
    assert with_interval(row, "y") == "0.50" and with_interval(row, "nothing") == "–"
    assert with_interval({**row, "z_high": 1}, "z", ".1f") == with_interval(row, "z", ".1f") == "1.0"


def test_a_marked_block_is_replaced_and_only_it(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- results:begin -->\nold\n<!-- results:end -->\nafter\n")
    new = markdown_table([["a", "b"], ["1", "2"]])
    assert update_marked_block(path, new, "results")
    block = "| a | b |\n| --- | ---: |\n| 1 | 2 |"
    assert path.read_text() == f"before\n<!-- results:begin -->\n{block}\n<!-- results:end -->\nafter\n"
    stamp = path.stat().st_mtime_ns
    assert not update_marked_block(path, new, "results") and path.stat().st_mtime_ns == stamp
    for text in ("none", "<!-- results:end --> <!-- results:begin -->", "<!-- results:begin -->"):
        path.write_text(text)
        with pytest.raises(ValueError, match="must hold the marker"):
            update_marked_block(path, new, "results")
        assert path.read_text() == text
