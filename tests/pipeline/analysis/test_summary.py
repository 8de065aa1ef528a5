import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from lantern.methods import MethodSpec
from lantern_pipeline.analysis.markdown import render_markdown, update_marked_block
from lantern_pipeline.analysis.method_labels import label_families, label_rows
from lantern_pipeline.analysis.summary import (
    LAW_INTERVALS,
    LAW_VALUES,
    SUMMARY_COLUMNS,
    Measurements,
    build_summary,
    preferred_rows,
)
from lantern_pipeline.analysis.verdict import compute_verdict, interval
from lantern_pipeline.data.tables import method_columns

NUM = 20
SETTINGS = {"bootstrap_resamples": 200, "headline_prompt_set": "seen", "headline_temperature": 1.0}
FIXED = {"fid": 9.0, "kid": 0.1, "precision": 0.8, "recall": 0.7}
CROSS_ENTROPY = {0: 3.9, 1: 4.1}
# spec, forwards per image of 64 tokens, NLL added, accuracy lost on the first five prompts, seconds
METHODS = {
    "autoregressive": (MethodSpec("autoregressive", method_id="autoregressive"), 64, 0.0, 0.0, 1.0),
    "eagle1": (MethodSpec("eagle1", "chain3", "sampled", method_id="eagle1"), 32, 0.0, 0.0, 0.8),
    "coupled": (MethodSpec("coupled", "chain3", "coupled", method_id="coupled"), 32, 0.0, 0.0, 0.7),
    "lantern-a": (
        MethodSpec("lantern", "chain3", "sampled", "additive", "paper", "l2", 20, 0.1, method_id="lantern-a"),
        20,
        0.5,
        0.04,
        0.6,
    ),
    "lantern-b": (
        MethodSpec("lantern", "chain3", "sampled", "additive", "paper", "l2", 20, 0.4, method_id="lantern-b"),
        16,
        1.0,
        0.2,
        0.4,
    ),
}


def make_tables(methods=METHODS, temperatures=(1.0,), has_scenes=True, repeat="s0n0", drift=0.0, dtype="float32"):
    """What the stages write: quality, images, latency and law of one repeat whose NLL is higher by `drift`."""
    generator = np.random.default_rng(0)
    nll, accuracy, ids = generator.normal(3.5 + drift, 0.2, NUM), np.full(NUM, 0.9), [f"p-{i:05d}" for i in range(NUM)]
    quality, images, latency, law = [], [], [], []
    fixed = {name + end: value for name, value in FIXED.items() for end in ("", "_low", "_high")}
    for temperature in temperatures:
        place = {"prompt_set": "seen", "temperature": temperature, "repeat": repeat}
        for method_id, (spec, forwards, worse, lost, seconds) in methods.items():
            head = {"method_id": method_id, **place}
            parts = method_columns(spec.to_dict())
            kept = (accuracy - lost * (np.arange(NUM) < 5)) if has_scenes else np.full(NUM, np.nan)
            is_equal = spec.relaxation == "none" and spec.drafts != "sampled"
            quality.append({**head, **parts, "cfg_scale": 3.0, "dtype": dtype, "num_images": NUM, **fixed})
            counts = {"num_tokens": 64, "target_forwards": forwards, "substitutions": 2.0}
            exact = {"is_equal": is_equal, "is_near_tie": False, "margin_at_difference": np.nan if is_equal else 0.02}
            columns = {"nll": nll + worse, "clip_score": 0.9, "prompt_accuracy": kept, "is_all_correct": kept.round()}
            images.append(pd.DataFrame({**head, "prompt_id": ids, **counts, **exact, **columns}))
            latency += [{**head, "prompt_id": i, "seconds": seconds * (1 + 0.01 * j)} for j, i in enumerate(ids[:6])]
            if spec.relaxation != "none":
                values = {
                    "tv_mean": 0.2 + drift,
                    "tv_mean_low": 0.1 + drift,
                    "tv_mean_high": 0.3 + drift,
                    "tv_max": 0.5,
                }
                law.append({**head, **values})
        head = {"method_id": "real", **place}
        quality.append({**head, "method": "real", "cfg_scale": 3.0, "num_images": NUM, **fixed})
        columns = {"nll": np.nan, "clip_score": 0.95, "prompt_accuracy": 0.97, "is_all_correct": 0.0}
        images.append(pd.DataFrame({**head, "prompt_id": ids, **columns}))
    names = [name + end for name in LAW_INTERVALS for end in ("", "_low", "_high")]
    law = pd.DataFrame(law).reindex(columns=["method_id", *place, *names, *LAW_VALUES])
    return Measurements(
        pd.DataFrame(quality), pd.concat(images, ignore_index=True), pd.DataFrame(latency), law, CROSS_ENTROPY
    )


