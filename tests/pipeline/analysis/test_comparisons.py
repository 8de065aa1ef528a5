"""Differences paired by prompt, and equal accepted length: read off by hand, and intervals that cover."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lantern_pipeline.analysis.comparisons import (
    OF_IMAGES,
    PAIRED_COLUMNS,
    build_paired,
    compare_at_equal_length,
    judge,
)
from lantern_pipeline.metrics.intervals import bootstrap_interval, mean_statistic
from lantern_pipeline.metrics.registry import IMAGES, NEITHER, Metric

NUM = 40
SETTINGS = {"bootstrap_resamples": 300}


def make_images(repeat="s0n0", **changes):
    """Autoregressive rows, a method "m" that differs by `changes` (column -> differences), and a ceiling."""
    generator = np.random.default_rng(0)
    place = {"prompt_set": "seen", "temperature": 1.0, "repeat": repeat}
    ids = [f"p{i:02d}" for i in range(NUM)]
    base = {"nll": generator.normal(3, 1, NUM), "clip_score": generator.normal(0, 1, NUM), "prompt_accuracy": 0.5}
    base["hps"] = 0.28
    base |= {"pixel_mse": 0.0, "feature_distance": 0.0, "target_forwards": 64}
    autoregressive = pd.DataFrame({"method_id": "autoregressive", **place, "prompt_id": ids, **base})
    other = autoregressive.assign(method_id="m", target_forwards=32)
    for name, change in changes.items():
        other[name] = other[name] + change
    ceiling = autoregressive.assign(method_id="real", target_forwards=np.nan, nll=np.nan)
    return pd.concat([autoregressive, other.sample(frac=1, random_state=0), ceiling], ignore_index=True)


def make_latency(repeat="s0n0", seconds=0.5):
    rows = [("autoregressive", i, 1.0 + 0.1 * i) for i in range(6)] + [("m", i, seconds + 0.05 * i) for i in range(6)]
    table = pd.DataFrame(rows, columns=["method_id", "prompt_id", "seconds"])
    return table.assign(prompt_set="seen", temperature=1.0, repeat=repeat)


def compare(images, latency=None):
    latency = make_latency() if latency is None else latency
    return build_paired(images, latency, settings=SETTINGS, seed=0)


def conclusions(**changes):
    return compare(make_images(**changes)).set_index("metric")["conclusion"]


def test_one_row_per_method_and_metric():
    table = compare(make_images())
    assert list(table.columns) == list(PAIRED_COLUMNS)
    assert table.metric.tolist() == [*OF_IMAGES, "speedup"]
    assert (table.method_id == "m").all()
    assert table.num_prompts.tolist() == [NUM] * 6 + [6]


def test_equal_images_have_no_difference():
    assert set(conclusions()[list(OF_IMAGES)]) == {"no detectable difference at n = 40", "identical images at n = 40"}


def test_every_side_has_its_word():
    up, down = conclusions(nll=0.5, clip_score=0.1, prompt_accuracy=0.1), conclusions(nll=-0.5, clip_score=-0.1)
    assert up[["nll", "clip_score", "prompt_accuracy"]].tolist() == ["worse at n = 40"] + ["better at n = 40"] * 2
    assert down["nll"] == "lower (not a merit by itself) at n = 40"
    assert down["clip_score"] == "worse at n = 40"
    assert up["speedup"] == "better at n = 6"


def test_a_metric_without_a_better_side_is_higher_or_lower():
    plain = Metric("redness", "levels", "redness", IMAGES, NEITHER, 1)
    assert [judge(end, end, 9, metric=plain) for end in (-1.0, 1.0)] == ["lower at n = 9", "higher at n = 9"]


@pytest.mark.parametrize("metric", ["pixel_mse", "feature_distance"])
def test_one_different_image_is_a_difference(metric):
    one = (np.arange(NUM) == 3) * 0.01
    row = compare(make_images(**{metric: one})).set_index("metric").loc[metric]
    assert row.conclusion == "different images at n = 40"
    assert row.difference == pytest.approx(0.01 / NUM)
    assert row.difference_low == 0.0


def test_speedup_is_the_median_ratio_less_one():
    row = compare(make_images(), make_latency(seconds=0.25)).set_index("metric").loc["speedup"]
    ratios = (1 + 0.1 * np.arange(6)) / (0.25 + 0.05 * np.arange(6))
    assert row.difference == pytest.approx(np.median(ratios) - 1)
    assert row.difference_low <= row.difference <= row.difference_high


def test_a_difference_is_paired_by_prompt_not_by_row():
    # prompts differ by 1; the method by exactly 0.01 on each, its rows in another order
    row = compare(make_images(clip_score=0.01)).set_index("metric").loc["clip_score"]
    assert row[["difference", "difference_low", "difference_high"]].tolist() == pytest.approx([0.01] * 3)


def test_repeats_are_pooled():
    images = pd.concat([make_images(nll=0.1), make_images("s1n0", nll=0.3)])
    latency = pd.concat([make_latency(), make_latency("s1n0")])
    table = compare(images, latency).set_index(["metric", "repeat"])
    assert table.loc[("nll", "pooled"), "difference"] == pytest.approx(0.2)
    ends = table.loc[("nll", "pooled"), ["difference_low", "difference_high"]]
    assert ends.tolist() == pytest.approx([0.1, 0.3])  # the spread of the seeds; prompts agree
    assert table.loc[("nll", "pooled"), "conclusion"] == "worse at n = 40 in 2 repeats"
    assert table.loc[("nll", "s1n0"), "conclusion"] == "worse at n = 40"


def test_prompts_of_free_text_have_no_row_of_accuracy():
    assert "prompt_accuracy" not in compare(make_images(prompt_accuracy=np.nan)).metric.tolist()


def test_one_prompt_has_no_interval():
    assert judge(np.nan, np.nan, 1, metric=OF_IMAGES["nll"]) == "no interval at n = 1"


def test_a_method_without_its_baseline_is_named():
    images = make_images()
    with pytest.raises(ValueError, match="m on seen at temperature 1 has no autoregressive rows"):
        compare(images[images.method_id != "autoregressive"])


def test_about_one_true_zero_in_twenty_is_called_a_difference():
    # 600 comparisons of 60 prompts without a true difference. In 3000 experiments 6.3 % were outside; of 600, fewer
    # than 20 or more than 58 would come up less than once in 500 times.
    generator = np.random.default_rng(5)
    wrong = 0
    for trial in range(600):
        differences = generator.normal(0, 0.1, 60)
        low, high = bootstrap_interval(mean_statistic, differences, num_resamples=300, seed=trial)
        wrong += not judge(low, high, 60, metric=OF_IMAGES["clip_score"]).startswith("no detectable")
    assert 20 <= wrong <= 58


def curve(name: str, forwards: list[list[int]], nll: list[list[float]]) -> pd.DataFrame:
    """One row per method (outer lists) and prompt, images of 12 tokens."""
    rows = [
        {"method_id": f"{name}{m}", "prompt_id": f"p{p}", "num_tokens": 12, "target_forwards": f, "nll": n}
        for m, (fs, ns) in enumerate(zip(forwards, nll, strict=True))
        for p, (f, n) in enumerate(zip(fs, ns, strict=True))
    ]
    return pd.DataFrame(rows)


def test_read_off_by_hand():
    first = curve("a", [[12, 12], [4, 4]], [[1.0, 1.0], [2.0, 2.0]])  # 1 token a forward: 1 nat; 3: 2 nats
    second = curve("b", [[12, 12], [6, 6]], [[1.0, 1.0], [3.0, 3.0]])  # up to 2 tokens a forward: 3 nats
    found = compare_at_equal_length(first, second, num_resamples=50)
    assert (found["shortest"], found["longest"]) == (1, 2)
    # means over lengths 1 to 2: from 1 to 1.5 nats, and from 1 to 3
    assert (found["first"], found["second"], found["difference"]) == pytest.approx((1.25, 2.0, -0.75))
    assert (found["low"], found["high"]) == pytest.approx((-0.75, -0.75))  # both prompts say the same


def test_curves_that_begin_at_different_lengths_are_compared_on_their_common_range():
    first = curve("a", [[12, 12], [4, 4]], [[1.0, 1.0], [2.0, 2.0]])  # 1 token a forward: 1 nat; 3: 2 nats
    second = curve("b", [[6, 6], [3, 3]], [[1.0, 1.0], [3.0, 3.0]])  # 2 tokens a forward: 1 nat; 4: 3 nats
    for one, other, means in ((first, second, (1.75, 1.5)), (second, first, (1.5, 1.75))):
        found = compare_at_equal_length(one, other, num_resamples=20)
        assert (found["shortest"], found["longest"]) == (2, 3)
        assert (found["first"], found["second"]) == pytest.approx(means)


def test_order_of_methods_does_not_matter():
    first = curve("a", [[4, 6], [12, 12]], [[2.0, 2.5], [1.0, 1.0]])
    second = curve("b", [[6, 6]], [[3.0, 2.0]])
    turned = first[::-1]
    assert compare_at_equal_length(first, second, num_resamples=20) == compare_at_equal_length(
        turned, second, num_resamples=20
    )


def test_no_length_in_common():
    slow, fast = curve("a", [[12, 12], [11, 11]], [[1.0] * 2] * 2), curve("b", [[3, 3]], [[1.0, 1.0]])
    assert compare_at_equal_length(slow, fast) is compare_at_equal_length(fast, slow) is None
    touching = curve("b", [[12, 12]], [[2.0, 2.0]])  # one length is enough
    assert compare_at_equal_length(slow, touching, num_resamples=5)["difference"] == pytest.approx(-1)


def test_other_prompts():
    first, second = curve("a", [[6, 6]], [[1.0, 1.0]]), curve("b", [[6]], [[1.0]])
    with pytest.raises(ValueError, match="same prompts"):
        compare_at_equal_length(first, second)


def test_interval_covers_the_true_difference():
    """80 simulated ablations of 24 prompts, true difference 0.1: a nominal 95 % interval holds it in 67 or more.

    Chance of fewer than 67 hits at a true coverage of 93 % (percentile bootstrap, n = 24): below 1 in 1000.
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
