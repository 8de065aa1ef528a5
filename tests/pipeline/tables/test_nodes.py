"""Tokens per forward over the nodes of a tree: the rows of the table and their sizes."""

import numpy as np

from helpers.figure_tables import node_summary
from lantern_pipeline.tables.nodes import node_cells, node_rows, num_nodes


def test_the_size_of_a_tree_is_its_number_of_drafts():
    trees = {"chain9": 9, "chain9+chain3": 12, "jacobi_50": 50, "jacobi_100": 100, "hybrid_16": 16}
    assert {tree: num_nodes(tree) for tree in trees} == trees


def test_a_tree_of_the_config_is_counted_too():
    table = node_summary().replace({"tree": {"jacobi_50": "mine"}})
    rows = node_rows(table, {"mine": [[0], [1], [0, 0]]})
    assert rows.set_index("tree")["nodes"]["mine"] == 3


def test_exact_drafts_are_listed_by_kind_and_size():
    titles, *lines = node_cells(node_summary())
    assert titles[2:4] == ["nodes", "tokens / forward"]
    assert lines == [
        ["Jacobi", "`chain9`", "9", "3.00 [2.90, 3.20]", "8 of 8"],
        ["Jacobi", "`jacobi_50`", "50", "2.00 [1.90, 2.20]", "8 of 8"],
        ["hybrid", "`chain9+chain3`", "12", "4.00 [3.90, 4.20]", "8 of 8"],
        ["hybrid", "`hybrid_16`", "16", "5.00 [4.90, 5.20]", "8 of 8"],
    ]


def test_images_that_differ_at_a_near_tie_are_not_equal():
    table = node_summary().assign(num_near_ties=2)
    table.loc[table["tree"] == "chain9", ["num_near_ties", "tokens_equal_autoregressive"]] = [8, np.nan]
    assert [line[-1] for line in node_cells(table)[1:]] == ["–", "6 of 8", "6 of 8", "6 of 8"]
