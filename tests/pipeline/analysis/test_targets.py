"""Two targets side by side: which rows, and words that follow the numbers, whichever way they fall."""

from __future__ import annotations

import pandas as pd
import pytest
from result_tables import SETTINGS, make_tables, with_changes

from lantern_pipeline.analysis.comparisons import build_paired
from lantern_pipeline.analysis.markdown import render_targets, render_targets_page
from lantern_pipeline.analysis.summary import build_summary
from lantern_pipeline.analysis.targets import BASELINE, judge_targets, put_side_by_side, target_rows
from lantern_pipeline.data.tables import read_table, write_table

BETTER = {"eagle1": (40, 0.0, 0.0, 0.8), "lantern_a": (16, 0.9, 0.3, 0.6)}


def make_rows(maker, cross_entropy=3.9, **changes):
    """What a run says of its target, with some methods' (forwards, NLL added, accuracy lost, seconds) replaced."""
    tables = make_tables(with_changes(**changes))
    options = {"settings": SETTINGS, "seed": 0}
    summary = build_summary(tables, **options).assign(target_cross_entropy=cross_entropy)
    return target_rows(summary, build_paired(tables.images, tables.latency, **options), SETTINGS, maker)


@pytest.fixture(scope="module")
def stored():
    return make_rows("Lantern 1, commit abc, on a machine")


def find(stored, steps=None, **changes):
    answer, facts = judge_targets(put_side_by_side(stored, make_rows("this", 3.2, **changes)), steps)
    return answer, " ".join(facts)


def test_rows_are_of_methods_that_both_have_whatever_their_ids(stored, tmp_path):
    own = make_rows("this", 3.2, **BETTER)
    own.loc[own["method_id"] == "eagle1", "method_id"] = "eagle1-of-another-config"
    write_table(tmp_path / "stored.csv", stored[stored["method_id"] != "lantern-b"])
    table = put_side_by_side(read_table(tmp_path / "stored.csv"), own)
    labels = ["autoregressive", "EAGLE-1", "coupled", "LANTERN k 20, δ 0.1"]
    assert table["label"].tolist() == labels * 2
    assert table["target"].tolist() == ["stored"] * 4 + ["own"] * 4
    assert table["made_by"].unique().tolist() == ["Lantern 1, commit abc, on a machine", "this"]
    lantern = table[table["label"] == labels[3]].set_index("target")
    assert lantern["mean_accepted_length"].to_dict() == {"stored": 64 / 20, "own": 64 / 16}
    assert lantern["nll_change"].tolist() == pytest.approx([0.5, 0.9])
    assert lantern["prompt_accuracy_change"].tolist() == pytest.approx([-0.01, -0.075])
    assert table[table["method_id"] == BASELINE]["nll_change"].isna().all()


def test_words_follow_the_numbers(stored):
    answer, details = find(stored, **BETTER)
    assert answer.endswith("of 4 methods: 1 fewer, 2 as many, 1 more.")
    assert (
        "fewer: EAGLE-1 -20 %; as many: coupled +0 %, LANTERN k 20, δ 0.4 +0 %; more: LANTERN k 20, δ 0.1 +25 %."
        in (details)
    )
    assert "as much: LANTERN k 20, δ 0.4 +1.00 to +1.00; more: LANTERN k 20, δ 0.1 +0.50 to +0.90." in details
    assert "on the stored target: LANTERN k 20, δ 0.1 -1.0 points, LANTERN k 20, δ 0.4 -5.0 points; on this run's" in (
        details
    )
    assert "3.20 nats per token on held-out images, the stored one 3.90" in details
    assert "results of another run: Lantern 1, commit abc, on a machine." in details
    answer, details = find(stored)
    assert answer.endswith("of 4 methods: 4 as many.") and "fewer" not in details


def test_what_was_not_measured_is_not_spoken_of(stored):
    names = [name for name in stored if name.startswith("prompt_accuracy")]
    free = stored.assign(**dict.fromkeys(names, float("nan")))
    details = " ".join(judge_targets(put_side_by_side(free, free))[1])
    assert "accuracy" not in details and "attributes" not in details and "nan" not in details


def test_targets_of_one_training_are_told_from_the_first_to_the_last(stored):
    better = make_rows("this", 3.2, **BETTER)
    steps = pd.concat([better, stored.assign(target_cross_entropy=4.5), stored.assign(target_cross_entropy=5.0)])
    details = find(stored, steps.reset_index(drop=True))[1]
    assert (
        "Over 3 targets of one training, from 5.00 to 3.20 nats per token, tokens per forward, fewer: EAGLE-1 -20 %;"
        in (details)
    )


def test_a_section_and_a_page(stored):
    table = put_side_by_side(stored, make_rows("this", 3.2, **BETTER))
    text, page = render_targets(table), render_targets_page(table)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert rows[0][:3] == ["method", "tokens / forward, stored", "tokens / forward, own"] and len(rows) == 2 + 5
    assert (
        "\n- Tokens per forward, fewer: EAGLE-1 -20 %;" in text
        and max(map(len, text.partition("\n| ")[0].splitlines())) <= 120
    )
    assert rows[3][:3] == ["EAGLE-1", "2.00", "1.60"] and rows[5][-1] == "0.200 [0.100, 0.300]"
    assert "png" not in text and "(fig_p_targets.png)" in render_targets(table, stored)
    assert "<td>EAGLE-1</td><td>2.00</td><td>1.60</td>" in page and "src=" not in page and "href=" not in page
