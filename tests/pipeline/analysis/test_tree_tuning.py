"""Tuned trees: the most probable paths, what they promise, and which of them is taken at which cost."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from lantern.methods import MethodSpec
from lantern.tree_shapes import JointTree, check_choices, tree_choices
from lantern_pipeline.analysis.tree_tuning import (
    Acceptance,
    Candidate,
    StepCost,
    best_candidate,
    best_of_each_size,
    comb,
    expected_tokens,
    fit_cost,
    joint_tokens,
    most_probable_paths,
    rank_rates,
    shape_as_json,
    shapes_to_try,
)

RATES = np.array([0.53, 0.17, 0.08, 0.04])


def drafted(max_nodes, max_depth):
    """Trees of a draft model's drafts that could be taken."""
    settings = {"max_nodes": max_nodes, "max_depth": max_depth}
    return [Acceptance(RATES, {}).candidate(shape) for shape in shapes_to_try("coupled", RATES, settings)]


def with_windows(drafts, paths):
    acceptance = Acceptance(None, paths)
    return [acceptance.candidate(shape) for shape in shapes_to_try(drafts, None, {"windows": list(paths)})]


def all_trees(paths, num):
    """Every tree of `num` of these paths that holds parents and earlier siblings."""
    for chosen in itertools.combinations(paths, num):
        known = set(chosen)
        if all(
            (not path[:-1] or path[:-1] in known) and (not path[-1] or (*path[:-1], path[-1] - 1) in known)
            for path in chosen
        ):
            yield chosen


@pytest.mark.parametrize("num", [1, 3, 5])
def test_the_most_probable_paths_are_the_best_tree_of_their_size(num):
    paths = [path for depth in (1, 2, 3) for path in itertools.product(range(3), repeat=depth) if sum(path) < 3]
    best = max(expected_tokens(tree, RATES) for tree in all_trees(paths, num))
    found = most_probable_paths(RATES, num, 3)
    assert expected_tokens([path for path, _ in found], RATES) == pytest.approx(best)
    assert sum(probability for _, probability in found) == pytest.approx(best - 1)


def test_every_tree_is_one_that_methods_take():
    for found in drafted(20, 4):
        check_choices(found.shape)
        assert len(found.shape) == found.num_nodes and max(map(len, found.shape)) == found.depth <= 4
        assert found.tokens == pytest.approx(expected_tokens(found.shape, RATES))


def test_equal_and_zero_rates_leave_whole_trees():
    assert [path for path, _ in most_probable_paths(np.array([0.5, 0.5, 0.0]), 4, 1)] == [(0,), (1,)]
    assert not most_probable_paths(np.zeros(3), 4, 2)
    for num in range(1, 12):
        check_choices([path for path, _ in most_probable_paths(np.array([1.0, 1.0, 1.0]), num, 2)])


def test_tokens_per_forward_of_a_chain_are_a_geometric_series():
    chain = tree_choices("chain3")
    assert expected_tokens(chain, RATES) == pytest.approx(1 + 0.53 + 0.53**2 + 0.53**3)
    assert expected_tokens([(9,)], RATES) == 1  # a rank that was never measured


def test_ranks_are_counted_where_their_parent_was_reached():
    choices = [(0,), (1,), (0, 0)]
    paths = [(0, 0), (0,), (1,), ()]
    # the root is reached four times: rank 0 twice, rank 1 once; node (0,) twice, its one child accepted once
    assert rank_rates(paths, choices) == pytest.approx([3 / 6, 1 / 4])


def test_ranks_that_seem_better_than_the_one_before_are_noise():
    rates = rank_rates([(2,), (2,), (0,), (0,), (0,)], comb(3, 1))
    assert rates == pytest.approx([0.6, 0.0, 0.0])


def test_rates_are_found_again_in_drawn_steps():
    generator = np.random.default_rng(0)
    choices, paths = comb(4, 5), []
    for _ in range(20000):
        path = ()
        while len(path) < 5 and (rank := generator.choice(5, p=[*RATES, 1 - RATES.sum()])) < 4:
            path = (*path, int(rank))
            if rank:
                break
        paths.append(path)
    assert rank_rates(paths, choices) == pytest.approx(RATES, abs=0.01)


