"""Tests of draft trees that are small enough to check by eye."""

from __future__ import annotations

import pytest
import torch

from lantern.draft_tree import inner_indices, longest_path, of_all_nodes, static_tree, tree_from_parents
from lantern.tree_shapes import DynamicTreeOptions, tree_choices
from lantern_methods.hybrid import join_trees


def test_static_tree_by_eye():
    """Node 0 is the root with children 1 and 2; node 1 has children 3 and 4; node 2 has child 5."""
    tree = static_tree([(1,), (0,), (0, 0), (1, 0), (0, 1)])
    assert tree.parents.tolist() == [[0, 0, 0, 1, 1, 2]]
    assert tree.depths.tolist() == [[0, 1, 1, 2, 2, 2]]
    assert tree.ranks.tolist() == [[0, 0, 1, 0, 1, 0]]
    assert tree.paths[0].tolist() == [[0, 0, 0], [0, 1, 1], [0, 2, 2], [0, 1, 3], [0, 1, 4], [0, 2, 5]]
    assert tree.parent_nodes.tolist() == [0, 1, 2]
    assert tree.children.tolist() == [[[1, 2], [3, 4], [5, -1]]]
    assert tree.ancestors[0, 4].tolist() == [True, True, False, False, True, False]
    assert [level.tolist() for level in tree.levels] == [[0], [1, 2]]
    assert tree.level_children == [2, 2]
    assert [places.tolist() for places in tree.drafted] == [[0, 1], [0, 1, 2]]


def test_two_trees_are_joined_below_one_root():
    joined = join_trees(static_tree(tree_choices("chain2")), static_tree([(0,), (1,), (0, 0)]))
    assert joined.parents.tolist() == [[0, 0, 1, 0, 0, 3]]
    assert joined.depths.tolist() == [[0, 1, 2, 1, 1, 2]]
    assert joined.ranks.tolist() == [[0, 0, 0, 1, 2, 0]]


def test_longest_path_by_eye():
    """Node 0 is the root with children 1 and 2; node 1 has child 3; node 2 has child 4."""
    tree = static_tree([(0,), (1,), (0, 0), (1, 0)])
    accepted = torch.tensor(
        [
            [False, True, False, True, False],  # 0-1-3
            [False, False, True, True, False],  # 3's parent is not accepted: 0-2
            [False, True, True, True, True],  # two longest paths: the first
            [True, False, False, True, True],  # no drafts: only the root
        ]
    )
    path, counts = longest_path(tree, accepted)
    assert path.tolist() == [[0, 1, 3], [0, 2, 2], [0, 1, 3], [0, 0, 0]]
    assert counts.tolist() == [2, 1, 2, 0]


def test_rows_of_a_batch_may_have_different_trees():
    tree = tree_from_parents(torch.tensor([[0, 0, 1, 2], [0, 0, 0, 2]]), max_depth=3, max_children=3)
    assert tree.depths.tolist() == [[0, 1, 2, 3], [0, 1, 1, 2]]
    assert tree.paths[:, 3].tolist() == [[0, 1, 2, 3], [0, 2, 3, 3]]
    assert tree.children[1].tolist() == [[1, 2, -1], [-1, -1, -1], [3, -1, -1], [-1, -1, -1]]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "at least one path"),
        ([(0,), (0,)], r"list the path \[0\] twice"),
        ([(0, 0)], r"\[0, 0\] lacks its parent \[0\]"),
        ([(1,)], r"\[1\] lacks its sibling \[0\]"),
        ([(0,), (-1,)], "ranks >= 0"),
        ([(0,), (1.0,)], "paths of integers, got 1.0"),
        (["0"], "paths of integers, got '0'"),
    ],
)
def test_bad_choices_are_named(choices, message):
    with pytest.raises(ValueError, match=message):
        static_tree(choices)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tree_choices("bushy", {"mine": [[0]]}), "mc_sim_7b_63, jacobi_16, .*, mine, got 'bushy'"),
        (lambda: DynamicTreeOptions(11, 2, 2), r"num_nodes of a dynamic tree must be <= .* = 10, got 11"),
        # No more children than there is noise for.
        (lambda: static_tree([(rank,) for rank in range(65)]), r"ranks below 64, got \[64\]"),
        (lambda: DynamicTreeOptions(60, top_k=65), r"top_k of a dynamic tree must be <= 64, got 65"),
    ],
)
def test_trees_that_cannot_be_are_named(call, words):
    static_tree([(rank,) for rank in range(64)])
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("choices", "places"),
    [([(0,), (1,)], [0, 0, 0]), ([(0,), (1,), (1, 0)], [0, 0, 1, 0]), ([(0,), (0, 0), (0, 0, 0)], [0, 1, 2, 0])],
)
def test_nodes_without_children_have_the_place_of_the_root(choices, places):
    tree = static_tree(choices)
    assert inner_indices(tree).tolist() == [places]
    values = torch.arange(1, 1 + len(tree.parent_nodes))[None]
    assert of_all_nodes(values, tree, -7).tolist() == [
        [values[0, place].item() if node in tree.parent_nodes.tolist() else -7 for node, place in enumerate(places)]
    ]


def test_a_dynamic_trees_nodes_may_all_have_children():
    tree = tree_from_parents(torch.tensor([[0, 0, 1]]), max_depth=2, max_children=2)
    assert inner_indices(tree).tolist() == [[0, 1, 2]]
