"""What readers are shown: which rows and columns, within which width, and pages that are what the results make them."""

from __future__ import annotations

import shutil
from dataclasses import asdict

import numpy as np
import pytest
from result_tables import METHODS, SETTINGS, join, make_tables

from conftest import ROOT
from lantern.io import write_json
from lantern.methods import MethodSpec
from lantern_pipeline.analysis.findings import Finding
from lantern_pipeline.analysis.markdown import (
    publish,
    render_page,
    render_readme,
    render_results,
    results_table,
    select_few,
    update_marked_block,
)
from lantern_pipeline.analysis.summary import build_summary
from lantern_pipeline.data.tables import write_table

FINDINGS = [Finding(f"Question {i}?", f"Answer {i}.", "Details.") for i in range(7)]
RELAXED = {
    "lantern": {"tree": "dynamic", "drafts": "top", "relaxation": "additive", "k": 20, "delta": 0.1},
    "lantern_chain": {"tree": "chain3", "drafts": "sampled", "relaxation": "additive", "k": 20, "delta": 0.1},
    "lantern_pp": {"tree": "chain3", "drafts": "sampled", "relaxation": "multiplicative", "k": 10, "lambda_": 2.0},
    "proximity": {"tree": "chain3", "drafts": "coupled", "relaxation": "proximity", "k": 20},
    "bounded": {"tree": "dynamic", "drafts": "top", "relaxation": "bounded", "k": 20, "delta": 0.4},
    "mine": {"tree": "dynamic", "drafts": "top", "relaxation": "additive", "k": 5, "delta": 0.1},
}


@pytest.fixture(scope="module")
def table():
    return results_table(build_summary(make_tables(), settings=SETTINGS, seed=0), SETTINGS)


@pytest.fixture(scope="module")
def many():
    """All presets, one of them twice, and one of the user's own; the later ones are the faster."""
    extra = {
        name: (MethodSpec(name, **parts, neighbours="l2", method_id=name), 20, 0.5, 0.0, 0.5 - 0.02 * number)
        for number, (name, parts) in enumerate(RELAXED.items())
    }
    eagle2 = MethodSpec("eagle2", "dynamic", "top", method_id="eagle2")
    exact = {name: METHODS[name] for name in ("autoregressive", "eagle1", "coupled")}
    methods = {**exact, "eagle2": (eagle2, 32, 0.0, 0.0, 1.5), **extra}
    return results_table(build_summary(make_tables(methods), settings=SETTINGS, seed=0), SETTINGS)


def rows_of(text):
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]


def test_the_full_table(table):
    rows = rows_of(render_results(FINDINGS, table, {}))
    assert rows[0] == [
        *("method", "tokens / forward", "speed-up", "substitutions / image", "NLL (nats / token)", "FID", "CLIP score"),
        *("prompt accuracy (%)", "tokens equal to autoregressive (%)", "TV from the target"),
    ]
    assert len(rows) == 2 + len(METHODS) + 1 and len({len(row) for row in rows}) == 1
    assert rows[2][:4] == ["autoregressive", "1.00", "1.00", "2.0"]
    assert rows[-1] == ["real images", "–", "–", "–", "–", "9.0", "0.950", "97.0", "–", "–"]
    lantern = next(row for row in rows if row[0] == "LANTERN k 20, δ 0.1")
    assert lantern[-2:] == ["0", "0.200 [0.100, 0.300]"]


def test_what_was_not_measured_has_no_column(table):
    free = table.assign(prompt_accuracy=np.nan, hps=0.28, hps_low=0.27, hps_high=0.29)
    titles = rows_of(render_results(FINDINGS, free, {}))[0]
    assert "HPS" in titles and "prompt accuracy (%)" not in titles


def test_the_total_variation_is_bounded_by_the_substitutions_where_it_is_not_known(table):
    coupled = table["method_id"] == "coupled"
    changed = table.copy()
    changed.loc[coupled, ["substitution_rate", "substitution_rate_low", "substitution_rate_high"]] = 0.03, 0.02, 0.04
    full, small = (rows_of(text) for text in (render_results([], changed, {}), render_readme([], changed)))
    assert next(row for row in full if row[0] == "coupled")[-1] == "≤ 0.030 [0.020, 0.040]"
    assert next(row for row in small if row[0] == "coupled")[-1] == "≤ 0.030"


def test_the_readme_has_few_rows_columns_and_findings(many):
    text = render_readme(FINDINGS, many)
    rows = rows_of(text)
    assert len(rows) == 2 + 8 and len(rows[0]) == 6
    assert [row[0] for row in rows[2:]] == [
        *("autoregressive", "EAGLE-1", "coupled", "LANTERN chain k 20, δ 0.1", "LANTERN++ k 10, λ 2"),
        *("proximity k 20", "bounded k 20, δ 0.4", "real images"),
    ]
    assert rows[0][1:] == [
        "tokens / forward",
        "speed-up",
        "NLL (nats / token)",
        "prompt accuracy (%)",
        "TV from the target",
    ]
    assert max(map(len, text.splitlines())) <= 120
    assert text.count("- **Question") == 5 and "Details" not in text
    assert "Speed-ups are those of the machine that made this run." in " ".join(text.split())


