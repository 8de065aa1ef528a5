"""Tests of relaxed sets: by eye, against a slow loop, and in verifiers."""

from __future__ import annotations

import math

import pytest
import torch

from lantern.acceptance.relaxed_sets import (
    AdditiveBound,
    GreedyWithinBound,
    JensenShannonBound,
    MultiplicativeBound,
    WithinBound,
)
from lantern.codebook import with_line_end
from lantern.draft_tree import static_tree
from lantern.step import Proposal
from lantern_methods.similarity import BudgetBound, ByProximity, Proximity

# Codes 0 to 4 with 40, 30, 15, 10 and 5 % of the mass; the nearest codes of 0 are 3, 4, 2, 1, in this order.
PROBS = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64)
TABLE = torch.tensor([[3, 4, 2, 1], [0, 2, 3, 4], [3, 1, 0, 4], [2, 4, 0, 1], [3, 2, 1, 0]])


def merge(sets, probs, tokens):
    """Return A(x) of some drafts at nodes where no mass is spent yet."""
    codes = sets.codes_of(tokens)
    return sets.grow(codes, probs.gather(-1, codes))


@pytest.mark.parametrize(
    ("sets", "token", "spent", "codes", "mass"),
    [
        (AdditiveBound(TABLE, k=4, delta=0.16), 0, 0.0, [3, 4], 0.15),
        (AdditiveBound(TABLE, k=4, delta=0.09), 0, 0.0, [], 0.0),
        (AdditiveBound(TABLE, k=4, delta=1.0), 0, 0.0, [3, 4, 2, 1], 0.6),
        (AdditiveBound(TABLE, k=1, delta=1.0), 0, 0.0, [3], 0.1),
        (AdditiveBound(TABLE, k=0, delta=1.0), 0, 0.0, [], 0.0),
        (AdditiveBound(TABLE, k=4, delta=0.16), 0, 0.1, [3, 4], 0.15),  # whatever is spent
        (MultiplicativeBound(TABLE, k=4, lambda_=1.3), 0, 0.0, [3], 0.1),  # (1.3 - 1) 0.4 = 0.12
        (MultiplicativeBound(TABLE, k=4, lambda_=1.8), 0, 0.0, [3, 4, 2], 0.3),  # 0.32
        (MultiplicativeBound(TABLE, k=4, lambda_=1.0), 0, 0.0, [], 0.0),
        (MultiplicativeBound(TABLE, k=4, lambda_=2.0), 4, 0.0, [], 0.0),  # 0.05 of its own; its nearest code has 0.1
        (BudgetBound(TABLE, k=4, delta=0.16), 0, 0.0, [3, 4], 0.15),
        (BudgetBound(TABLE, k=4, delta=0.16), 0, 0.05, [3], 0.1),  # probabilities that earlier siblings left
        (BudgetBound(TABLE, k=4, delta=0.16), 0, 0.1, [], 0.0),
        (Proximity(TABLE, k=3), 0, 0.0, [3, 4, 2], 0.3),
        (JensenShannonBound(TABLE, k=4, delta=1.0), 0, 0.0, [3, 4, 2, 1], 0.6),
        (JensenShannonBound(TABLE, k=4, delta=0.0), 0, 0.0, [], 0.0),
    ],
)
def test_the_relaxed_set_is_the_longest_prefix_within_the_bound(sets, token, spent, codes, mass):
    near = sets.codes_of(torch.tensor(token))
    found = sets.grow(near, PROBS.gather(-1, near), torch.tensor([spent], dtype=torch.float64))
    assert found.codes[found.is_member].tolist() == codes and float(found.mass) == pytest.approx(mass)
    assert sorted(found.taken.unique().tolist()) == sorted([token, *codes])


