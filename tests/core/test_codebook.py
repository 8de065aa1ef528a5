"""Tests of nearest codes against hand-made codebooks and a full sort."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lantern.codebook import add_line_ends, code_dtype, columns_for, nearest_codes, with_line_end
from lantern.models.config import TargetConfig


def test_nearest_by_eye():
    codebook = torch.tensor([[0.0, 1.0], [0.0, 3.0], [1.0, 0.0], [0.0, 1.1]])
    assert nearest_codes(codebook, 3, "l2").tolist() == [[3, 2, 1], [3, 0, 2], [0, 3, 1], [0, 2, 1]]


def test_distances_of_float32_rows_are_told_apart_in_float64():
    """Code 2 is nearer to code 0 than code 1 by 5e-9. In float32 they tie, and the lower code would win."""
    codebook = torch.tensor([[0.0, 0.0], [1.0, 1e-4], [1.0, 0.0]])
    assert nearest_codes(codebook, 2, "l2")[0].tolist() == [2, 1]


@pytest.mark.parametrize("neighbours", ["l2", "l2_normalised"])
def test_nearest_equals_a_full_sort(neighbours):
    """The codebook has more codes than one chunk of the computation."""
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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nearest_codes(torch.randn(10, 4), 0), r"k must be in \[1, 9\] for a codebook of 10 codes, got 0"),
        (lambda: nearest_codes(torch.randn(10, 4), 10), r"k must be in \[1, 9\] for a codebook of 10 codes, got 10"),
        (lambda: nearest_codes(torch.randn(10, 4), 3, "l1"), "one of l2, l2_normalised, random, got 'l1'"),
    ],
)
def test_what_gives_no_table_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_table_takes_two_bytes_a_code_where_they_count_far_enough():
    assert nearest_codes(torch.randn(10, 4), 3).dtype == torch.int16
    assert [code_dtype(vocab) for vocab in (16384, 32767, 32768)] == [torch.int16, torch.int16, torch.int32]


def test_a_line_end_has_no_code_as_its_nearest():
    table = nearest_codes(torch.randn(8, 3), 2)
    found = with_line_end(table, 9)
    assert torch.equal(found[:8], table) and found[8].tolist() == [8, 8] and found.dtype == table.dtype
    assert torch.equal(with_line_end(table, 8), table)


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2)])
def test_every_line_gets_an_end(shape):
    codes = torch.arange(2 * shape[0] * shape[1]).view(2, -1)
    lines = add_line_ends(codes, shape, line_end=99).view(2, shape[0], shape[1] + 1)
    assert torch.equal(lines[..., :-1].flatten(1), codes) and (lines[..., -1] == 99).all()


def test_codes_of_an_image_leave_out_a_smaller_image_and_line_ends():
    plain = TargetConfig(grid=2)
    assert plain.code_grids(torch.arange(4)).tolist() == [[0, 1], [2, 3]]
    lined = TargetConfig(grid=2, line_end=0)
    assert lined.code_grids(torch.arange(6)).tolist() == [[0, 1], [3, 4]]
    wide = TargetConfig(grid=2, columns=3, small_grid=1)
    assert wide.code_grids(torch.arange(7)[None]).tolist() == [[[1, 2, 3], [4, 5, 6]]]


@pytest.mark.parametrize(("k", "columns"), [(1, 2), (8, 9), (9, 9), (10, 10)])
def test_a_table_has_one_column_more_than_k_if_there_are_so_many_codes(k, columns):
    assert columns_for(k, num_codes=10) == columns
