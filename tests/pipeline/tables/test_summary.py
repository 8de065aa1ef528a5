"""Tests of the table of results, from invented tables: values by hand, pooled rows, missing measurements."""

import math

import numpy as np
import pandas as pd
import pytest

from helpers.result_tables import METHODS, NUM, SETTINGS, join, make_tables
from lantern_pipeline.measure.intervals import share_interval
from lantern_pipeline.tables.summary import (
    SUMMARY_COLUMNS,
    _share_with_interval,
    build_summary,
    preferred_rows,
    select_headline,
)


def summarise(tables):
    return build_summary(*tables, settings=SETTINGS, seed=0)


@pytest.fixture(scope="module")
def summary():
    return summarise(make_tables())


def test_columns_and_values(summary):
    assert list(summary.columns) == list(SUMMARY_COLUMNS)
    merits = "tokens_per_forward latency_s speedup substitutions nll clip_score prompt_accuracy "
    merits += "all_correct tokens_equal_autoregressive tv_mean "
    for name in (merits + "tv_share_above_delta substitution_rate").split():
        assert {name, f"{name}_low", f"{name}_high"} <= set(summary.columns), name
    rows = summary.set_index("method_id")
    coupled, a, b = (rows.loc[name] for name in ("coupled", "lantern-a", "lantern-b"))
    assert (coupled.tokens_per_forward, coupled.num_near_ties, a.substitutions) == (2.0, 0, 2.0)
    assert (coupled.speedup, coupled.latency_s) == pytest.approx((1 / 0.7, 0.7 * 1.025))
    assert a.nll - rows.loc["autoregressive", "nll"] == pytest.approx(0.5)
    # paired: the change of accuracy varies only through the five prompts that lose
    assert b.prompt_accuracy_change == pytest.approx(-0.2 * 5 / 20)
    assert coupled.prompt_accuracy_change_low == coupled.prompt_accuracy_change_high == 0.0
    for name in ("nll", "prompt_accuracy", "speedup", "tokens_per_forward", "clip_score"):
        assert b[f"{name}_low"] - 1e-12 <= b[name] <= b[f"{name}_high"] + 1e-12
    for name in ("tokens_equal_autoregressive", "all_correct"):  # all of 20 images is not certainty
        assert coupled[[f"{name}_low", f"{name}_high"]].tolist() == pytest.approx([0.025 ** (1 / NUM), 1.0])
    assert a[["tv_mean", "tv_mean_low", "tv_mean_high", "tv_max"]].tolist() == [0.2, 0.1, 0.3, 0.5]
    assert math.isnan(coupled.tv_mean)
    decoded = summary[summary.method != "real"]
    assert set(decoded.target_cross_entropy) == {3.9} and set(decoded.stepping) == {"eager"}
    assert decoded.target_prompt_accuracy.tolist() == pytest.approx([0.9] * len(decoded))


def test_ceilings_appear_once_and_what_was_not_timed_has_empty_cells():
    seen, other = make_tables(temperatures=(0.0, 1.0)), make_tables()
    for part in (other.quality, other.images, other.total_variation):
        part["prompt_set"] = "unseen"
    table = summarise(join(seen, other)._replace(latency=seen.latency))
    assert table[table.method == "real"].temperature.isna().all() and len(table) == 3 * len(METHODS) + 2
    assert table[table.prompt_set == "unseen"].speedup.isna().all()
    assert table[(table.prompt_set == "seen") & (table.method != "real")].speedup.notna().all()


def test_eager_steps_stand_beside_captured_ones():
    tables = make_tables()
    graph = tables.latency.assign(stepping="graph")
    graph["seconds"] = graph["seconds"] * graph["method_id"].map(lambda name: 0.5 if name == "autoregressive" else 0.2)
    both = tables._replace(latency=pd.concat([tables.latency, graph], ignore_index=True))
    row = summarise(both).set_index("method_id").loc["coupled"]
    assert row["stepping"] == "graph" and row["latency_s"] == pytest.approx(0.2 * 0.7 * 1.025)
    assert row["speedup"] == pytest.approx(0.5 / 0.2 / 0.7) and row["speedup_eager"] == pytest.approx(1 / 0.7)


def test_eager_steps_alone_have_no_second_speedup(summary):
    assert summary[["speedup_eager", "speedup_eager_low", "speedup_eager_high"]].isna().all(axis=None)
    assert summary.loc[summary.method != "real", "speedup"].notna().all()


def test_near_ties_are_excepted():
    tables = make_tables()
    first = (tables.images.method_id == "coupled") & (tables.images.prompt_id == "p-00000")
    tables.images.loc[first, ["is_equal", "is_near_tie"]] = False, True
    row = summarise(tables).set_index("method_id").loc["coupled"]
    assert (row.tokens_equal_autoregressive, row.num_near_ties) == (1.0, 1)
    assert row.tokens_equal_autoregressive_low == pytest.approx(0.025 ** (1 / (NUM - 1)))


@pytest.fixture(scope="module")
def repeated():
    tables = join(make_tables(), make_tables(repeat="s1n0", drift=0.4))
    tables.total_variation["law_p"] = 0.01
    return summarise(tables)


