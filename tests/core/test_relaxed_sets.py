"""Relaxed sets checkable by eye, against a slow loop, and the divergences that they are bounded by."""

from __future__ import annotations

import pytest
import torch

from lantern.acceptance.relaxed_sets import (
    AdditiveBound,
    BudgetBound,
    JensenShannonBound,
    MultiplicativeBound,
    Proximity,
)

# Codes 0 to 4 with 40, 30, 15, 10 and 5 % of the mass; the nearest codes of 0 are 3, 4, 2, 1, in this order.
PROBS = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64)
TABLE = torch.tensor([[3, 4, 2, 1], [0, 2, 3, 4], [3, 1, 0, 4], [2, 4, 0, 1], [3, 2, 1, 0]])
NOTHING_SPENT = torch.tensor(0.0, dtype=torch.float64)


def merge(sets, probs, tokens):
    """A(x) of some drafts at nodes where nothing is spent."""
    return sets.merge(probs, None, sets.codes_of(tokens))


def grow(sets, token=0, spent=NOTHING_SPENT):
    """Codes of A(x) and its mass."""
    codes = sets.nearest(torch.tensor(token))
    relaxed = sets.grow(codes, PROBS.gather(-1, codes), spent[..., None])
    return relaxed.codes[relaxed.is_member].tolist(), float(relaxed.mass)


@pytest.mark.parametrize(
    "sets, codes, mass",
    [
        (AdditiveBound(TABLE, k=4, delta=0.16), [3, 4], 0.15),
        (AdditiveBound(TABLE, k=4, delta=0.09), [], 0.0),
        (AdditiveBound(TABLE, k=4, delta=1.0), [3, 4, 2, 1], 0.6),
        (AdditiveBound(TABLE, k=1, delta=1.0), [3], 0.1),
        (MultiplicativeBound(TABLE, k=4, lambda_=1.3), [3], 0.1),  # (1.3 - 1) 0.4 = 0.12
        (MultiplicativeBound(TABLE, k=4, lambda_=1.8), [3, 4, 2], 0.3),  # 0.32
        (MultiplicativeBound(TABLE, k=4, lambda_=1.0), [], 0.0),
        (BudgetBound(TABLE, k=4, delta=0.16), [3, 4], 0.15),
        (Proximity(TABLE, k=3), [3, 4, 2], 0.3),
        (JensenShannonBound(TABLE, k=4, delta=1.0), [3, 4, 2, 1], 0.6),
        (JensenShannonBound(TABLE, k=4, delta=0.0), [], 0.0),
    ],
    ids=str,
)
def test_the_relaxed_set_is_the_longest_prefix_within_the_bound(sets, codes, mass):
    found, found_mass = grow(sets)
    assert found == codes and found_mass == pytest.approx(mass)


def test_a_multiplicative_bound_gives_unlikely_drafts_less():
    assert grow(MultiplicativeBound(TABLE, k=4, lambda_=2.0), token=0) == ([3, 4, 2], pytest.approx(0.3))
    assert grow(MultiplicativeBound(TABLE, k=4, lambda_=2.0), token=4) == (
        [],
        0.0,
    )  # 0.05 of its own, and its nearest code has 0.1


def test_a_budget_is_what_earlier_siblings_left():
    assert grow(BudgetBound(TABLE, k=4, delta=0.16), spent=NOTHING_SPENT + 0.05) == ([3], pytest.approx(0.1))
    assert grow(BudgetBound(TABLE, k=4, delta=0.16), spent=NOTHING_SPENT + 0.1) == ([], 0.0)
    assert grow(AdditiveBound(TABLE, k=4, delta=0.16), spent=NOTHING_SPENT + 0.1) == ([3, 4], pytest.approx(0.15))


def test_without_neighbours_the_set_is_empty():
    assert grow(AdditiveBound(TABLE, k=0, delta=1.0)) == ([], 0.0)


def jensen_shannon_bits(a: torch.Tensor, b: torch.Tensor) -> float:
    """The divergence by its definition, over all codes."""
    middle = (a + b) / 2
    return (
        float((torch.xlogy(a, a) + torch.xlogy(b, b)).sum() / 2 - torch.xlogy(middle, middle).sum())
        / 0.6931471805599453
    )


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


