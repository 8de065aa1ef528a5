"""Acceptance rules: laws by enumeration against the reference's exact laws, and decisions checkable by eye."""

from __future__ import annotations

import json

import pytest
import torch

from conftest import DATA
from lantern.acceptance import (
    RejectionRule,
    accept_by_rejection,
    accept_greedy,
    accept_look_alikes,
    accept_within_bound,
)
from lantern.relaxation import (
    AdditiveBound,
    BudgetBound,
    JensenShannonBound,
    MultiplicativeBound,
    Relaxation,
)

LAWS = json.loads((DATA / "reference" / "emission_law.json").read_text())


def law_by_rejection(
    target: torch.Tensor, draft: torch.Tensor | None, children: int | list[int], rule: RejectionRule
) -> torch.Tensor:
    """Exact law of the emitted token at one node: every sequence of drafts, every accept or reject, weighted.

    `children` is the number of drafts drawn from `draft` without replacement, or the list of deterministic drafts.
    """
    vocab = len(target)
    states = [(1.0, target, draft)]
    law = torch.zeros_like(target)
    for i in range(children if isinstance(children, int) else len(children)):
        following = []
        for weight, probs, left in states:
            for token in range(vocab) if left is not None else [children[i]]:
                drawn = 1.0 if left is None else float(left[token])
                if drawn == 0:
                    continue
                x = torch.tensor(token)
                relaxed = rule.relax(probs, rule.codes_of(x))
                accept = min(1.0, float(relaxed.surrogate) / drawn)
                law[token] += weight * drawn * accept
                if accept < 1:
                    residual = rule.residual_probs(probs, relaxed, left)
                    rest = None if left is None else left.scatter(0, x[None], 0.0)
                    rest = None if rest is None else rest / rest.sum()
                    following.append((weight * drawn * (1 - accept), residual, rest))
        states = following
    return law + sum(weight * probs for weight, probs, _ in states)


def relaxation_of(case: dict) -> Relaxation | None:
    """The reference packs both bounds in one number: 0 is exact, up to 1 it is delta, above it is lambda."""
    if case["delta"] == 0:
        return None
    if case["delta"] > 1:
        return MultiplicativeBound(case["k"], case["delta"])
    return AdditiveBound(case["k"], case["delta"])


@pytest.mark.parametrize("case", LAWS, ids=lambda c: f"{c['rule']}-{c['siblings']}-{c['delta']}")
def test_emitted_law_equals_the_reference(case):
    target = torch.tensor(case["q"], dtype=torch.float64)
    draft = torch.tensor(case["p"], dtype=torch.float64)
    residual = {"paper": "paper", "static_lumina": "official_lumina"}.get(case["rule"], "official")
    rule = RejectionRule(relaxation_of(case), torch.tensor(case["neighbours"]), residual)
    if case["deterministic_draft"]:
        law = law_by_rejection(target, None, draft.topk(case["siblings"]).indices.tolist(), rule)
    else:
        law = law_by_rejection(target, draft, case["siblings"], rule)
    torch.testing.assert_close(law, torch.tensor(case["law"], dtype=torch.float64), atol=1e-9, rtol=0)


PARENTS = torch.tensor([[0, 0, 0, 1]])  # a root with two children, the first of which has one: nodes 0, 1, 2, 3
TABLE = torch.tensor([[1, 2], [0, 2], [3, 1], [2, 1], [3, 2]])  # two nearest codes of five


@pytest.mark.parametrize(
    ("children", "rank"),
    [
        ([0, 4, -1], 0),  # 2 is near 0, and near 4 too, which comes later
        ([0, 4, 2], 2),  # 2 itself is preferred
        ([2, 0, 2], 0),
        ([-1, 2, -1], 1),
        ([-1, 4, 0], 1),
        ([-1, -1, -1], 3),  # no draft's nearest codes are read
    ],
)
def test_the_drawn_token_or_else_its_first_look_alike_is_accepted(children, rank):
    drawn, table = torch.tensor([[2]]), torch.tensor([[1, 2], [0, 2], [3, 1], [1, 0], [3, 2]])
    assert accept_look_alikes(drawn, torch.tensor([[children]]), table).item() == rank
    assert accept_look_alikes(drawn, torch.tensor([[children]]), table.short()).item() == rank