def test_pooled_rows_come_first_and_hold_the_means_of_the_repeats(repeated):
    assert repeated.repeat.tolist() == ["pooled"] * 6 + ["s0n0"] * 6 + ["s1n0"] * 6
    assert repeated[repeated.method == "real"].temperature.isna().all()
    rows = repeated.set_index(["method_id", "repeat"])
    pooled, first, second = (rows.loc[("lantern-a", name)] for name in ("pooled", "s0n0", "s1n0"))
    means = "nll tv_mean frechet_distance prompt_accuracy tokens_per_forward target_cross_entropy"
    for name in means.split():
        assert pooled[name] == pytest.approx((first[name] + second[name]) / 2), name
    assert (pooled.num_images, pooled.num_repeats, pooled.num_timed) == (2 * NUM, 2, 12)
    assert (pooled.target_cross_entropy, pooled.tv_max) == (pytest.approx(4.0), 0.5)
    combined = 1e-4 * (1 - math.log(1e-4))  # Fisher: the product of two uniform numbers is smaller with this chance
    assert pooled.law_p == pytest.approx(combined)


def test_an_interval_over_repeats_holds_their_spread(repeated):
    # the repeats' NLLs differ by 0.4, each known to about 0.1; the change from autoregressive decoding does not
    rows = repeated.set_index(["method_id", "repeat"])
    width = rows.nll_high - rows.nll_low
    assert width[("lantern-a", "pooled")] > 1.5 * width[("lantern-a", "s0n0")]
    assert rows.loc[("coupled", "pooled"), "prompt_accuracy_change_high"] == 0.0
    # All images are equal, so resamples do not differ, and the exact interval is wider.
    assert rows.loc[("coupled", "pooled"), "tokens_equal_autoregressive_low"] == pytest.approx(0.025 ** (1 / (2 * NUM)))
    tv = rows.loc[("lantern-a", "pooled"), ["tv_mean_low", "tv_mean_high"]]
    error = math.hypot(0.1 / 1.959964, math.sqrt(0.08)) / math.sqrt(2)
    assert tv.tolist() == pytest.approx([max(0, 0.4 - 1.959964 * error), 0.4 + 1.959964 * error], abs=1e-6)


def test_one_row_per_method_is_preferred(repeated, summary):
    """The pooled row is preferred, or else the row of the only repeat."""
    rows = preferred_rows(pd.concat([repeated, summary.assign(prompt_set="unseen")], ignore_index=True))
    assert rows.groupby("prompt_set").repeat.agg(list).to_dict() == {"seen": ["pooled"] * 6, "unseen": ["s0n0"] * 6}


def test_repeats_without_a_p_value_leave_the_others_theirs():
    tables = join(make_tables(), make_tables(repeat="s1n0"))
    tables.total_variation["law_p"] = [
        0.03 if repeat == "s0n0" else math.nan for repeat in tables.total_variation.repeat
    ]
    rows = summarise(tables).set_index(["method_id", "repeat"])
    assert rows.loc[("lantern-a", "pooled"), "law_p"] == pytest.approx(0.03)
    assert math.isnan(rows.loc[("lantern-a", "s1n0"), "law_p"])


def test_the_headline_is_of_one_prompt_set_and_temperature():
    table = summarise(make_tables(temperatures=(0.0, 1.0)))
    rows = select_headline(table, SETTINGS)
    assert set(rows.temperature) == {SETTINGS["headline_temperature"]} and len(rows) == len(METHODS)


def test_shares_of_two_repeats_of_the_same_prompts_are_no_surer_than_their_prompts():
    tables = join(make_tables(), make_tables(repeat="s1n0"))
    ids = sorted(set(tables.images.prompt_id))[: NUM // 2]
    tables.images.loc[tables.images.method_id == "lantern-a", "is_equal"] = False
    tables.images.loc[(tables.images.method_id == "lantern-a") & tables.images.prompt_id.isin(ids), "is_equal"] = True
    row = summarise(tables).set_index(["method_id", "repeat"]).loc[("lantern-a", "pooled")]
    width = row.tokens_equal_autoregressive_high - row.tokens_equal_autoregressive_low
    low, high = share_interval(NUM, 2 * NUM)
    assert row.tokens_equal_autoregressive == 0.5 and width > high - low


def test_the_largest_total_variation_of_all_repeats_is_theirs_together():
    tables = join(make_tables(), make_tables(repeat="s1n0"))
    tables.total_variation.loc[tables.total_variation.repeat == "s1n0", "tv_max"] = 0.9
    rows = summarise(tables).set_index(["method_id", "repeat"])
    assert rows.loc[("lantern-a", "pooled"), "tv_max"] == 0.9 and rows.loc[("lantern-a", "s0n0"), "tv_max"] == 0.5


def test_a_share_that_prompts_decide_is_as_unsure_as_its_prompts():
    """Each of four prompts is right in both repeats or wrong in both.

    A resample with only wrong prompts is therefore not rare, and the interval must be wide.
    """
    hits, options = np.array([[1.0, 1.0, 0.0, 0.0]] * 2), {"num_resamples": 500, "seed": 0}
    found = _share_with_interval("x", hits, np.ones((2, 4), dtype=bool), options)
    assert found == {"x": 0.5, "x_low": 0.0, "x_high": 1.0}
    found = _share_with_interval("x", hits[:1], np.ones((1, 4), dtype=bool), options)
    assert (found["x_low"], found["x_high"]) == pytest.approx([float(end) for end in share_interval(2, 4)])