def test_the_jensen_shannon_divergence_grows_with_the_mass_and_is_at_most_the_mass():
    mass = torch.linspace(0, 0.5, 101, dtype=torch.float64)
    for own in (0.0, 1e-6, 0.01, 0.5):
        token_probs = torch.tensor([own], dtype=torch.float64)
        admitted = [
            int(JensenShannonBound(TABLE, k=101, delta=delta).admits(mass, token_probs, NOTHING_SPENT[None]).sum())
            for delta in torch.linspace(0, 0.5, 51).tolist()
        ]
        additive = [int((mass <= delta).sum()) for delta in torch.linspace(0, 0.5, 51).tolist()]
        assert admitted == sorted(admitted) and all(js >= tv for js, tv in zip(admitted, additive, strict=True))
        bound = JensenShannonBound(TABLE, k=101, delta=0.1).admits(mass, token_probs, NOTHING_SPENT[None])
        assert bound.tolist() == sorted(bound.tolist(), reverse=True)  # once False, False ever after


def test_a_draft_without_mass_of_its_own_is_bounded_by_the_mass_alone():
    # t~ and t share no code but those outside of {x} and A(x): their divergence is the mass that moves.
    admits = JensenShannonBound(TABLE, k=3, delta=0.25).admits
    mass = torch.tensor([0.2, 0.25, 0.3], dtype=torch.float64)
    assert admits(mass, torch.zeros(1, dtype=torch.float64), torch.zeros(1)).tolist() == [True, True, False]


@pytest.mark.parametrize(
    "sets",
    [
        AdditiveBound(TABLE, k=4, delta=0.2),
        MultiplicativeBound(TABLE, k=4, lambda_=1.5),
        JensenShannonBound(TABLE, k=4, delta=0.05),
        Proximity(TABLE, k=4),
    ],
    ids=str,
)
def test_many_drafts_at_once_equal_one_after_the_other(sets):
    probs = (2 * torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)).softmax(-1)
    tokens = torch.tensor([[0, 1], [2, 3], [4, 0]])
    together = merge(sets, probs, tokens)
    for i in range(3):
        for j in range(2):
            alone = merge(sets, probs[i, j], tokens[i, j])
            assert torch.equal(together.is_member[i, j], alone.is_member)
            assert together.mass[i, j] == alone.mass


def test_what_is_removed_is_the_draft_and_its_set():
    relaxed = merge(AdditiveBound(TABLE, k=4, delta=0.16), PROBS, torch.tensor(0))
    assert sorted(relaxed.taken.unique().tolist()) == [0, 3, 4]


def walk(sets, children):
    """(token, codes of A(x), mass) of each rank."""
    found = []
    for token, relaxed, _ in sets.walk(PROBS, torch.tensor(children)):
        found.append((int(token), relaxed.codes[relaxed.is_member].tolist(), float(relaxed.mass)))
    return found


def test_siblings_get_what_earlier_ones_left():
    first, second = walk(AdditiveBound(TABLE, k=2, delta=0.26), [2, 0])
    assert first == (2, [3], pytest.approx(0.1))  # 0.1, and with code 1 it would be 0.4
    # 0.25 are gone: of the rest, code 4 has 0.05 / 0.75, and code 3 has nothing left to give
    assert second == (0, [3, 4], pytest.approx(0.05 / 0.75))


def test_a_shared_budget_is_neither_rescaled_nor_exceeded():
    first, second = walk(BudgetBound(TABLE, k=2, delta=0.12), [2, 0])
    assert first == (2, [3], pytest.approx(0.1))
    assert second == (0, [3], pytest.approx(0.0))  # 0.05 of code 4 would exceed what is left, 0.02
    total = sum(mass for *_, mass in walk(BudgetBound(TABLE, k=4, delta=0.3), [4, 2, 0, 1]))
    assert 0 < total <= 0.3


def test_a_missing_sibling_takes_nothing():
    assert (
        walk(AdditiveBound(TABLE, k=2, delta=0.26), [-1, 0])[1] == walk(AdditiveBound(TABLE, k=2, delta=0.26), [0])[0]
    )
    assert walk(AdditiveBound(TABLE, k=2, delta=0.26), [-1, 0])[0] == (-1, [len(PROBS)] * 2, 0.0)
