import numpy as np
import pytest
from scipy.stats import binomtest

from lantern_pipeline.measure.intervals import (
    bootstrap_interval,
    crossed_resamples,
    mean_statistic,
    mean_with_interval,
    normal_interval,
    ratio_statistic,
    share_interval,
)


def skewed_values(generator):
    """Return 40 values of mean 1, of which a percentile interval covers slightly less than 95 %."""
    return mean_statistic, 1.0, generator.exponential(1.0, size=40)


def tokens_by_forwards(generator):
    """Return 6 tokens in 3 forward passes on average: the ratio is 2."""
    return ratio_statistic, 2.0, np.full(50, 6.0), generator.integers(2, 5, size=50)


@pytest.mark.parametrize(
    "draw, trials, hits",
    # Fewer hits would come up less than once in 500 times at a true coverage of 0.93, and more mean that the interval
    # is too wide.
    [(skewed_values, 400, (355, 394)), (tokens_by_forwards, 300, (267, 297))],
)
def test_an_interval_covers_the_truth_about_95_percent_of_the_time(draw, trials, hits):
    seed = [skewed_values, tokens_by_forwards].index(draw)
    generator, found = np.random.default_rng(seed), 0
    for trial in range(trials):
        statistic, truth, *columns = draw(generator)
        low, high = bootstrap_interval(statistic, *columns, num_resamples=400, seed=trial)
        found += low <= truth <= high
    assert hits[0] <= found <= hits[1]


def test_a_paired_interval_covers_and_is_much_narrower_than_the_means_alone():
    # Prompts differ by 1.0, the two methods on one prompt by 0.1: unpaired, the interval is over ten times as wide. At
    # a coverage of 0.937 (3000 experiments), fewer than 267 of 300 would come up less than once in 1000 times.
    generator = np.random.default_rng(3)
    hits, widths = 0, np.zeros(2)
    for trial in range(300):
        prompts = generator.normal(0, 1.0, 60)
        one, other = prompts + 0.2 + generator.normal(0, 0.07, 60), prompts + generator.normal(0, 0.07, 60)
        low, high = bootstrap_interval(mean_statistic, one - other, num_resamples=400, seed=trial)
        hits += low <= 0.2 <= high
        ends = [bootstrap_interval(mean_statistic, v, num_resamples=400, seed=trial) for v in (one, other)]
        widths += high - low, np.hypot(*(end[1] - end[0] for end in ends))
    assert 267 <= hits <= 297
    assert widths[1] > 10 * widths[0]


def test_crossing_repeats_covers_where_resampling_prompts_alone_does_not():
    # 8 seeds that move the mean by 0.3 each, 48 prompts by 0.5, single images by 0.5. In 3000 experiments the coverages
    # are 0.927 and 0.716; fewer than 180 of 200, and 160 or more of 200, would come up once in 16 and 230 times. The
    # seed is fixed.
    generator = np.random.default_rng(0)
    crossed, naive = 0, 0
    for trial in range(200):
        seeds, prompts = generator.normal(0, 0.3, (8, 1)), generator.normal(0, 0.5, (1, 48))
        values = seeds + prompts + generator.normal(0, 0.5, (8, 48))
        low, high = bootstrap_interval(mean_statistic, values, num_resamples=300, seed=trial)
        crossed += low <= 0 <= high
        low, high = bootstrap_interval(mean_statistic, values.mean(axis=0), num_resamples=300, seed=trial)
        naive += low <= 0 <= high
    assert crossed >= 180
    assert naive < 160


def test_matches_a_plain_loop():
    values = np.array([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]])
    (repeats, prompts), *rest = crossed_resamples(2, 3, 40, seed=4)
    assert not rest
    pairs = zip(repeats, prompts, strict=True)
    found = [np.mean([values[r, p] for r in rs for p in ps]) for rs, ps in pairs]
    expected = np.quantile(found, [0.025, 0.975])
    assert bootstrap_interval(mean_statistic, values, num_resamples=40, seed=4) == pytest.approx(expected)
    prompts = np.random.Generator(np.random.PCG64(3)).integers(0, 3, size=(50, 3))  # of one repeat
    expected = np.quantile([np.mean(values[0][row]) for row in prompts], [0.025, 0.975])
    assert bootstrap_interval(mean_statistic, values[0], num_resamples=50, seed=3) == pytest.approx(expected)


def test_one_repeat_is_as_good_as_none():
    values = np.random.default_rng(0).normal(size=(2, 30))
    one = bootstrap_interval(ratio_statistic, values[:1], values[1:] + 9, seed=2)
    assert one == bootstrap_interval(ratio_statistic, values[0], values[1] + 9, seed=2)


def test_share_interval_is_scipys_exact_one():
    hits, trials = np.array([0, 1, 20, 95, 96]), np.array([96, 4, 64, 96, 96])
    low, high = share_interval(hits, trials)
    for i in range(len(hits)):
        exact = binomtest(int(hits[i]), int(trials[i])).proportion_ci(0.95, method="exact")
        assert (low[i], high[i]) == pytest.approx((exact.low, exact.high), abs=1e-9)
    assert np.isnan(share_interval(0, 0)).all()


def test_normal_interval_by_hand():
    assert normal_interval(0.5, 0.1) == pytest.approx((0.304, 0.696), abs=1e-4)
    assert normal_interval(0.9, 0.1) == pytest.approx((0.704, 1.0), abs=1e-4)
    assert normal_interval(0.1, 0.1) == pytest.approx((0.0, 0.296), abs=1e-4)


def test_columns_are_resampled_together():
    # numerator = 3 * denominator in every prompt: any paired resample has ratio 3, an unpaired one would not
    denominator = np.arange(1.0, 21.0)
    assert bootstrap_interval(ratio_statistic, 3 * denominator, denominator, seed=5) == (3.0, 3.0)


@pytest.mark.parametrize("shape", [(30,), (3, 10)])
def test_blocks_do_not_change_the_result(shape, monkeypatch):
    values = np.random.default_rng(0).normal(size=shape)
    whole = bootstrap_interval(mean_statistic, values, num_resamples=101, seed=1)
    monkeypatch.setattr("lantern_pipeline.measure.intervals.BLOCK_SIZE", 100)
    assert bootstrap_interval(mean_statistic, values, num_resamples=101, seed=1) == whole


def test_one_prompt_has_no_interval():
    assert np.isnan(bootstrap_interval(mean_statistic, np.array([1.0]))).all()


def test_a_prompt_that_lacks_a_value_in_one_of_several_repeats_does_not_count():
    values = np.array([[1.0, np.nan, 3.0, 4.0], [5.0, 6.0, 7.0, np.inf], [9.0, 10.0, 12.0, 2.0]])
    options = {"num_resamples": 50, "seed": 1}
    found = mean_with_interval("nll", values, **options)
    assert found == mean_with_interval("nll", values[:, [0, 2]], **options)
    assert found["nll"] == values[:, [0, 2]].mean() and found["nll_low"] < found["nll"] < found["nll_high"]
    none = mean_with_interval("nll", np.full((2, 3), np.nan), **options)
    assert set(none) == {"nll", "nll_low", "nll_high"} and np.isnan(list(none.values())).all()