@pytest.mark.parametrize("cost", [StepCost(1.4, 0.12, 0.2), StepCost(1.05, 0.002, 0.06), StepCost(0.9, 0.0, 0.3)])
def test_cost_is_found_again(cost):
    sizes = [(1, 1), (4, 4), (8, 1), (32, 4)]
    fitted = fit_cost(sizes, [cost.of(Candidate((), *size, 1.0)) for size in sizes])
    assert (fitted.base, fitted.per_node, fitted.per_depth) == pytest.approx((cost.base, cost.per_node, cost.per_depth))


def test_a_cost_without_depths_has_no_part_of_depth():
    fitted = fit_cost([(3, 0), (9, 0), (18, 0)], [1.4, 2.0, 2.9])
    assert fitted.per_depth == 0 and fitted.per_node == pytest.approx(0.1) and fitted.base == pytest.approx(1.1)


def test_dear_nodes_ask_for_small_trees_and_cheap_ones_for_large():
    candidates = drafted(57, 5)
    small = best_candidate(candidates, StepCost(1.3, 0.12, 0.25))
    large = best_candidate(candidates, StepCost(1.05, 0.002, 0.06))
    assert small.num_nodes <= 4 and large.num_nodes > 25
    curve = best_of_each_size(candidates, StepCost(1.05, 0.002, 0.06))
    assert [found.num_nodes for found in curve] == list(range(1, 58))
    assert max(found.speedup(StepCost(1.05, 0.002, 0.06)) for found in curve) == pytest.approx(
        large.speedup(StepCost(1.05, 0.002, 0.06))
    )


def test_of_two_parts_the_deeper_one_counts():
    paths = [((0, 0), ()), ((), (1, 0)), ((0,), (0, 0, 0)), ((), ())]
    assert joint_tokens(tree_choices("chain2"), (), paths) == 1 + 3 / 4
    assert joint_tokens((), [(0,), (1,)], paths) == 1 + 2 / 4
    assert joint_tokens(tree_choices("chain2"), [(0,), (0, 0)], paths) == 1 + (2 + 0 + 2 + 0) / 4


def test_siblings_and_hybrids_are_read_off_the_widest_tree():
    paths = [((0, 0, 0), ()), ((1,), (0, 0)), ((), (0,)), ((2, 1), ())]
    jacobi = {found.num_nodes: found for found in with_windows("jacobi", {3: paths})}
    assert jacobi[3].tokens == 1 + 3 / 4 and jacobi[3].shape == tree_choices("chain3")
    assert jacobi[3 + 2].tokens == 1 + (3 + 1 + 0 + 1) / 4  # three siblings at the first depth
    assert jacobi[3 + 2].depth == 0
    hybrid = {found.shape: found for found in with_windows("hybrid", {3: paths})}
    small = hybrid[JointTree(tree_choices("chain3"), ((0,),))]
    assert (small.num_nodes, small.depth, small.tokens) == (4, 1, 1 + (3 + 1 + 1 + 0) / 4)
    assert hybrid[JointTree(tree_choices("chain3"), comb(2, 3))].tokens == 1 + (3 + 2 + 1 + 0) / 4


def test_a_window_that_was_not_measured_promises_nothing():
    acceptance = Acceptance(None, {3: [((0, 0, 0), ()), ((1,), (0, 0)), ((), (0,)), ((2, 1), ())]})
    assert acceptance.candidate(JointTree(tree_choices("chain2"), ((0,),))) is None
    assert acceptance.candidate(tree_choices("chain2")) is None
    assert acceptance.to_dict()["by_window"] == {"3": [3 / 4, 2 / 4, 1 / 4]}


@pytest.mark.parametrize(
    ("drafts", "shape"),
    [("coupled", tree_choices("chain2")), ("hybrid", JointTree(tree_choices("chain2"), ((0,), (1,))))],
)
def test_shapes_survive_a_file(drafts, shape):
    stored = json.loads(json.dumps(shape_as_json(shape)))
    assert MethodSpec.of("a", tree="tuned", drafts=drafts, tree_shape=stored).tree_shape == shape
