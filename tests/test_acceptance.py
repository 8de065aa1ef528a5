"""Acceptance rules: laws by enumeration, against the reference's exact laws and against rules evaluated one by one."""

from __future__ import annotations

import json

import pytest
import torch

from conftest import DATA
from lantern import acceptance
from lantern.acceptance import RejectionRule
from lantern.relaxation import AdditiveBound, MultiplicativeBound, Relaxation

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
                relaxed = rule.relax(probs, x)
                accept = min(1.0, float(probs[token] + relaxed.mass) / drawn)
                law[token] += weight * drawn * accept
                if accept < 1:
                    residual = rule.residual_probs(probs, x, relaxed, left)
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