@pytest.mark.parametrize(
    "relaxation, drawn, rank",
    [
        (AdditiveBound(2, 0.0), 3, 0),  # the draft itself
        (AdditiveBound(2, 0.0), 2, 2),  # no one's
        (AdditiveBound(2, 0.16), 2, 0),  # code 2 is the nearest to draft 3 and has 0.15
        (AdditiveBound(2, 0.1), 2, 2),
        (AdditiveBound(2, 0.42), 1, 1),  # with both, 2 and 1, A(3) would have 0.45; but 1 is near draft 0
        (AdditiveBound(2, 0.5), 1, 0),
        (BudgetBound(2, 0.42), 1, 2),  # 0.15 of 0.42 are spent, and code 1 has 0.3
        (MultiplicativeBound(2, 2.0), 2, 2),  # 0.15 > 0.1
        (MultiplicativeBound(2, 2.5), 2, 0),
        (JensenShannonBound(2, 0.16), 2, 0),
        (JensenShannonBound(2, 0.01), 2, 2),
    ],
    ids=str,
)
def test_a_child_is_accepted_for_what_its_relaxed_set_holds(relaxation, drawn, rank):
    probs = torch.tensor([[[0.4, 0.3, 0.15, 0.1, 0.05]]], dtype=torch.float64)
    children = torch.tensor([[[3, 0]]])
    assert accept_within_bound(probs, torch.tensor([[drawn]]), children, TABLE, relaxation).item() == rank


def test_a_missing_child_is_never_accepted():
    probs = torch.full((1, 1, 5), 0.2)
    children = torch.tensor([[[-1, -1]]])
    assert accept_within_bound(probs, torch.tensor([[0]]), children, TABLE, AdditiveBound(2, 1.0)).item() == 2


@pytest.mark.parametrize(
    "relaxation, accepted",
    [
        (AdditiveBound(2, 0.0), [False, True, False]),  # code 0 is the most probable of the root's
        (AdditiveBound(2, 0.46), [True, True, False]),  # draft 3 with codes 2 and 1 has 0.55 > 0.4
        (AdditiveBound(2, 0.2), [False, True, False]),  # 0.25 with code 2 alone
        (JensenShannonBound(2, 0.45), [True, True, False]),
        (MultiplicativeBound(2, 5.6), [True, True, False]),
        (MultiplicativeBound(2, 5.0), [False, True, False]),
    ],
    ids=str,
)
def test_at_temperature_0_every_child_that_its_set_makes_the_most_probable_is_accepted(relaxation, accepted):
    logits = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64).log().expand(1, 4, -1)
    tokens = torch.tensor([[0, 3, 0, 4]])
    found = accept_greedy(logits, tokens, PARENTS, TABLE, relaxation)
    assert found[0, 1:].tolist() == accepted


def test_a_tie_at_temperature_0_goes_to_the_lower_code():
    logits = torch.tensor([0.25, 0.5, 0.25]).log().expand(1, 3, -1)
    table = torch.tensor([[2], [0], [0]])
    found = accept_greedy(logits, torch.tensor([[0, 0, 2]]), torch.tensor([[0, 0, 0]]), table, AdditiveBound(1, 1.0))
    assert found[0, 1:].tolist() == [True, False]  # 0 with 2 has 0.5 as code 1 has; so has 2 with 0


@pytest.mark.parametrize(
    "uniform, rank", [(0.39, 0), (0.41, 1), (0.95, 2)], ids=["likely enough", "next child", "none"]
)
def test_children_are_tried_in_order_against_what_is_left(uniform, rank):
    probs = torch.tensor([[[0.4, 0.3, 0.3]]], dtype=torch.float64)
    children, uniforms = torch.tensor([[[0, 1]]]), torch.full((1, 1, 2), uniform, dtype=torch.float64)
    outcome = accept_by_rejection(probs, children, None, uniforms, RejectionRule())
    assert outcome.rank.item() == rank  # 0.4, then 0.3 / 0.6
