import numpy as np
import pytest

from lantern.metrics.bootstrap import bootstrap_interval, mean_statistic, median_statistic, ratio_statistic


def test_interval_of_the_mean_covers_the_truth_about_95_percent_of_the_time():
    # 400 experiments; a percentile interval of 40 skewed values covers a little less than 95 %. If the true coverage
    # were 0.93, fewer than 355 hits of 400 (0.8875) would come up less than once in 500 times; more than 394 would mean
    # that the interval is too wide.
    generator = np.random.default_rng(0)
    hits = 0
    for trial in range(400):
        values = generator.exponential(1.0, size=40)
        low, high = bootstrap_interval(mean_statistic, values, num_resamples=400, seed=trial)
        hits += low <= 1.0 <= high
    assert 355 <= hits <= 394


def test_interval_of_a_ratio_of_sums_covers_the_truth():
    # tokens per forward with 3 forwards on average for 6 tokens: true ratio 2; bounds as above
    generator = np.random.default_rng(1)
    hits = 0
    for trial in range(300):
        forwards = generator.integers(2, 5, size=50)
        low, high = bootstrap_interval(ratio_statistic, np.full(50, 6.0), forwards, num_resamples=400, seed=trial)
        hits += low <= 2.0 <= high
    assert 267 <= hits <= 297


def test_columns_are_resampled_together():
    # numerator = 3 * denominator in every prompt: any paired resample has ratio 3, an unpaired one would not
    denominator = np.arange(1.0, 21.0)
    assert bootstrap_interval(ratio_statistic, 3 * denominator, denominator, seed=5) == (3.0, 3.0)


def test_matches_a_plain_loop():
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    generator = np.random.Generator(np.random.PCG64(3))
    chosen = generator.integers(0, 5, size=(50, 5))
    medians = sorted(float(np.median([values[i] for i in row])) for row in chosen)
    expected = np.quantile(medians, [0.025, 0.975])
    assert bootstrap_interval(median_statistic, values, num_resamples=50, seed=3) == pytest.approx(expected)


def test_blocks_do_not_change_the_result(monkeypatch):
    values = np.random.default_rng(0).normal(size=30)
    whole = bootstrap_interval(mean_statistic, values, num_resamples=101, seed=1)
    monkeypatch.setattr("lantern.metrics.bootstrap.BLOCK_SIZE", 100)
    assert bootstrap_interval(mean_statistic, values, num_resamples=101, seed=1) == whole


def test_one_prompt_has_no_interval():
    assert np.isnan(bootstrap_interval(mean_statistic, np.array([1.0]))).all()


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ((), {}, "at least one column"),
        (([1.0, np.nan],), {}, "not finite"),
        (([1.0, 2.0], [1.0]), {}, "equal length"),
        (([1.0, 2.0],), {"level": 1.0}, "level"),
        (([1.0, 2.0],), {"num_resamples": 0}, "num_resamples"),
    ],
)
def test_bad_input_is_named(columns, options, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_interval(mean_statistic, *map(np.array, columns), **options)
