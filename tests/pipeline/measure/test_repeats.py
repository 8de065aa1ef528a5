import math

import numpy as np
import pandas as pd
import pytest

from lantern_pipeline.measure.repeats import combine_repeats, repeat_groups, stack_prompts, training_seed


def table(repeats=("s0n0", "s1n0"), prompts=("b", "a")):
    rows = [("m", "seen", 1.0, r, p, 10 * i + j) for i, r in enumerate(repeats) for j, p in enumerate(prompts)]
    return pd.DataFrame(rows, columns=["method_id", "prompt_set", "temperature", "repeat", "prompt_id", "value"])


def test_several_repeats_give_a_pooled_group_first():
    keys = [key for key, _ in repeat_groups(table())]
    assert keys == [("m", "seen", 1.0, name) for name in ("pooled", "s0n0", "s1n0")]
    assert [len(rows) for _, rows in repeat_groups(table())] == [4, 2, 2]
    assert [key[3] for key, _ in repeat_groups(table(repeats=("s0n0",)))] == ["s0n0"]
    two = pd.concat([table().assign(method_id="z"), table()])
    assert [key[0] for key, _ in repeat_groups(two)] == ["z", "m", *["z"] * 2, *["m"] * 2]  # methods in their order


def test_stacked_prompts_are_sorted_whatever_the_order_of_rows():
    assert stack_prompts(table(), "value").tolist() == [[1.0, 0.0], [11.0, 10.0]]
    assert stack_prompts(table().sample(frac=1, random_state=0), "value").tolist() == [[1.0, 0.0], [11.0, 10.0]]


def test_a_row_that_occurs_twice_is_refused():
    twice = pd.concat([table(), table().iloc[:1]])
    with pytest.raises(ValueError, match="value: rows must differ in repeat, prompt_id, found two with the same"):
        stack_prompts(twice, "value")


def test_training_seed_of_a_repeat():
    assert training_seed("s12n3") == 12


def test_repeats_combine_by_the_stated_formula():
    # errors 0.01 and 0.01 of the two, values 0.40 and 0.44: variance between them 8e-4
    z = 0.01959964
    value, low, high = combine_repeats([0.40, 0.44], [0.40 - z, 0.44 - z], [0.40 + z, 0.44 + z])
    assert value == pytest.approx(0.42)
    assert (low, high) == pytest.approx((0.42 - z * math.sqrt(4.5), 0.42 + z * math.sqrt(4.5)))


def test_an_end_cut_off_at_one_does_not_shrink_the_error():
    whole = combine_repeats([0.95, 0.95], [0.85, 0.85], [1.05, 1.05])
    assert combine_repeats([0.95, 0.95], [0.85, 0.85], [1.0, 1.0]) == pytest.approx(whole)
    assert whole[2] == 1.0


def test_the_interval_of_repeats_ends_where_the_quantity_does():
    value, low, high = combine_repeats([0.02, 0.14], [0.0, 0.12], [0.04, 0.16])
    assert low == 0.0 < value == 0.08 < high


def test_combined_interval_covers():
    # 4 repeats whose true values spread by 0.01, each measured with error 0.01. The formula counts the error twice,
    # hence the high coverage: with a true one of 0.93, fewer than 355 of 400 would come up less than once in 500 times.
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        values = generator.normal(0.5, 0.01, 4) + generator.normal(0, 0.01, 4)
        _, low, high = combine_repeats(values, values - 0.0196, values + 0.0196)
        hits += low <= 0.5 <= high
    assert hits >= 355


def test_a_single_known_repeat_is_unchanged_and_none_is_nan():
    nan = math.nan
    assert combine_repeats([nan, 2.0], [nan, 1.0], [nan, 5.0]) == (2.0, 1.0, 5.0)
    assert all(math.isnan(value) for value in combine_repeats([nan], [nan], [nan]))
