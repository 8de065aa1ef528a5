"""The table of results, made of made-up tables: values by hand, pooled rows, what is missing."""

import dataclasses
import math

import pandas as pd
import pytest
from result_tables import METHODS, NUM, SETTINGS, join, make_tables

from lantern_pipeline.analysis.summary import SUMMARY_COLUMNS, build_summary, preferred_rows, select_headline


@pytest.fixture(scope="module")
def summary():
    return build_summary(make_tables(), settings=SETTINGS, seed=0)


def test_columns_and_values(summary):
    assert list(summary.columns) == list(SUMMARY_COLUMNS)
    rows = summary.set_index("method_id")
    assert rows.loc["coupled", "mean_accepted_length"] == 2.0
    assert rows.loc["coupled", "speedup"] == pytest.approx(1 / 0.7)
    assert rows.loc["coupled", "latency_s"] == pytest.approx(0.7 * 1.025)
    assert rows.loc["lantern-a", "nll"] - rows.loc["autoregressive", "nll"] == pytest.approx(0.5)
    assert rows.loc["lantern-b", "prompt_accuracy_change"] == pytest.approx(-0.2 * 5 / 20)
    assert rows.loc["lantern-a", "substitutions"] == 2.0
    for name in ("nll", "prompt_accuracy", "speedup", "mean_accepted_length", "clip_score"):
        low, value, high = (rows.loc["lantern-b", f"{name}{end}"] for end in ("_low", "", "_high"))
        assert low <= value + 1e-12 and value <= high + 1e-12


def test_the_interval_of_a_change_is_paired(summary):
    # every prompt has the same NLL offset; the change of accuracy varies only through the five prompts that lose
    row = summary.set_index("method_id").loc["coupled"]
    assert row["prompt_accuracy_change_low"] == row["prompt_accuracy_change_high"] == 0.0


def test_ceilings_appear_once_without_a_temperature():
    table = build_summary(make_tables(temperatures=(0.0, 1.0)), settings=SETTINGS, seed=0)
    real = table[table.method == "real"]
    assert len(real) == 1
    assert math.isnan(real.temperature.iloc[0])
    assert len(table) == 2 * len(METHODS) + 1


def test_prompt_sets_that_were_not_timed_have_empty_cells():
    seen, other = make_tables(), make_tables()
    for part in (other.quality, other.images, other.total_variation):
        part["prompt_set"] = "unseen"
    both = dataclasses.replace(join(seen, other), latency=seen.latency)
    table = build_summary(both, settings=SETTINGS, seed=0)
    assert table[table.prompt_set == "unseen"].speedup.isna().all()
    assert table[(table.prompt_set == "seen") & (table.method != "real")].speedup.notna().all()


def test_eager_steps_stand_beside_captured_ones():
    tables = make_tables()
    assert set(build_summary(tables, settings=SETTINGS, seed=0)["stepping"].dropna()) == {"eager"}
    graph = tables.latency.assign(stepping="graph")
    graph["seconds"] = graph["seconds"] * graph["method_id"].map(lambda name: 0.5 if name == "autoregressive" else 0.2)
    both = dataclasses.replace(tables, latency=pd.concat([tables.latency, graph], ignore_index=True))
    row = build_summary(both, settings=SETTINGS, seed=0).set_index("method_id").loc["coupled"]
    assert row["stepping"] == "graph" and row["latency_s"] == pytest.approx(0.2 * 0.7 * 1.025)
    assert row["speedup"] == pytest.approx(0.5 / 0.2 / 0.7) and row["speedup_eager"] == pytest.approx(1 / 0.7)


def test_a_missing_image_table_is_named():
    tables = make_tables()
    images = tables.images[tables.images.method_id != "coupled"]
    with pytest.raises(ValueError, match="no table of images for coupled"):
        build_summary(dataclasses.replace(tables, images=images), settings=SETTINGS, seed=0)


def test_a_quality_table_of_an_older_version_is_named():
    tables = make_tables()
    old = dataclasses.replace(tables, quality=tables.quality.drop(columns="frechet_distance_low"))
    with pytest.raises(ValueError, match="lack the column frechet_distance_low"):
        build_summary(old, settings=SETTINGS, seed=0)


def test_every_figure_of_merit_has_an_interval(summary):
    merits = "mean_accepted_length latency_s speedup substitutions nll fid kid frechet_distance kernel_distance "
    merits += "precision recall clip_score "
    merits += "prompt_accuracy all_correct tokens_equal_autoregressive tv_mean tv_share_above_delta substitution_rate"
    for name in merits.split():
        assert {name, f"{name}_low", f"{name}_high"} <= set(summary.columns), name


def test_all_images_equal_is_not_certainty(summary):
    rows = summary.set_index("method_id")
    low, high = rows.loc["coupled", ["tokens_equal_autoregressive_low", "tokens_equal_autoregressive_high"]]
    assert (low, high) == pytest.approx((0.025 ** (1 / NUM), 1.0))
    assert rows.loc["coupled", "num_near_ties"] == 0
    low, high = rows.loc["coupled", ["all_correct_low", "all_correct_high"]]
    assert (low, high) == pytest.approx((0.025 ** (1 / NUM), 1.0))