def jensen_shannon_bits(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the Jensen-Shannon divergence by its definition, over all codes."""
    middle = (a + b) / 2
    nats = (torch.xlogy(a, a) + torch.xlogy(b, b)).sum() / 2 - torch.xlogy(middle, middle).sum()
    return float(nats) / math.log(2)


@pytest.mark.parametrize("delta", [0.003, 0.03, 0.1, 0.3])
def test_the_jensen_shannon_set_is_the_longest_prefix_by_the_definition(delta):
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        probs = (2 * torch.randn(12, generator=generator, dtype=torch.float64)).softmax(-1)
        order = torch.randperm(12, generator=generator)
        token, codes = order[0], order[1:9]
        expected = 0
        for size in range(1, 9):
            moved = probs.clone()
            moved[token] += moved[codes[:size]].sum()
            moved[codes[:size]] = 0
            if jensen_shannon_bits(moved, probs) <= delta:
                expected = size
        table = torch.zeros(12, 8, dtype=torch.int64)
        table[token] = codes
        relaxed = merge(JensenShannonBound(table, k=8, delta=delta), probs, token)
        assert relaxed.is_member.tolist() == [True] * expected + [False] * (8 - expected)


def test_a_line_end_within_a_line_is_never_accepted():
    sets = AdditiveBound(with_line_end(TABLE, 6), k=4, delta=1.0)
    within, at_end = torch.cat([PROBS, torch.zeros(1)]), torch.tensor([0.0, 0, 0, 0, 0, 1])
    assert sets.relaxed_prob(within, None, torch.tensor([5])).tolist() == [0]
    assert sets.relaxed_prob(at_end, None, torch.tensor([5, 0])).ge(1).tolist() == [True, False]


def test_a_draft_without_mass_of_its_own_is_bounded_by_the_mass_alone():
    # t~ and t share no code but those outside of {x} and A(x): their divergence is the mass that moves.
    admits = JensenShannonBound(TABLE, k=3, delta=0.25).admits
    mass = torch.tensor([0.2, 0.25, 0.3], dtype=torch.float64)
    assert admits(mass, torch.zeros(1, dtype=torch.float64), torch.zeros(1)).tolist() == [True, True, False]


@pytest.mark.parametrize(
    "sets", [AdditiveBound(TABLE, k=4, delta=0.2), MultiplicativeBound(TABLE, k=4, lambda_=1.5), Proximity(TABLE, k=4)]
)
def test_many_drafts_at_once_equal_one_after_the_other(sets):
    probs = (2 * torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).softmax(-1)
    tokens = torch.tensor([[0, 1], [2, 3], [4, 0]])
    together = merge(sets, probs, tokens)
    for place in [(i, j) for i in range(3) for j in range(2)]:
        alone = merge(sets, probs[place], tokens[place])
        assert torch.equal(together.is_member[place], alone.is_member)
        torch.testing.assert_close(together.mass[place], alone.mass)


@pytest.mark.parametrize(
    ("sets", "children", "expected"),
    [
        # 0.1, and with code 1 it would be 0.4. 0.25 are gone: of the rest, code 4 has 0.05 / 0.75, and code 3 has
        # nothing left to give.
        (AdditiveBound(TABLE, k=2, delta=0.26), [2, 0], [(2, [3], 0.1), (0, [3, 4], 0.05 / 0.75)]),
        # A budget is neither rescaled nor exceeded: 0.05 of code 4 would exceed the remaining 0.02.
        (BudgetBound(TABLE, k=2, delta=0.12), [2, 0], [(2, [3], 0.1), (0, [3], 0.0)]),
        (BudgetBound(TABLE, k=2, delta=0.12), [2, 3, 0], [(2, [3], 0.1), (3, [2], 0.0), (0, [3], 0.0)]),
        # A missing sibling takes nothing.
        (AdditiveBound(TABLE, k=2, delta=0.26), [-1, 0], [(-1, [5, 5], 0.0), (0, [3, 4], 0.15)]),
    ],
)
def test_siblings_get_what_earlier_ones_left(sets, children, expected):
    found = [
        (int(token), relaxed.codes[relaxed.is_member].tolist(), pytest.approx(float(relaxed.mass)))
        for token, relaxed, _ in sets.walk(PROBS, torch.tensor(children))
    ]
    assert found == expected


class Judged:
    """Stand-in for `Scores`: nodes with these probabilities, at which the target samples this token."""

    def __init__(self, probs: torch.Tensor, drawn: int) -> None:
        self.weights = self.logits = probs.log()
        self.keys = torch.nn.functional.one_hot(torch.full(probs.shape[:-1], drawn), probs.shape[-1]).double()


def chosen(verifier, drawn: int, children: list[int]) -> int | None:
    """Return the rank of the child that is accepted at a node of PROBS, or None."""
    found = verifier.verify_nodes(Judged(PROBS.expand(1, 1, -1), drawn), torch.tensor([[children]]), None)
    assert found.bonus.item() == drawn
    return children.index(int(found.chosen)) if int(found.chosen) in children else None


@pytest.mark.parametrize(
    ("children", "rank"),
    [
        ([0, 4, -1], 0),  # 2 is near 0, and near 4 too, which comes later
        ([0, 4, 2], 2),  # 2 itself is preferred
        ([2, 0, 2], 0),
        ([-1, 2, -1], 1),
        ([-1, 4, 0], 1),
        ([-1, -1, -1], None),  # no draft's nearest codes are read
    ],
)
def test_the_drawn_token_or_else_its_first_look_alike_is_accepted(children, rank):
    table = torch.tensor([[1, 2], [0, 2], [3, 1], [1, 0], [3, 2]])
    for kind in (table, table.short()):
        assert chosen(ByProximity(Proximity(kind, k=2)), 2, children) == rank


NEAREST = torch.tensor([[1, 2], [0, 2], [3, 1], [2, 1], [3, 2]])  # two codes of each


@pytest.mark.parametrize(
    ("sets", "drawn", "rank"),
    [
        (AdditiveBound(NEAREST, k=2, delta=0.0), 3, 0),  # the draft itself
        (AdditiveBound(NEAREST, k=2, delta=0.0), 2, None),  # no one's
        (AdditiveBound(NEAREST, k=2, delta=0.16), 2, 0),  # code 2 is the nearest to draft 3 and has 0.15
        (AdditiveBound(NEAREST, k=2, delta=0.1), 2, None),
        (AdditiveBound(NEAREST, k=2, delta=0.42), 1, 1),  # with 2 and 1, A(3) would have 0.45; but 1 is near draft 0
        (AdditiveBound(NEAREST, k=2, delta=0.5), 1, 0),
        (BudgetBound(NEAREST, k=2, delta=0.42), 1, None),  # 0.15 of 0.42 are spent, and code 1 has 0.3
        (MultiplicativeBound(NEAREST, k=2, lambda_=2.0), 2, None),  # 0.15 > 0.1
        (MultiplicativeBound(NEAREST, k=2, lambda_=2.5), 2, 0),
        (JensenShannonBound(NEAREST, k=2, delta=0.16), 2, 0),
        (JensenShannonBound(NEAREST, k=2, delta=0.01), 2, None),
    ],
)
def test_a_child_is_accepted_for_what_its_relaxed_set_holds(sets, drawn, rank):
    assert chosen(WithinBound(sets), drawn, [3, 0]) == rank
    assert chosen(WithinBound(sets), drawn, [3, 0, -1, -1]) == rank
    assert chosen(WithinBound(sets), drawn, [3, 0, 3]) == rank  # the second of two twins is none
    assert chosen(WithinBound(sets), drawn, [-1, -1]) is None


def accepted_greedily(sets, probs: torch.Tensor, tokens: list[int], choices: list) -> list[bool]:
    """Return which nodes except the root are accepted at temperature 0."""
    scores = Judged(probs.expand(1, len(tokens), -1), 0)
    proposal = Proposal(torch.tensor([tokens]), static_tree(choices))
    return GreedyWithinBound(sets).verify_all(scores, proposal)[0][0, 1:].tolist()


@pytest.mark.parametrize(
    ("sets", "accepted"),
    [
        (AdditiveBound(NEAREST, k=2, delta=0.0), [False, True, False]),  # code 0 is the most probable of the root's
        (AdditiveBound(NEAREST, k=2, delta=0.46), [True, True, False]),  # draft 3 with codes 2 and 1 has 0.55 > 0.4
        (AdditiveBound(NEAREST, k=2, delta=0.2), [False, True, False]),  # 0.25 with code 2 only
        (JensenShannonBound(NEAREST, k=2, delta=0.45), [True, True, False]),
        (MultiplicativeBound(NEAREST, k=2, lambda_=5.6), [True, True, False]),
        (MultiplicativeBound(NEAREST, k=2, lambda_=5.0), [False, True, False]),
    ],
)
def test_at_temperature_0_every_child_that_its_set_makes_the_most_probable_is_accepted(sets, accepted):
    """The root has two children, the first of which has one child."""
    assert accepted_greedily(sets, PROBS, [0, 3, 0, 4], [(0,), (1,), (0, 0)]) == accepted


def test_at_temperature_0_a_tie_goes_to_the_lower_code_and_a_missing_draft_is_not_accepted():
    sets = AdditiveBound(torch.tensor([[2], [0], [0]]), k=1, delta=1.0)
    probs = torch.tensor([0.25, 0.5, 0.25])
    # 0 with 2 has 0.5 as code 1 has; so has 2 with 0.
    assert accepted_greedily(sets, probs, [0, 0, 2], [(0,), (1,)]) == [True, False]
    missing = AdditiveBound(NEAREST, k=2, delta=0.46)  # as code 0, which is the most probable
    assert accepted_greedily(missing, PROBS, [0, -1, 0], [(0,), (1,)]) == [False, True]
