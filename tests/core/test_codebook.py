"""Nearest codes against hand-made codebooks and a plain sort."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lantern.codebook import co_varying_codes, code_dtype, drop_line_ends, nearest_codes


def test_nearest_by_eye():
    codebook = torch.tensor([[0.0, 1.0], [0.0, 3.0], [1.0, 0.0], [0.0, 1.1]])
    assert nearest_codes(codebook, 3, "l2").tolist() == [[3, 2, 1], [3, 0, 2], [0, 3, 1], [0, 2, 1]]


def test_distances_of_float32_rows_are_told_apart_in_float64():
    """Code 2 is nearer to code 0 than code 1 is, by 5e-9: in float32 they tie, and the lower code would be first."""
    codebook = torch.tensor([[0.0, 0.0], [1.0, 1e-4], [1.0, 0.0]])
    assert nearest_codes(codebook, 2, "l2")[0].tolist() == [2, 1]


@pytest.mark.parametrize("neighbours", ["l2", "l2_normalised"])
def test_nearest_equals_a_full_sort(neighbours):
    """Of more codes than are worked out at once."""
    codebook = torch.randn(1100, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = codebook if neighbours == "l2" else F.normalize(codebook, dim=1)
    distance = (rows[:, None] - rows[None]).pow(2).sum(-1).fill_diagonal_(float("inf"))
    assert torch.equal(nearest_codes(codebook, 20, neighbours).long(), distance.argsort(1)[:, :20])


def test_random_neighbours_are_distinct_others_and_fixed_by_the_seed():
    table = nearest_codes(torch.randn(30, 4), 29, "random", seed=1)
    for code, row in enumerate(table.tolist()):
        assert sorted([*row, code]) == list(range(30))
    assert torch.equal(table, nearest_codes(torch.randn(30, 4), 29, "random", seed=1))
    assert not torch.equal(table, nearest_codes(torch.randn(30, 4), 29, "random", seed=2))


# Rows are contexts, columns codes: code 1 follows code 0, code 2 falls as they rise, code 3 never changes.
FOUR_CODES = torch.tensor([[1, 2, 4, 2], [2, 4, 3, 2], [3, 6, 2, 2], [4, 8, 1, 2]]) / 8


def random_probs(contexts=200, vocab=30):
    logits = torch.randn(contexts, vocab, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return logits.softmax(-1)


def test_codes_that_rise_and_fall_together_are_near_by_eye():
    table = co_varying_codes([FOUR_CODES], 3)
    # codes 0 and 1: +1 with each other, 0 with the constant one, -1 with code 2, to which both are equally far
    assert table.tolist() == [[1, 3, 2], [0, 3, 2], [3, 0, 1], [0, 1, 2]]
    assert table.dtype == torch.int16


@pytest.mark.parametrize("constant", [0.0, 0.1, 0.3, 0.7, 1e-9])
def test_a_code_that_never_changes_is_no_ones_neighbour_before_those_that_do(constant):
    probs = random_probs()
    probs[:, 1] = probs[:, 0]
    probs[:, 3] = constant
    probs = probs.float()  # sums of float32 would round a constant into one that varies
    table = co_varying_codes(probs.split(64), 29)
    assert table[0, 0] == 1 and table[1, 0] == 0
    correlation = torch.corrcoef(probs.double().T).nan_to_num(0)
    for code, row in enumerate(table.tolist()):
        before, after = row[: row.index(3)] if code != 3 else [], row[row.index(3) + 1 :] if code != 3 else []
        assert (correlation[code, before] > 0).all() and (correlation[code, after] < 0).all()
    assert table[3].tolist() == [code for code in range(30) if code != 3]  # all alike: in their order


def test_co_varying_codes_equal_a_full_sort_of_correlations():
    probs = random_probs()
    correlation = torch.corrcoef(probs.T).fill_diagonal_(-2)
    assert torch.equal(co_varying_codes([probs], 20).long(), correlation.argsort(dim=1, descending=True)[:, :20])


@pytest.mark.parametrize("size", [1, 7, 64])
def test_co_varying_codes_do_not_depend_on_how_contexts_are_batched(size):
    probs = random_probs().float()
    assert torch.equal(co_varying_codes(iter(probs.split(size)), 29), co_varying_codes([probs], 29))


def test_two_contexts_are_enough():
    """Codes 0 and 1 rise from the first context to the second, code 2 falls, code 3 stays."""
    assert co_varying_codes([FOUR_CODES[:2]], 3).tolist() == [[1, 3, 2], [0, 3, 2], [3, 0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nearest_codes(torch.randn(10, 4), 0), r"k must be in \[1, 9\] for a codebook of 10 codes, got 0"),
        (lambda: nearest_codes(torch.randn(10, 4), 10), r"k must be in \[1, 9\] for a codebook of 10 codes, got 10"),
        (lambda: nearest_codes(torch.randn(10, 4), 3, "l1"), "one of l2, l2_normalised, random, got 'l1'"),
        (lambda: co_varying_codes([FOUR_CODES], 4), r"k must be in \[1, 3\] for a codebook of 4 codes, got 4"),
        (lambda: co_varying_codes([FOUR_CODES[:1]], 3), "co-varying codes need at least 2 contexts, got 1"),
        (lambda: co_varying_codes([], 3), "co-varying codes need at least 2 contexts, got 0"),
    ],
)
def test_what_gives_no_table_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_table_takes_two_bytes_a_code_where_they_count_far_enough():
    assert nearest_codes(torch.randn(10, 4), 3).dtype == torch.int16
    assert [code_dtype(vocab) for vocab in (16384, 32767, 32768)] == [torch.int16, torch.int16, torch.int32]


def test_ends_are_dropped_where_there_are_some():
    tokens = torch.arange(6)
    assert drop_line_ends(tokens).tolist() == [0, 1, 3, 4] and drop_line_ends(tokens[:4]).tolist() == [0, 1, 2, 3]
