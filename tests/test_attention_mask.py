"""Attention masks that can be checked by eye."""

from __future__ import annotations

import torch

from lantern.attention_mask import additive, slide_window, window_table
from lantern.draft_tree import static_tree


def test_additive_mask():
    assert additive(torch.tensor([True, False]), torch.float32).tolist() == [0.0, float("-inf")]


def test_window_slides_to_each_rows_length():
    tree = static_tree([(0,), (1,)])
    mask = slide_window(window_table(tree.ancestors, 6, torch.float32), torch.tensor([1, 3]), 6)
    visible = (mask == 0).int().tolist()
    assert visible[0] == [[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]]
    assert visible[1] == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 1]]