def join(*parts):
    """One set of tables from those of several repeats."""
    names = ("quality", "images", "latency", "law")
    tables = [pd.concat([getattr(part, name) for part in parts], ignore_index=True) for name in names]
    return Measurements(*tables, CROSS_ENTROPY)


@pytest.fixture(scope="module")
def summary():
    return build_summary(make_tables(), settings=SETTINGS, seed=0)


def with_changes(**changes):
    """METHODS with fields of some methods replaced: method_id=(forwards, worse, lost, seconds)."""
    return {name: (value[0], *changes.get(name.replace("-", "_"), value[1:])) for name, value in METHODS.items()}


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
    for part in (other.quality, other.images, other.law):
        part["prompt_set"] = "unseen"
    both = dataclasses.replace(join(seen, other), latency=seen.latency)
    table = build_summary(both, settings=SETTINGS, seed=0)
    assert table[table.prompt_set == "unseen"].speedup.isna().all()
    assert table[(table.prompt_set == "seen") & (table.method != "real")].speedup.notna().all()


def test_a_missing_image_table_is_named():
    tables = make_tables()
    images = tables.images[tables.images.method_id != "coupled"]
    with pytest.raises(ValueError, match="no table of images for coupled"):
        build_summary(dataclasses.replace(tables, images=images), settings=SETTINGS, seed=0)


def test_a_quality_table_of_an_older_version_is_named():
    tables = make_tables()
    old = dataclasses.replace(tables, quality=tables.quality.drop(columns="fid_low"))
    with pytest.raises(ValueError, match="lack the column fid_low"):
        build_summary(old, settings=SETTINGS, seed=0)


def test_every_figure_of_merit_has_an_interval(summary):
    merits = "mean_accepted_length latency_s speedup substitutions nll fid kid precision recall clip_score "
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


def test_the_law_is_joined_where_it_is_known(summary):
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
    for name in ("nll", "tv_mean", "fid", "prompt_accuracy", "mean_accepted_length", "target_cross_entropy"):
        assert pooled[name] == pytest.approx((first[name] + second[name]) / 2), name
    assert (pooled.num_images, pooled.num_repeats, pooled.num_timed) == (2 * NUM, 2, 12)
    assert pooled.target_cross_entropy == pytest.approx(4.0)
    assert pooled.tv_max == 0.5


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


def test_verdict_and_markdown_take_the_pooled_rows(repeated):
    verdict = compute_verdict(repeated, SETTINGS)
    assert verdict["text"].startswith("On the 20 prompts in 2 repeats of the set seen")
    assert "The target itself stands at 4.00 nats per token" in verdict["text"]
    assert "in every image: 2 of 2 (0 images excepted" in verdict["text"]  # single repeats, counted once each
    lines = render_markdown(repeated, SETTINGS).splitlines()
    assert lines[0].startswith("20 prompts in 2 repeats of `seen`")
    assert len([line for line in lines if line.startswith("|")]) == 2 + len(METHODS) + 1


def test_survives_a_csv_file(summary, tmp_path):
    summary.to_csv(tmp_path / "summary.csv", index=False)
    read = pd.read_csv(tmp_path / "summary.csv")
    assert compute_verdict(read, SETTINGS) == compute_verdict(summary, SETTINGS)


