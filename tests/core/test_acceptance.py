"""Acceptance rules: laws by enumeration against the reference's exact laws, and decisions checkable by eye."""

from __future__ import annotations

import json

import pytest
import torch

from conftest import DATA
from lantern.acceptance.base import Exact
from lantern.acceptance.rejection import Rejection, accept_chain
from lantern.acceptance.relaxed_sets import (
    AdditiveBound,
    BudgetBound,
    ByLookAlike,
    GreedyWithinBound,
    JensenShannonBound,
    MultiplicativeBound,
    Proximity,
    RelaxedSets,
    WithinBound,
)
from lantern.draft_tree import static_tree
from lantern.step import Proposal

LAWS = json.loads((DATA / "reference" / "emission_law.json").read_text())


def law_by_rejection(
    target: torch.Tensor, draft: torch.Tensor | None, children: int | list[int], rule: Rejection
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
                merged = rule.acceptance.merge(probs, left, rule.acceptance.codes_of(x))
                accept = min(1.0, float(merged.surrogate) / drawn)
                law[token] += weight * drawn * accept
                if accept < 1:
                    residual = rule.residual_probs(probs, merged, left)
                    rest = None if left is None else left.scatter(0, x[None], 0.0)
                    rest = None if rest is None else rest / rest.sum()
                    following.append((weight * drawn * (1 - accept), residual, rest))
        states = following
    return law + sum(weight * probs for weight, probs, _ in states)


def acceptance_of(case: dict) -> Exact:
    """The reference packs both bounds in one number: 0 is exact, up to 1 it is delta, above it is lambda."""
    table = torch.tensor(case["neighbours"])
    if case["delta"] == 0:
        return Exact()
    if case["delta"] > 1:
        return MultiplicativeBound(table, k=case["k"], lambda_=case["delta"])
    return AdditiveBound(table, k=case["k"], delta=case["delta"])


@pytest.mark.parametrize("case", LAWS, ids=lambda c: f"{c['rule']}-{c['siblings']}-{c['delta']}")
def test_emitted_law_equals_the_reference(case):
    target = torch.tensor(case["q"], dtype=torch.float64)
    draft = torch.tensor(case["p"], dtype=torch.float64)
    residual = {"paper": "paper", "static_lumina": "official_lumina"}.get(case["rule"], "official")
    rule = Rejection(acceptance_of(case), residual)
    if case["deterministic_draft"]:
        law = law_by_rejection(target, None, draft.topk(case["siblings"]).indices.tolist(), rule)
    else:
        law = law_by_rejection(target, draft, case["siblings"], rule)
    torch.testing.assert_close(law, torch.tensor(case["law"], dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize("drafts", [0, 1, 4])
def test_a_chain_is_judged_as_a_reader_would_write_it(drafts):
    """The rule for one chain, in a loop over its drafts, beside the batched one."""
    generator = torch.Generator().manual_seed(drafts)
    rejected = 0
    for _ in range(200):
        probs = (2 * torch.randn(drafts + 1, 6, generator=generator, dtype=torch.float64)).softmax(-1)
        draft_probs = (2 * torch.randn(drafts, 6, generator=generator, dtype=torch.float64)).softmax(-1)
        tokens = [int(torch.multinomial(row, 1, generator=generator)) for row in draft_probs]
        uniforms = torch.rand(drafts, generator=generator, dtype=torch.float64)
        expected, left = accept_chain(probs, tokens, draft_probs, uniforms.tolist())
        children = torch.tensor(tokens, dtype=torch.int64).view(1, -1, 1)
        rank, residual = Rejection().accept(probs[None, :drafts], children, draft_probs[None], uniforms.view(1, -1, 1))
        accepted = int((rank[0] == 0).long().cumprod(0).sum())
        assert accepted == expected
        rejected += accepted < drafts
        found = residual[0, accepted] if accepted < drafts else probs[drafts]
        torch.testing.assert_close(found, left)
    assert (rejected > 20) == (drafts > 0)


TABLE = torch.tensor([[1, 2], [0, 2], [3, 1], [2, 1], [3, 2]])  # two nearest codes of five


class Judged:
    """What a rule reads of `Scores`: nodes with these probabilities, at which the target draws this token."""

    def __init__(self, probs: torch.Tensor, drawn: int) -> None:
        self.weights = self.logits = probs.log()
        self.keys = torch.nn.functional.one_hot(torch.full(probs.shape[:-1], drawn), probs.shape[-1]).double()


PROBS = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64)


def chosen(rule, drawn: int, children: list[int]) -> int | None:
    """Rank of the child that is accepted at a node of PROBS, None for none."""
    found = rule.judge(Judged(PROBS.expand(1, 1, -1), drawn), torch.tensor([[children]]), None)
    assert found.own.item() == drawn
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
        assert chosen(ByLookAlike(Proximity(kind, k=2)), 2, children) == rank


@pytest.mark.parametrize(
    "sets, drawn, rank",
    [
        (AdditiveBound(TABLE, k=2, delta=0.0), 3, 0),  # the draft itself
        (AdditiveBound(TABLE, k=2, delta=0.0), 2, None),  # no one's
        (AdditiveBound(TABLE, k=2, delta=0.16), 2, 0),  # code 2 is the nearest to draft 3 and has 0.15
        (AdditiveBound(TABLE, k=2, delta=0.1), 2, None),
        (AdditiveBound(TABLE, k=2, delta=0.42), 1, 1),  # with 2 and 1, A(3) would have 0.45; but 1 is near draft 0
        (AdditiveBound(TABLE, k=2, delta=0.5), 1, 0),
        (BudgetBound(TABLE, k=2, delta=0.42), 1, None),  # 0.15 of 0.42 are spent, and code 1 has 0.3
        (MultiplicativeBound(TABLE, k=2, lambda_=2.0), 2, None),  # 0.15 > 0.1
        (MultiplicativeBound(TABLE, k=2, lambda_=2.5), 2, 0),
        (JensenShannonBound(TABLE, k=2, delta=0.16), 2, 0),
        (JensenShannonBound(TABLE, k=2, delta=0.01), 2, None),
    ],
)
def test_a_child_is_accepted_for_what_its_relaxed_set_holds(sets, drawn, rank):
    assert chosen(WithinBound(sets), drawn, [3, 0]) == rank
    assert chosen(WithinBound(sets), drawn, [3, 0, -1, -1]) == rank
    assert chosen(WithinBound(sets), drawn, [-1, -1]) is None


def accepted_greedily(sets: RelaxedSets, probs: torch.Tensor, tokens: list[int], choices: list) -> list[bool]:
    """Which nodes but the root are accepted at temperature 0."""
    proposal = Proposal(torch.tensor([tokens]), static_tree(choices))
    scores = Judged(probs.expand(1, len(tokens), -1), 0)
    return GreedyWithinBound(sets).judge_all(scores, proposal)[0][0, 1:].tolist()


@pytest.mark.parametrize(
    "sets, accepted",
    [
        (AdditiveBound(TABLE, k=2, delta=0.0), [False, True, False]),  # code 0 is the most probable of the root's
        (AdditiveBound(TABLE, k=2, delta=0.46), [True, True, False]),  # draft 3 with codes 2 and 1 has 0.55 > 0.4
        (AdditiveBound(TABLE, k=2, delta=0.2), [False, True, False]),  # 0.25 with code 2 alone
        (JensenShannonBound(TABLE, k=2, delta=0.45), [True, True, False]),
        (MultiplicativeBound(TABLE, k=2, lambda_=5.6), [True, True, False]),
        (MultiplicativeBound(TABLE, k=2, lambda_=5.0), [False, True, False]),
    ],
)
def test_at_temperature_0_every_child_that_its_set_makes_the_most_probable_is_accepted(sets, accepted):
    """A root with two children, the first of which has one."""
    assert accepted_greedily(sets, PROBS, [0, 3, 0, 4], [(0,), (1,), (0, 0)]) == accepted


def test_a_tie_at_temperature_0_goes_to_the_lower_code():
    sets = AdditiveBound(torch.tensor([[2], [0], [0]]), k=1, delta=1.0)
    probs = torch.tensor([0.25, 0.5, 0.25])
    # 0 with 2 has 0.5 as code 1 has; so has 2 with 0.
    assert accepted_greedily(sets, probs, [0, 0, 2], [(0,), (1,)]) == [True, False]


@pytest.mark.parametrize(
    "uniform, rank", [(0.39, 0), (0.41, 1), (0.95, 2)], ids=["likely enough", "next child", "none"]
)
def test_children_are_tried_in_order_against_what_is_left(uniform, rank):
    probs = torch.tensor([[[0.4, 0.3, 0.3]]], dtype=torch.float64)
    children, uniforms = torch.tensor([[[0, 1]]]), torch.full((1, 1, 2), uniform, dtype=torch.float64)
    assert Rejection().accept(probs, children, None, uniforms)[0].item() == rank  # 0.4, then 0.3 / 0.6
