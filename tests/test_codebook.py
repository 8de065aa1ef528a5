"""Nearest codes against hand-made codebooks and a plain sort."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lantern.codebook import nearest_codes


def test_nearest_by_eye():
    codebook = torch.tensor([[0.0, 1.0], [0.0, 3.0], [1.0, 0.0], [0.0, 1.1]])
    assert nearest_codes(codebook, 3, "l2").tolist() == [[3, 2, 1], [3, 0, 2], [0, 3, 1], [0, 2, 1]]


def test_normalised_and_raw_rows_differ_when_norms_do():
    codebook = torch.tensor([[1.0, 0.0], [10.0, 0.1], [0.0, 1.0]])
    assert nearest_codes(codebook, 1, "l2")[0].tolist() == [2]
    assert nearest_codes(codebook, 1, "l2_normalised")[0].tolist() == [1]
    assert nearest_codes(codebook, 1, "cosine")[0].tolist() == [1]


@pytest.mark.parametrize("neighbours", ["l2", "l2_normalised", "cosine"])
def test_nearest_equals_a_full_sort(neighbours):
    codebook = torch.randn(60, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = codebook if neighbours == "l2" else F.normalize(codebook, dim=1)
    distance = (rows[:, None] - rows[None]).pow(2).sum(-1).fill_diagonal_(float("inf"))
    assert torch.equal(nearest_codes(codebook, 20, neighbours), distance.argsort(1)[:, :20])


def test_random_neighbours_are_distinct_others_and_fixed_by_the_seed():
    table = nearest_codes(torch.randn(30, 4), 29, "random", seed=1)
    for code, row in enumerate(table.tolist()):
        assert sorted([*row, code]) == list(range(30))
    assert torch.equal(table, nearest_codes(torch.randn(30, 4), 29, "random", seed=1))
    assert not torch.equal(table, nearest_codes(torch.randn(30, 4), 29, "random", seed=2))


@pytest.mark.parametrize("k", [0, 10, 11])
def test_k_out_of_range(k):
    with pytest.raises(ValueError, match=rf"k must be in \[1, 9\] for a codebook of 10 codes, got {k}"):
        nearest_codes(torch.randn(10, 4), k)


def test_unknown_neighbours():
    with pytest.raises(ValueError, match="neighbours must be one of l2, l2_normalised, cosine, random, got 'l1'"):
        nearest_codes(torch.randn(10, 4), 3, "l1")