def test_verdict_names_the_best_rows(summary):
    verdict = compute_verdict(summary, SETTINGS)
    lossless, first, second = verdict["claims"]
    assert (lossless["method"], lossless["holds"]) == ("coupled", True)
    # lantern-b is faster but loses 5 points of accuracy; lantern-a loses one
    assert (first["method"], first["holds"], second["holds"]) == ("lantern-a", True, False)
    assert verdict["numbers"]["relaxed_speedup"] == "1.67"
    assert verdict["numbers"]["target_cross_entropy"] == "3.90"
    assert "The target itself stands at 3.90 nats per token" in verdict["text"]
    assert verdict["numbers"]["relaxed_name"] == "LANTERN k 20, δ 0.1"
    assert verdict["numbers"]["lossless_accepted"] == "2.00"
    assert "Not reached: a relaxed speed-up of at least 2" in verdict["text"]
    assert "at a change of prompt accuracy of -1.0 points" in verdict["text"]
    assert verdict["numbers"]["relaxed_kind"] == "relaxed method within 2 points of autoregressive prompt accuracy"
    cost = verdict["numbers"]["relaxed_cost"]
    assert " nats per token against " in cost and "and a paired change of prompt accuracy of -1.0 [" in cost
    assert "Exact: rows of exact methods" in verdict["text"]
    assert "in every image: 1 of 1 (0 images excepted" in verdict["text"]


def test_verdict_describes_the_rulers(summary):
    reports = {
        "clip": {"val_image_to_text_accuracy": 0.99, "val_text_to_image_accuracy": 0.98, "num_candidates": 32},
        "attribute_classifier": {"val": {"accuracy": 0.995}, "unseen": {"accuracy": 0.9}},
        "tokenizer": {"psnr_db": 23.4, "codes_used_share": 0.97, "accuracy": 0.96},
        "target": {"val_cross_entropy": 3.456},
    }
    text = compute_verdict(summary, SETTINGS, reports)["numbers"]["rulers"]
    for part in ("caption among 32 in 99.0 %", "reads 99.5 %", "at 23.4 dB, with 96.0 %", "3.46 nats"):
        assert part in text
    assert compute_verdict(summary, SETTINGS)["numbers"]["rulers"] == ""


def test_verdict_does_not_count_a_row_that_should_be_exact_and_is_not(summary):
    broken = summary.copy()
    broken.loc[broken.method == "coupled", "tokens_equal_autoregressive"] = 0.9
    verdict = compute_verdict(broken, SETTINGS)
    assert verdict["claims"][0]["method"] == "eagle1"
    assert "NOT exact: rows of exact methods" in verdict["text"]
    assert "in every image: 0 of 1" in verdict["text"]


def test_in_bfloat16_equality_is_reported_and_not_demanded():
    table = build_summary(make_tables(dtype="bfloat16"), settings=SETTINGS, seed=0)
    table.loc[table.method == "coupled", "tokens_equal_autoregressive"] = 0.75
    table.loc[table.method == "coupled", "margin_at_difference"] = 0.021
    verdict = compute_verdict(table, SETTINGS)
    assert "Decoded in bfloat16" in verdict["text"] and "exact: 0 of" not in verdict["text"].lower()
    assert (
        "in 75 % of the images; where the others first part, the best two candidates are 0.021 nats" in verdict["text"]
    )
    assert verdict["claims"][0]["method"] == "coupled"  # exact by construction, and the fastest


def test_verdict_is_honest_when_nothing_is_fast():
    methods = with_changes(
        eagle1=(32, 0, 0, 2.0), coupled=(32, 0, 0, 1.5), lantern_a=(20, 1, 0.9, 0.5), lantern_b=(16, 1, 0.9, 0.3)
    )
    verdict = compute_verdict(build_summary(make_tables(methods), settings=SETTINGS, seed=0), SETTINGS)
    assert not any(claim["holds"] for claim in verdict["claims"])
    assert "Not reached: a lossless speed-up of at least 1.2; the best, coupled reaches 0.67" in verdict["text"]
    assert "no timed row keeps prompt accuracy within 2 points" in verdict["text"]
    assert verdict["numbers"]["relaxed_name"] == "none"
    assert verdict["numbers"]["relaxed_speedup"] == "not measured"


