"""Attention masks that can be checked by eye."""

from __future__ import annotations

import torch

from lantern.attention_mask import additive, window_table


def test_additive_mask():
    assert additive(torch.tensor([True, False]), torch.float32).tolist() == [0.0, float("-inf")]


def test_a_window_is_open_before_the_nodes_and_closed_behind_them():
    table = window_table(torch.tensor([[[True, False], [True, True]]]), torch.float32)
    assert (table == 0).int().tolist() == [[[1, 1, 0, 0], [1, 1, 1, 0]]]
    assert (table.masked_fill(table == 0, float("-inf")) == float("-inf")).all()
