import numpy as np
import pandas as pd
import pytest

from lantern_pipeline.metrics.image_divergence import DIVERGENCE_COLUMNS, measure_divergence
from lantern_pipeline.metrics.intervals import bootstrap_interval, mean_statistic, share_interval

TOKENS = 4
SETTINGS = {"bootstrap_resamples": 200}


def make_run(repeat="s0n0", num=3, seed=0, order=None):
    """Tokens and images of autoregressive decoding and a method "m" that leaves it at positions 2, never, 0, ..."""
    generator = np.random.default_rng(seed)
    base = generator.normal(3, 1, (num, TOKENS)).astype(np.float32)
    first = np.array([2, TOKENS, 0] * num)[:num]
    after = np.arange(TOKENS) >= first[:, None]
    nll = {"autoregressive": base, "m": base + after * generator.normal(0.5, 0.5, (num, TOKENS)).astype(np.float32)}
    ids = [f"p{i:02d}" for i in range(num)]
    place = {"prompt_set": "seen", "temperature": 1.0, "repeat": repeat}
    frames = [
        pd.DataFrame({"method_id": name, **place, "prompt_id": ids, "first_difference": where})
        for name, where in (("autoregressive", TOKENS), ("m", first), ("real", np.nan))
    ]
    order = list(range(num)) if order is None else order
    stored = {name: rows[order] for name, rows in nll.items()}
    return pd.concat(frames, ignore_index=True), stored, [ids[i] for i in order], nll


def follow(*runs, repeats=("s0n0",)):
    places = [("seen", 1.0, name) for name in repeats]
    images = pd.concat([run[0] for run in runs], ignore_index=True)
    token_nll = {place: run[1] for place, run in zip(places, runs, strict=False)}
    prompt_ids = {place: run[2] for place, run in zip(places, runs, strict=False)}
    return measure_divergence(images, token_nll, prompt_ids, settings=SETTINGS, seed=0)


def test_share_and_excess_by_hand():
    run = make_run()
    table = follow(run)
    assert list(table.columns) == list(DIVERGENCE_COLUMNS)
    rows = table[table.method_id == "m"]
    assert rows.position.tolist() == [0, 1, 2, 3]
    assert rows.share_identical.tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3])
    total = [sum((run[3]["m"] - run[3]["autoregressive"])[:, : i + 1].sum(axis=1)) / 3 for i in range(TOKENS)]
    assert rows.nll_excess.tolist() == pytest.approx(total, abs=1e-5)


def test_autoregressive_decoding_does_not_leave_itself():
    rows = follow(make_run()).query("method_id == 'autoregressive'")
    assert (rows.share_identical == 1).all()
    assert (rows[["nll_excess", "nll_excess_low", "nll_excess_high"]] == 0).all(axis=None)
    assert rows.share_identical_low.tolist() == pytest.approx([0.025 ** (1 / 3)] * TOKENS)  # three images prove little


def test_ceilings_are_left_out():
    assert set(follow(make_run()).method_id) == {"autoregressive", "m"}


def test_rows_of_tokens_are_paired_by_prompt_id():
    mixed = make_run(order=[2, 0, 1])
    pd.testing.assert_frame_equal(follow(mixed), follow(make_run()))


def test_intervals_are_those_of_the_slow_functions():
    run = make_run(num=12)
    rows = follow(run).query("method_id == 'm'").reset_index(drop=True)
    excess = (run[3]["m"].astype(float) - run[3]["autoregressive"]).cumsum(axis=1)
    for position in range(TOKENS):
        low, high = bootstrap_interval(mean_statistic, excess[:, position], num_resamples=200, seed=0)
        ends = rows.loc[position, ["nll_excess_low", "nll_excess_high"]]
        assert ends.tolist() == pytest.approx([low, high], abs=1e-9)
        exact = share_interval(round(rows.share_identical[position] * 12), 12)
        ends = rows.loc[position, ["share_identical_low", "share_identical_high"]]
        assert ends.tolist() == pytest.approx([float(end) for end in exact])


def test_repeats_are_crossed_as_everywhere():
    runs = [make_run(num=12), make_run("s1n0", num=12, seed=1)]
    table = follow(*runs, repeats=("s0n0", "s1n0"))
    assert table[table.method_id == "m"].repeat.unique().tolist() == ["pooled", "s0n0", "s1n0"]
    rows = table[(table.method_id == "m") & (table.repeat == "pooled")].reset_index(drop=True)
    excess = np.stack([(run[3]["m"].astype(float) - run[3]["autoregressive"]).cumsum(axis=1) for run in runs])
    low, high = bootstrap_interval(mean_statistic, excess[:, :, 3], num_resamples=200, seed=0)
    assert rows.loc[3, "nll_excess"] == pytest.approx(excess[:, :, 3].mean())
    assert rows.loc[3, ["nll_excess_low", "nll_excess_high"]].tolist() == pytest.approx([low, high], abs=1e-9)
    exact = share_interval(8, 24)
    assert rows.share_identical_low[3] <= exact[0]
    assert rows.share_identical_high[3] >= exact[1]


@pytest.mark.parametrize("change", ["method", "prompt", "place"])
def test_tokens_that_do_not_fit_are_named(change):
    images, tokens, ids, nll = make_run()
    if change == "method":
        tokens = {"autoregressive": tokens["autoregressive"]}
    if change == "prompt":
        ids = ["p00", "p01", "p07"]
    with pytest.raises(ValueError, match=r"the tokens of (m|autoregressive) or"):
        follow((images, tokens, ids, nll), repeats=("s9n0",) if change == "place" else ("s0n0",))