def test_verdict_says_so_when_prompts_have_no_attributes():
    table = build_summary(make_tables(has_scenes=False), settings=SETTINGS, seed=0)
    verdict = compute_verdict(table, SETTINGS)
    assert "Prompt accuracy is not measured on these prompts: no relaxed method is ruled out" in verdict["text"]
    assert verdict["text"].lower().count("accuracy") == 1
    assert verdict["claims"][1]["method"] == "lantern-b"
    assert verdict["numbers"]["relaxed_kind"] == "relaxed method"
    assert "accuracy" not in verdict["numbers"]["relaxed_cost"]


def test_verdict_without_accuracy_or_a_timed_relaxed_row_speaks_of_neither():
    table = build_summary(make_tables(has_scenes=False), settings=SETTINGS, seed=0)
    table.loc[table["relaxation"] != "none", "speedup"] = np.nan
    verdict = compute_verdict(table, SETTINGS)
    assert "Not shown: a relaxed speed-up of at least 1.5; no relaxed row was timed." in verdict["text"]
    assert verdict["text"].lower().count("accuracy") == 1
    assert verdict["numbers"]["relaxed_cost"] == "not measured"


def test_missing_headline_is_named(summary):
    with pytest.raises(ValueError, match=r"metrics\.headline_prompt_set unseen"):
        compute_verdict(summary, {**SETTINGS, "headline_prompt_set": "unseen"})


def test_interval_text():
    assert interval(1.234, 2.0) == "[1.23, 2.00]"
    assert interval(float("nan"), float("nan")) == "(no interval)"


def test_labels_tell_families_of_one_preset_apart():
    specs = [
        MethodSpec("lantern", "chain3", "sampled", "additive", "paper", "l2", 20, 0.1, method_id="a"),
        MethodSpec("lantern", "dynamic", "top", "additive", "paper", "l2", 20, 0.1, method_id="b"),
        MethodSpec("autoregressive", method_id="c"),
        MethodSpec("mine", "chain3", "coupled", method_id="d"),
    ]
    table = pd.DataFrame([{**s.to_dict(), "method": s.name} for s in specs])
    families = ["LANTERN (chain3, sampled)", "LANTERN (dynamic, top)", "autoregressive", "mine"]
    assert label_families(table).tolist() == families
    assert label_rows(table).tolist()[0] == "LANTERN (chain3, sampled) k 20, δ 0.1"
    assert label_rows(table[table.name != "mine"].iloc[[1]]).tolist() == ["LANTERN k 20, δ 0.1"]


def test_markdown_table(summary):
    lines = render_markdown(summary, SETTINGS).splitlines()
    assert lines[0].startswith("20 prompts of `seen`, temperature 1, guidance scale 3")
    table = [line for line in lines if line.startswith("|")]
    assert "The target itself stands at 3.90 nats per token" in lines[0]
    assert len({line.count("|") for line in table}) == 1
    assert "0.200 [0.100, 0.300]" in next(line for line in table if line.startswith("| LANTERN k 20, δ 0.1"))
    assert len(table) == 2 + len(METHODS) + 1
    assert table[2].startswith("| autoregressive | 1.00 | 1.00 |")
    assert table[-1].startswith("| real images | – | – | – | 97.0 |")


def test_markdown_bounds_the_distance_by_the_substitutions_where_it_is_not_known(summary):
    table = summary.copy()
    coupled = table.method_id == "coupled"
    table.loc[coupled, ["substitution_rate", "substitution_rate_low", "substitution_rate_high"]] = 0.03, 0.02, 0.04
    line = next(line for line in render_markdown(table, SETTINGS).splitlines() if line.startswith("| coupled"))
    assert "| ≤ 0.030 [0.020, 0.040] |" in line


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