def test_the_readme_has_the_fastest_method_without_a_draft_model_besides():
    drafts = {"eagle1": "sampled", "coupled": "coupled", "jacobi": "jacobi", "hybrid": "hybrid"}
    methods = {"autoregressive": METHODS["autoregressive"]}
    for number, (name, kind) in enumerate(drafts.items()):
        tree = "chain6+chain3" if kind == "hybrid" else "chain6"
        methods[name] = (MethodSpec(name, tree, kind, method_id=name), 32, 0.0, 0.0, 0.8 - 0.1 * number)
    slower = MethodSpec("jacobi", "chain9", "jacobi", method_id="slower")
    methods["slower"] = (slower, 32, 0.0, 0.0, 0.9)
    few = select_few(results_table(build_summary(make_tables(methods), settings=SETTINGS, seed=0), SETTINGS))
    assert few["method_id"].tolist() == ["autoregressive", "coupled", "jacobi", "hybrid", "real"]
    assert few["label"].tolist()[2] == "Jacobi (chain6)"


def test_of_untimed_methods_the_first_of_each_preset_is_shown(many):
    few = select_few(many.assign(speedup=np.nan))
    expected = ["autoregressive", "eagle1", "coupled", "lantern", "lantern_pp", "proximity", "bounded", "real"]
    assert few["method_id"].tolist() == expected


def test_long_findings_are_wrapped(table):
    text = render_readme([Finding("Why?", "Because " * 40)], table)
    assert max(map(len, text.splitlines())) <= 120 and "\n  Because" in text


def test_pooled_rows_are_shown():
    summary = build_summary(join(make_tables(), make_tables(repeat="s1n0")), settings=SETTINGS, seed=0)
    text = render_results(FINDINGS, results_table(summary, SETTINGS), {"a": "What speed costs."})
    assert text.startswith("20 prompts in 2 repeats of the set seen, 6 of them timed, temperature 1, guidance scale 3")
    assert len(rows_of(text)) == 2 + len(METHODS) + 1
    assert text.count("Details.") == 7 and text.endswith("## Figures\n\n- (a) What speed costs.")


def test_the_page_of_the_report_stands_alone(table):
    page = render_page([*FINDINGS, Finding("1 < 2?", "<script>", "a & b")], table)
    assert page.count("<h2>") == 9 and "<h2>1 &lt; 2?</h2>\n<p><b>&lt;script&gt;</b> a &amp; b</p>" in page
    assert "src=" not in page and "href=" not in page
    assert page.count("<tr>") == 1 + len(table) and "<td>LANTERN k 20, δ 0.1</td>" in page


def test_pages_are_made_of_the_extract(table, tmp_path):
    root = tmp_path / "root"
    (root / "workflow").mkdir(parents=True)
    shutil.copytree(ROOT / "workflow" / "report", root / "workflow" / "report")
    write_table(root / "docs" / "results.csv", table)
    write_json(root / "docs" / "findings.json", {"findings": [{"question": "Why?", "answer": "So.", "details": "D."}]})
    for name in ("README.md", "docs/results.md"):
        (root / name).write_text("# Title\n<!-- results:begin -->\n<!-- results:end -->\n")
    assert publish(root) == ["README.md", "docs/results.md"] and publish(root) == []
    assert "- **Why?** So." in (root / "README.md").read_text()
    page = (root / "docs" / "results.md").read_text()
    assert (
        "- **Why?** So. D." in page and "- (a) Same prompts, same noise, every method.\n- (b) What speed costs." in page
    )


def test_the_peers_have_a_section_of_their_own(table, tmp_path):
    for part in ("docs", "workflow/report"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "README.md", tmp_path)
    write_table(tmp_path / "docs" / "peers.csv", table.assign(law_p=0.25))
    findings = [Finding(question, "So.", "D.") for question in ("Exact, and faster?", "Who is on the frontier?")]
    write_json(tmp_path / "docs" / "peers.json", {"findings": [asdict(finding) for finding in findings]})
    assert publish(tmp_path) == ["docs/results.md"]
    section = (tmp_path / "docs" / "results.md").read_text().partition("## Peers")[2].partition("\n## ")[0]
    titles, _, first, *_ = rows_of(section)
    assert {"latency (s)", "p of the target's law"} <= set(titles) and first[-1] == "0.250"
    assert (
        section.count("So. D.") == 1
        and "- **Who is on the frontier?** So. D." in section
        and "(fig_q_frontier.png)" in section
    )


def test_published_pages_are_up_to_date(tmp_path):
    for part in ("docs", "workflow/report"):
        shutil.copytree(ROOT / part, tmp_path / part)
    shutil.copy(ROOT / "README.md", tmp_path)
    assert publish(tmp_path) == []


def test_marked_block_is_replaced_and_only_it(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("before\n<!-- results:begin -->\nold\n<!-- results:end -->\nafter\n")
    assert update_marked_block(path, "new | table\n")
    assert path.read_text() == "before\n<!-- results:begin -->\nnew | table\n<!-- results:end -->\nafter\n"
    stamp = path.stat().st_mtime_ns
    assert not update_marked_block(path, "new | table")
    assert path.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("text", ["none", "<!-- results:end --> <!-- results:begin -->", "<!-- results:begin -->"])
def test_missing_markers_are_named(tmp_path, text):
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(ValueError, match="must hold the marker"):
        update_marked_block(path, "new")
    assert path.read_text() == text
