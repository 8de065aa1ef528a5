"""Mean accepted length; latency and speed-up as medians over paired prompts."""

import numpy as np
import pandas as pd
import pytest

from lantern_pipeline.measure.speed import mean_accepted_length, summarise_latency


def latency_table(times: dict[str, list[float]], temperature: float = 1.0, repeat: str = "s0n0") -> pd.DataFrame:
    rows = [(m, "seen", temperature, repeat, f"p{i}", s) for m, column in times.items() for i, s in enumerate(column)]
    return pd.DataFrame(rows, columns=["method_id", "prompt_set", "temperature", "repeat", "prompt_id", "seconds"])


FAST = latency_table({"autoregressive": [1.0, 1.0], "fast": [0.5, 0.5]})


@pytest.mark.parametrize(
    ("tokens", "forwards", "expected"),
    [
        ([64, 64, 64], [64, 32, 16], 192 / 112),  # all tokens by all forwards
        ([[64, 64], [64, 64]], [[64, 32], [32, 32]], 256 / 160),  # of repeats as well
    ],
)
def test_mean_accepted_length_is_all_tokens_by_all_forwards(tokens, forwards, expected):
    result = mean_accepted_length(np.array(tokens), np.array(forwards))
    assert result["mean_accepted_length"] == pytest.approx(expected)
    assert result["mean_accepted_length_low"] <= expected <= result["mean_accepted_length_high"]


def test_autoregressive_has_accepted_length_one():
    result = mean_accepted_length(np.full(5, 64), np.full(5, 64))
    assert set(result.values()) == {1.0} and len(result) == 3


def test_speedup_is_the_median_paired_ratio_whatever_the_order_of_rows():
    table = latency_table({"autoregressive": [1.0, 2.0, 4.0], "fast": [0.5, 0.5, 4.0]})
    for rows in (table, table.sample(frac=1.0, random_state=0)):
        result = summarise_latency(rows).set_index("method_id")
        # ratios 2, 4, 1: median 2; the ratio of medians would be 4
        assert result.loc["fast", ["speedup", "latency_s", "num_timed"]].tolist() == [2.0, 0.5, 3]
        assert result.loc["autoregressive", ["speedup", "speedup_low", "speedup_high"]].tolist() == [1.0, 1.0, 1.0]


def test_a_machine_that_slows_down_for_both_alike_does_not_change_the_speedup():
    drift = np.linspace(1.0, 3.0, 20)
    steady = summarise_latency(latency_table({"autoregressive": [1.0] * 20, "fast": [0.5] * 20}))
    drifting = summarise_latency(latency_table({"autoregressive": list(drift), "fast": list(0.5 * drift)}))
    columns = ["speedup", "speedup_low", "speedup_high"]
    assert drifting[columns].to_numpy() == pytest.approx(steady[columns].to_numpy())


def test_a_prompt_timed_several_times_counts_once_by_its_median():
    again = FAST[(FAST.method_id == "fast") & (FAST.prompt_id == "p0")]
    result = summarise_latency(pd.concat([FAST, again.assign(seconds=50.0), again])).set_index("method_id")
    assert result.loc["fast", ["speedup", "num_timed"]].tolist() == [2.0, 2]


def test_repeats_of_the_run_have_rows_of_their_own_and_a_pooled_one():
    other = latency_table({"autoregressive": [1.0, 2.0], "fast": [0.25, 0.5]}, repeat="s1n0")
    result = summarise_latency(pd.concat([FAST, other])).set_index(["method_id", "repeat"])
    assert result.loc[("fast", "s0n0"), "speedup"] == 2.0
    assert result.loc[("fast", "s1n0"), "speedup"] == 4.0
    pooled = result.loc[("fast", "pooled")]
    assert pooled[["speedup", "speedup_low", "speedup_high", "num_timed"]].tolist() == [3.0, 2.0, 4.0, 4]


def test_temperatures_are_kept_apart():
    cold = latency_table({"autoregressive": [3.0, 3.0], "fast": [1.0, 1.0]}, temperature=0.0)
    result = summarise_latency(pd.concat([FAST, cold])).set_index(["method_id", "temperature"])["speedup"]
    assert (result["fast", 1.0], result["fast", 0.0]) == (2.0, 3.0)
