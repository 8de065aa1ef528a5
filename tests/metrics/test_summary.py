import math

import numpy as np
import pandas as pd
import pytest

from lantern.methods import MethodSpec
from lantern.metrics.labels import label_families, label_rows
from lantern.metrics.markdown import render_markdown, update_marked_block
from lantern.metrics.summary import SUMMARY_COLUMNS, build_summary
from lantern.metrics.verdict import compute_verdict, interval

NUM = 20
SETTINGS = {"bootstrap_resamples": 200, "headline_prompt_set": "seen", "headline_temperature": 1.0}
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


def make_tables(methods=METHODS, temperatures=(1.0,), has_scenes=True):
    """Quality, image and latency tables as their stages write them."""
    generator = np.random.default_rng(0)
    nll, accuracy, ids = generator.normal(3.5, 0.2, NUM), np.full(NUM, 0.9), [f"seen-{i:05d}" for i in range(NUM)]
    quality, images, latency = [], [], []
    for temperature in temperatures:
        for method_id, (spec, forwards, worse, lost, seconds) in methods.items():
            head = {"method_id": method_id, "prompt_set": "seen", "temperature": temperature}
            parts = {("method" if k == "name" else k): v for k, v in spec.to_dict().items()}
            kept = (accuracy - lost * (np.arange(NUM) < 5)) if has_scenes else np.full(NUM, np.nan)
            fixed = {"fid": 9.0, "kid": 0.1, "kid_std": 0.0, "precision": 0.8, "recall": 0.7, "all_correct": 0.5}
            equal = float(spec.relaxation == "none" and spec.drafts != "sampled")
            means = {"nll": (nll + worse).mean(), "clip_score": 0.9, "prompt_accuracy": kept.mean()}
            exact = {"tokens_equal_autoregressive": equal, "num_near_ties": 0}
            quality.append({**head, **parts, "cfg_scale": 3.0, "num_images": NUM, **means, **fixed, **exact})
            counts = {"num_tokens": 64, "target_forwards": forwards, "substitutions": 2.0}
            columns = {"nll": nll + worse, "clip_score": 0.9, "prompt_accuracy": kept}
            images.append(pd.DataFrame({**head, "prompt_id": ids, **counts, **columns}))
            latency += [{**head, "prompt_id": i, "seconds": seconds * (1 + 0.01 * j)} for j, i in enumerate(ids[:6])]
        head = {"method_id": "real", "prompt_set": "seen", "temperature": temperature}
        quality.append(
            {**head, "method": "real", "cfg_scale": 3.0, "num_images": NUM, "prompt_accuracy": 0.97, **fixed}
        )
        columns = {"nll": np.nan, "clip_score": 0.95, "prompt_accuracy": 0.97}
        images.append(pd.DataFrame({**head, "prompt_id": ids, **columns}))
    return [pd.DataFrame(quality)], images, pd.DataFrame(latency)


@pytest.fixture(scope="module")
def summary():
    return build_summary(*make_tables(), settings=SETTINGS, seed=0)


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
    table = build_summary(*make_tables(temperatures=(0.0, 1.0)), settings=SETTINGS, seed=0)
    real = table[table.method == "real"]
    assert len(real) == 1
    assert math.isnan(real.temperature.iloc[0])
    assert len(table) == 2 * len(METHODS) + 1


def test_prompt_sets_that_were_not_timed_have_empty_cells():
    quality, images, latency = make_tables()
    others = [[table.assign(prompt_set="unseen") for table in tables] for tables in (quality, images)]
    table = build_summary([*quality, *others[0]], [*images, *others[1]], latency, settings=SETTINGS, seed=0)
    assert table[table.prompt_set == "unseen"].speedup.isna().all()
    assert table[(table.prompt_set == "seen") & (table.method != "real")].speedup.notna().all()


def test_a_missing_image_table_is_named():
    quality, images, latency = make_tables()
    with pytest.raises(ValueError, match="no table of images for coupled"):
        build_summary(quality, images[:2] + images[3:], latency, settings=SETTINGS, seed=0)


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
    assert verdict["numbers"]["relaxed_name"] == "LANTERN k 20, δ 0.1"
    assert verdict["numbers"]["lossless_accepted"] == "2.00"
    assert "Not reached: a relaxed speed-up of at least 2" in verdict["text"]
    assert "at a change of prompt accuracy of -1.0 points" in verdict["text"]
    assert "Exact: rows of exact methods" in verdict["text"]
    assert "in every image: 1 of 1 (0 images excepted" in verdict["text"]


def test_verdict_describes_the_rulers(summary):
    reports = {
        "clip": {"val_image_to_text_accuracy": 0.99, "val_text_to_image_accuracy": 0.98, "num_candidates": 32},
        "recogniser": {"val": {"accuracy": 0.995}, "unseen": {"accuracy": 0.9}},
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


def test_verdict_is_honest_when_nothing_is_fast():
    methods = with_changes(
        eagle1=(32, 0, 0, 2.0), coupled=(32, 0, 0, 1.5), lantern_a=(20, 1, 0.9, 0.5), lantern_b=(16, 1, 0.9, 0.3)
    )
    verdict = compute_verdict(build_summary(*make_tables(methods), settings=SETTINGS, seed=0), SETTINGS)
    assert not any(claim["holds"] for claim in verdict["claims"])
    assert "Not reached: a lossless speed-up of at least 1.2; the best, coupled reaches 0.67" in verdict["text"]
    assert "no timed row keeps prompt accuracy within 2 points" in verdict["text"]
    assert verdict["numbers"]["relaxed_name"] == "none"
    assert verdict["numbers"]["relaxed_speedup"] == "not measured"


def test_verdict_says_so_when_prompts_have_no_attributes():
    table = build_summary(*make_tables(has_scenes=False), settings=SETTINGS, seed=0)
    verdict = compute_verdict(table, SETTINGS)
    assert "prompt accuracy says nothing here" in verdict["text"]
    assert verdict["claims"][1]["method"] == "lantern-b"


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
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 2 + len(METHODS) + 1
    assert table[2].startswith("| autoregressive | 1.00 | 1.00 |")
    assert table[-1].startswith("| real images | – | – | – | 97.0 |")


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
