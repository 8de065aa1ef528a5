"""Tests of tokens per forward pass, and of latency and speed-up from the fastest times of prompts."""

import numpy as np
import pandas as pd
import pytest

from lantern_pipeline.measure.speed.speedups import summarise_latency, tokens_per_forward


def latency_table(times: dict[str, list[list[float]]], temperature: float = 1.0, repeat: str = "s0n0") -> pd.DataFrame:
    """Return seconds by method, round and prompt.

    The process works half of the time. The method "fast" takes a quarter of the steps.
    """
    rows = [
        (
            method,
            "seen",
            temperature,
            repeat,
            f"p{prompt}",
            number,
            seconds,
            seconds / 2,
            0.25,
            16 if method == "fast" else 64,
            "a CPU",
        )
        for method, rounds in times.items()
        for number, column in enumerate(rounds)
        for prompt, seconds in enumerate(column)
    ]
    names = ["method_id", "prompt_set", "temperature", "repeat", "prompt_id", "round", "seconds", "cpu_seconds"]
    return pd.DataFrame(rows, columns=[*names, "busy_elsewhere", "target_forwards", "machine"])


FAST = latency_table({"autoregressive": [[1.0, 1.0]], "fast": [[0.5, 0.5]]})


@pytest.mark.parametrize(
    ("tokens", "forwards", "expected"),
    [
        ([64, 64, 64], [64, 32, 16], 192 / 112),  # all tokens by all forwards
        ([[64, 64], [64, 64]], [[64, 32], [32, 32]], 256 / 160),  # of repeats as well
    ],
)
def test_tokens_per_forward_is_all_tokens_by_all_forwards(tokens, forwards, expected):
    result = tokens_per_forward(np.array(tokens), np.array(forwards))
    assert result["tokens_per_forward"] == pytest.approx(expected)
    assert result["tokens_per_forward_low"] <= expected <= result["tokens_per_forward_high"]


def test_autoregressive_has_one_token_per_forward():
    result = tokens_per_forward(np.full(5, 64), np.full(5, 64))
    assert set(result.values()) == {1.0} and len(result) == 3


def test_speedup_is_the_ratio_of_sums_of_the_least_times_whatever_the_order_of_rows():
    """A delay in one round does not count. A prompt that takes long counts more."""
    table = latency_table({"autoregressive": [[1.0, 9.0], [5.0, 4.0]], "fast": [[0.5, 2.0], [0.5, 9.0]]})
    for rows in (table, table.sample(frac=1.0, random_state=0)):
        result = summarise_latency(rows).set_index("method_id")
        names = ["latency_s", "relative_step_cost", "speedup", "speedup_cpu", "num_timed", "busy_elsewhere", "machine"]
        # Half the time for a quarter of the forward passes: each costs two of autoregressive decoding's.
        assert result.loc["fast", names].tolist() == [1.25, 2.0, 2.0, 2.0, 2, 0.25, "a CPU"]
        names = ["relative_step_cost", "speedup", "speedup_low", "speedup_high", "speedup_cpu"]
        assert result.loc["autoregressive", names].tolist() == [1.0, 1.0, 1.0, 1.0, 1.0]


def test_the_machines_of_a_method_are_named_in_order():
    table = latency_table({"autoregressive": [[1.0, 1.0]]})
    table["machine"] = ["the second", "another"]
    assert summarise_latency(table)["machine"].tolist() == ["another, the second"]


def test_intervals_of_the_speedup_are_over_prompts_and_over_rounds():
    prompts = {"autoregressive": [[1.0, 2.0]], "fast": [[1.0, 1.0]]}
    rounds = {"autoregressive": [[1.0, 1.0], [2.0, 2.0]], "fast": [[1.0, 1.0], [1.0, 1.0]]}
    for times, speedup in ((prompts, 1.5), (rounds, 1.0)):
        row = summarise_latency(latency_table(times)).set_index("method_id").loc["fast"]
        assert row[["speedup", "speedup_low", "speedup_high"]].tolist() == [speedup, 1.0, 2.0]
    alone = summarise_latency(latency_table({"autoregressive": [[1.0]], "fast": [[0.5]]}))
    assert alone["speedup"].tolist() == [1.0, 2.0] and alone["speedup_low"].isna().all()


@pytest.mark.slow
def test_the_interval_covers_the_speedup_of_a_machine_that_drifts_and_hiccups():
    """The method is twice as fast. Rounds drift, one timing in ten is delayed, and prompts differ."""
    generator, found, num = np.random.default_rng(0), 0, 60
    for trial in range(num):
        drift, hiccups = generator.uniform(1, 1.5, (3, 1)), generator.random((2, 3, 24)) < 0.1
        slow, fast = generator.lognormal(0, 0.1, (2, 1, 24)) * drift * (1 + hiccups)
        table = latency_table({"autoregressive": slow.tolist(), "fast": (fast / 2).tolist()})
        row = summarise_latency(table, num_resamples=150, seed=trial).set_index("method_id").loc["fast"]
        found += row["speedup_low"] <= 2 <= row["speedup_high"]
    assert 0.89 * num <= found


def test_repeats_of_the_run_have_rows_of_their_own_and_a_pooled_one():
    other = latency_table({"autoregressive": [[1.0, 2.0]], "fast": [[0.25, 0.5]]}, repeat="s1n0")
    result = summarise_latency(pd.concat([FAST, other])).set_index(["method_id", "repeat"])
    assert result.loc[("fast", "s0n0"), "speedup"] == 2.0
    assert result.loc[("fast", "s1n0"), "speedup"] == 4.0
    pooled = result.loc[("fast", "pooled")]
    assert pooled[["speedup", "speedup_low", "speedup_high", "num_timed"]].tolist() == [20 / 7, 2.0, 4.0, 4]


def test_temperatures_are_kept_apart():
    cold = latency_table({"autoregressive": [[3.0, 3.0]], "fast": [[1.0, 1.0]]}, temperature=0.0)
    result = summarise_latency(pd.concat([FAST, cold])).set_index(["method_id", "temperature"])["speedup"]
    assert (result["fast", 1.0], result["fast", 0.0]) == (2.0, 3.0)