def test_near_ties_are_excepted():
    tables = make_tables()
    images = tables.images
    first = (images.method_id == "coupled") & (images.prompt_id == "p-00000")
    images.loc[first, ["is_equal", "is_near_tie"]] = False, True
    row = build_summary(tables, settings=SETTINGS, seed=0).set_index("method_id").loc["coupled"]
    assert (row.tokens_equal_autoregressive, row.num_near_ties) == (1.0, 1)
    assert row.tokens_equal_autoregressive_low == pytest.approx(0.025 ** (1 / (NUM - 1)))


def test_the_target_stands_beside_every_speedup(summary):
    rows = summary[summary.method != "real"]
    assert (rows.target_cross_entropy == 3.9).all()
    assert rows.target_prompt_accuracy.tolist() == pytest.approx([0.9] * len(rows))
    with pytest.raises(ValueError, match="no report of the target of training seed 7"):
        build_summary(make_tables(repeat="s7n0"), settings=SETTINGS, seed=0)


def test_the_total_variation_is_joined_where_it_is_known(summary):
    rows = summary.set_index("method_id")
    assert rows.loc["lantern-a", ["tv_mean", "tv_mean_low", "tv_mean_high", "tv_max"]].tolist() == [0.2, 0.1, 0.3, 0.5]
    assert math.isnan(rows.loc["coupled", "tv_mean"])


@pytest.fixture(scope="module")
def repeated():
    tables = join(make_tables(), make_tables(repeat="s1n0", drift=0.4))
    return build_summary(tables, settings=SETTINGS, seed=0)


def test_pooled_rows_come_first_and_hold_the_means_of_the_repeats(repeated):
    assert repeated.repeat.tolist() == ["pooled"] * 6 + ["s0n0"] * 6 + ["s1n0"] * 6
    rows = repeated.set_index(["method_id", "repeat"])
    pooled, first, second = (rows.loc[("lantern-a", name)] for name in ("pooled", "s0n0", "s1n0"))
    for name in (
        "nll",
        "tv_mean",
        "frechet_distance",
        "prompt_accuracy",
        "mean_accepted_length",
        "target_cross_entropy",
    ):
        assert pooled[name] == pytest.approx((first[name] + second[name]) / 2), name
    assert (pooled.num_images, pooled.num_repeats, pooled.num_timed) == (2 * NUM, 2, 12)
    assert pooled.target_cross_entropy == pytest.approx(4.0)
    assert pooled.tv_max == 0.5


def test_p_values_of_repeats_are_combined_by_fishers_method():
    tables = join(make_tables(), make_tables(repeat="s1n0"))
    tables.total_variation["law_p"] = 0.01
    rows = build_summary(tables, settings=SETTINGS, seed=0).set_index(["method_id", "repeat"])
    combined = 1e-4 * (1 - math.log(1e-4))  # the product of two uniform numbers is smaller with this probability
    assert rows.loc[("lantern-a", "pooled"), "law_p"] == pytest.approx(combined)


def test_an_interval_over_repeats_holds_their_spread(repeated):
    # the repeats' NLLs differ by 0.4, each known to about 0.1; what changes against autoregressive decoding does not
    rows = repeated.set_index(["method_id", "repeat"])
    width = rows.nll_high - rows.nll_low
    assert width[("lantern-a", "pooled")] > 1.5 * width[("lantern-a", "s0n0")]
    assert rows.loc[("coupled", "pooled"), "prompt_accuracy_change_high"] == 0.0
    tv = rows.loc[("lantern-a", "pooled"), ["tv_mean_low", "tv_mean_high"]]
    error = math.hypot(0.1 / 1.959964, math.sqrt(0.08)) / math.sqrt(2)
    assert tv.tolist() == pytest.approx([max(0, 0.4 - 1.959964 * error), 0.4 + 1.959964 * error], abs=1e-6)


def test_one_row_per_method_is_preferred(repeated, summary):
    assert (preferred_rows(repeated).repeat == "pooled").all()
    assert len(preferred_rows(repeated)) == 6
    pd.testing.assert_frame_equal(preferred_rows(summary), summary)


def test_a_place_without_a_pooled_row_keeps_its_only_repeat(repeated, summary):
    other = summary.assign(prompt_set="unseen")
    rows = preferred_rows(pd.concat([repeated, other], ignore_index=True))
    assert rows.groupby("prompt_set").repeat.unique().map(list).to_dict() == {"seen": ["pooled"], "unseen": ["s0n0"]}


def test_ceilings_are_pooled_once(repeated):
    real = repeated[repeated.method == "real"]
    assert real.repeat.tolist() == ["pooled", "s0n0", "s1n0"]
    assert real.temperature.isna().all()


def test_missing_headline_is_named(summary):
    with pytest.raises(ValueError, match=r"metrics\.headline_prompt_set unseen"):
        select_headline(summary, {**SETTINGS, "headline_prompt_set": "unseen"})
