"""Tests of paired differences, comparisons at equal accepted length, and published numbers.

Expected values are computed by hand, and intervals are tested by simulated coverage.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from helpers.paths import ROOT
from lantern_pipeline.measure.registry import IMAGES, NEITHER, Metric
from lantern_pipeline.tables.comparisons import (
    OF_IMAGES,
    PAIRED_COLUMNS,
    build_paired,
    compare_at_equal_length,
    compare_with_published,
    conclude,
)

NUM = 40
INTERVAL = ["difference", "difference_low", "difference_high"]


def make_images(repeat="s0n0", **changes):
    """Return autoregressive rows, a method "m" that differs by `changes` (column -> differences), and a ceiling."""
    generator = np.random.default_rng(0)
    place = {"prompt_set": "seen", "temperature": 1.0, "repeat": repeat}
    ids = [f"p{i:02d}" for i in range(NUM)]
    base = {"nll": generator.normal(3, 1, NUM), "clip_score": generator.normal(0, 1, NUM), "prompt_accuracy": 0.5}
    base |= {"hps": 0.28, "pixel_mse": 0.0, "feature_distance": 0.0, "target_forwards": 64}
    autoregressive = pd.DataFrame({"method_id": "autoregressive", **place, "prompt_id": ids, **base})
    other = autoregressive.assign(method_id="m", target_forwards=32)
    for name, change in changes.items():
        other[name] = other[name] + change
    ceiling = autoregressive.assign(method_id="real", target_forwards=np.nan, nll=np.nan)
    return pd.concat([autoregressive, other.sample(frac=1, random_state=0), ceiling], ignore_index=True)


def make_latency(repeat="s0n0"):
    rows = [("autoregressive", i, 1.0 + 0.1 * i) for i in range(6)] + [("m", i, 0.25 + 0.05 * i) for i in range(6)]
    table = pd.DataFrame(rows, columns=["method_id", "prompt_id", "seconds"])
    same = {"prompt_set": "seen", "temperature": 1.0, "repeat": repeat, "round": 0, "busy_elsewhere": 0.0}
    same |= {"target_forwards": 16, "machine": "a CPU"}
    return table.assign(**same, cpu_seconds=table["seconds"])


def compare(images, latency=None):
    latency = make_latency() if latency is None else latency
    return build_paired(images, latency, settings={"bootstrap_resamples": 300}, seed=0)


def test_one_row_per_method_and_metric():
    table = compare(make_images())
    assert list(table.columns) == list(PAIRED_COLUMNS) and (table.method_id == "m").all()
    assert table.metric.tolist() == [*OF_IMAGES, "speedup"] and table.num_prompts.tolist() == [NUM] * 6 + [6]
    assert set(table.conclusion[:-1]) == {"no detectable difference at n = 40", "identical images at n = 40"}
    row = table.iloc[-1]  # 1 + .1 i by .25 + .05 i
    assert row.difference == pytest.approx(7.5 / 2.25 - 1) and row.conclusion == "better at n = 6"
    assert row.difference_low <= row.difference <= row.difference_high
    assert "prompt_accuracy" not in compare(make_images(prompt_accuracy=np.nan)).metric.tolist()  # free text


@pytest.mark.parametrize(
    ("metric", "change", "word"),
    [
        ("nll", 0.5, "worse"),
        ("nll", -0.5, "lower (not a merit by itself)"),
        ("clip_score", 0.01, "better"),
        ("clip_score", -0.01, "worse"),
        ("prompt_accuracy", 0.1, "better"),
    ],
)
def test_a_difference_is_paired_by_prompt_and_each_side_has_its_word(metric, change, word):
    """Prompts differ by 1 and rows are in another order. The method differs equally on each prompt."""
    row = compare(make_images(**{metric: change})).set_index("metric").loc[metric]
    assert row[INTERVAL].tolist() == pytest.approx([change] * 3) and row.conclusion == f"{word} at n = 40"


def test_one_different_image_is_a_difference_and_words_of_intervals():
    row = compare(make_images(pixel_mse=(np.arange(NUM) == 3) * 0.01)).set_index("metric").loc["pixel_mse"]
    assert (row.conclusion, row.difference_low) == ("different images at n = 40", 0.0)
    assert row.difference == pytest.approx(0.01 / NUM)
    plain = Metric("redness", "levels", "redness", IMAGES, NEITHER, 1)
    assert [conclude(end, end, 9, metric=plain) for end in (-1.0, 1.0)] == ["lower at n = 9", "higher at n = 9"]
    assert conclude(np.nan, np.nan, 1, metric=OF_IMAGES["nll"]) == "no interval at n = 1"
    for low, high in ((0.0, 1.0), (-1.0, 0.0)):  # which hold 0
        assert conclude(low, high, 9, metric=plain) == "no detectable difference at n = 9"


def test_repeats_are_pooled():
    images = pd.concat([make_images(nll=0.1), make_images("s1n0", nll=0.3)])
    table = compare(images, pd.concat([make_latency(), make_latency("s1n0")])).set_index(["metric", "repeat"])
    # the spread of the seeds; prompts agree
    assert table.loc[("nll", "pooled"), INTERVAL].tolist() == pytest.approx([0.2, 0.1, 0.3])
    assert table.loc[("nll", "pooled"), "conclusion"] == "worse at n = 40 in 2 repeats"
    assert table.loc[("nll", "s1n0"), "conclusion"] == "worse at n = 40"
    words = {"pooled": "better at n = 6 in 2 repeats", "s1n0": "better at n = 6"}
    assert {repeat: table.loc[("speedup", repeat), "conclusion"] for repeat in words} == words
    images.loc[(images["repeat"] == "s1n0") & (images["prompt_id"] == "p00"), "clip_score"] = np.nan
    pooled = compare(images).set_index(["metric", "repeat"]).loc[("clip_score", "pooled")]
    assert pooled["num_prompts"] == NUM - 1 and pooled["difference"] == 0  # prompts that some repeat lacks stay out


def curve(name: str, forwards: list[list[int]], nll: list[list[float]]) -> pd.DataFrame:
    """Return one row per method (outer lists) and prompt, for images of 12 tokens."""
    rows = [
        {"method_id": f"{name}{m}", "prompt_id": f"p{p}", "num_tokens": 12, "target_forwards": f, "nll": n}
        for m, (fs, ns) in enumerate(zip(forwards, nll, strict=True))
        for p, (f, n) in enumerate(zip(fs, ns, strict=True))
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("forwards", "lengths", "means"),
    [
        ([[12, 12], [6, 6]], (1, 2), (1.25, 2.0)),  # 1 token a forward: 1 nat; 2: 3 nats
        ([[6, 6], [3, 3]], (2, 3), (1.75, 1.5)),  # 2 tokens a forward: 1 nat; 4: 3 nats
    ],
)
def test_curves_are_read_off_on_their_common_range(forwards, lengths, means):
    first = curve("a", [[4, 4], [12, 12]], [[2.0, 2.0], [1.0, 1.0]])  # 1 token a forward: 1 nat; 3: 2 nats
    second = curve("b", forwards, [[1.0, 1.0], [3.0, 3.0]])
    for one, other, expected in ((first, second, means), (second, first, means[::-1])):
        found = compare_at_equal_length(one, other, num_resamples=20)
        assert (found["shortest"], found["longest"]) == lengths
        assert (found["first"], found["second"]) == pytest.approx(expected)
        difference = expected[0] - expected[1]  # both prompts say the same
        assert [found[name] for name in ("difference", "low", "high")] == pytest.approx([difference] * 3)


def test_a_curve_is_read_off_at_21_lengths_and_resampled_a_thousand_times_unless_told_otherwise():
    first = curve("a", [[12, 12], [7, 7], [6, 6], [4, 4]], [[1.0, 1.0], [7.0, 7.0], [2.0, 2.0], [3.0, 5.0]])
    second = curve("b", [[12, 12], [4, 4]], [[0.0, 1.0], [0.0, 3.0]])
    found = compare_at_equal_length(first, second)
    expected = np.interp(np.linspace(1, 3, 21), [1, 12 / 7, 2, 3], [1, 7, 2, 4]).mean()
    assert (found["first"], found["second"]) == pytest.approx((expected, 1.0))
    assert found == compare_at_equal_length(first, second, num_resamples=1000, seed=0)
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "quantile", lambda values, levels: asked.append((len(values), levels)) or (0.0, 0.0))
        compare_at_equal_length(first, second)
    assert asked == [(1000, pytest.approx([0.025, 0.975]))]


def test_curves_that_cannot_be_compared():
    slow, fast = curve("a", [[12, 12], [11, 11]], [[1.0] * 2] * 2), curve("b", [[3, 3]], [[1.0, 1.0]])
    assert compare_at_equal_length(slow, fast) is compare_at_equal_length(fast, slow) is None
    touching = curve("b", [[12, 12]], [[2.0, 2.0]])  # one length is enough
    assert compare_at_equal_length(slow, touching, num_resamples=5)["difference"] == pytest.approx(-1)


def test_resamples_without_a_common_length_are_left_out():
    # Of both prompts, 1.5 and 1.2 to 2.4 tokens a forward; of the second alone, 3 and 1.5 to 2.
    first = curve("a", [[12, 4]], [[1.0, 9.0]])
    second = curve("b", [[12, 8], [4, 6]], [[1.0, 5.0], [1.0, 5.0]])
    found = compare_at_equal_length(first, second, num_resamples=50)
    assert found["difference"] == 2.0 and (found["low"], found["high"]) == (0.0, 2.0)  # not 4, of the second alone


def test_interval_covers_the_true_difference():
    """80 simulated ablations of 24 prompts: a 95 % interval covers the true difference of 0.1 in 67 or more.

    With a true coverage of 93 % (percentile bootstrap, n = 24), fewer than 67 occur with probability below 1 in 1000.
    """
    generator, hits = np.random.default_rng(0), 0
    for number in range(80):
        level = generator.normal(3.0, 0.3, 24)
        forwards = generator.integers(5, 8, (2, 24)).tolist()
        make = [level + shift + generator.normal(0, 0.2, 24) for shift in (0.1, 0.0)]
        first, second = (curve(name, [f], [n.tolist()]) for name, f, n in zip("ab", forwards, make, strict=True))
        first["target_forwards"] = second["target_forwards"].to_numpy()  # single points of one length
        found = compare_at_equal_length(first, second, num_resamples=150, seed=number)
        hits += found["low"] <= 0.1 <= found["high"]
    assert 67 <= hits <= 80


# --- published numbers --------------------------------------------------------------------------------


def summary():
    """Return rows of LANTERN at two deltas, EAGLE-2 at two temperatures, and another prompt set."""
    rows = [
        ("lantern-a", "lantern", 0.3, 1.0, "coco", 1.5),
        ("lantern-b", "lantern", 0.4, 1.0, "coco", 1.7),
        ("eagle2", "eagle2", None, 1.0, "coco", 0.9),
        ("eagle2", "eagle2", None, 0.0, "coco", 1.2),
        ("eagle2", "eagle2", None, 1.0, "parti", 9.0),
    ]
    frame = pd.DataFrame(rows, columns=["method_id", "method", "delta", "temperature", "prompt_set", "speedup"])
    return frame.assign(repeat="s0n0", speedup_low=frame["speedup"] - 0.1, fid=20.0, omega=None)


def line(table, source, method, **more):
    found = table[(table["source"] == source) & (table["method"] == method)]
    for name, value in more.items():
        found = found[found[name] == value]
    return found


def test_published_rows_meet_ours_by_method_temperature_and_parameters():
    published = pd.read_csv(ROOT / "workflow/lantern_pipeline/tables/published_results.csv")
    settings = {"headline_prompt_set": "coco", "headline_temperature": 1.0}
    table = compare_with_published(published, summary(), settings, "LlamaGen-XL stage I")
    (vvs,) = line(table, "VVS", "lantern", parameters="delta 0.3").to_dict("records")
    assert (vvs["method_id"], vvs["speedup_published"], vvs["speedup"]) == ("lantern-a", 1.45, 1.5)
    assert (vvs["fid_published"], vvs["fid"], vvs["speedup_low"]) == (24.97, 20.0, 1.4)
    (greedy,) = line(table, "LANTERN", "eagle2", temperature=0.0).to_dict("records")
    assert (greedy["speedup_published"], greedy["speedup"]) == (1.29, 1.2)
    # a source without parameters meets every row of its method, and numbers that nothing meets stay
    assert sorted(line(table, "CIAR", "lantern")["method_id"]) == ["lantern-a", "lantern-b"]
    (missing,) = line(table, "VVS", "lantern", parameters="delta 0.2").to_dict("records")
    assert pd.isna(missing["speedup"]) and missing["speedup_published"] == 1.26
    assert set(table.loc[table["is_same_model"], "model"]) == {"LlamaGen-XL stage I"}
    assert not compare_with_published(published, summary(), settings, None)["is_same_model"].any()
