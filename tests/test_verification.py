"""Verification by the parts of a method: what is emitted after a rejection, and which bounds are exact decoding."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from scipy.stats import chisquare

from lantern.draft_tree import static_tree
from lantern.drafting import Proposal
from lantern.methods import MethodSpec
from lantern.noise import NoiseField, make_noise
from lantern.rules import ByEquality, make_rule
from lantern.sampling import SamplingConfig
from lantern.verification import Scores

COUNT = 20_000  # emissions
TARGET = torch.tensor([0.0, 0.45, 0.3, 0.25, 0.0])
DRAFT = torch.tensor([0.5, 0.05, 0.15, 0.1, 0.2])
STREAMS = ("target", "accept")
TABLE = torch.tensor([[1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 1], [0, 1, 2]])


@cache
def make_field() -> NoiseField:
    field = NoiseField(COUNT, 1, len(TARGET), STREAMS)
    field.fill(range(COUNT), [make_noise(3, f"p{i}", STREAMS, 1, len(TARGET)) for i in range(COUNT)])
    return field


def emit(children: torch.Tensor, **parts) -> torch.Tensor:
    """Tokens that COUNT images emit at a root with these drafted children, int64 (COUNT, m) drawn from DRAFT."""
    num_children = children.shape[1]
    choices = [(rank,) for rank in range(num_children)]
    spec = MethodSpec("rejects", "mine", "sampled", tree_shape=choices, **parts)
    tokens = torch.cat([torch.zeros(COUNT, 1, dtype=torch.int64), children], dim=1)
    proposal = Proposal(tokens, static_tree(choices), DRAFT.expand(COUNT, 1, -1))
    weights = TARGET.log().expand(COUNT, 1 + num_children, -1)
    positions = torch.zeros(COUNT, 1 + num_children, dtype=torch.int64)
    scores = Scores(None, weights, positions, make_field(), SamplingConfig())
    return make_rule(spec, SamplingConfig(), TABLE).verify(scores, proposal).emitted[:, 0]


def follow(tokens: torch.Tensor, expected: torch.Tensor) -> None:
    """Chi-square of tokens against a distribution; fails once in 10^4 by chance."""
    counts = torch.bincount(tokens, minlength=len(expected)).double()
    assert not counts[expected == 0].any(), counts
    kept = expected > 0
    wanted = expected[kept].double() / expected.double().sum() * COUNT
    assert chisquare(counts[kept].numpy(), wanted.numpy()).pvalue > 1e-4, (counts, wanted)


@pytest.mark.parametrize("children", [[0], [0, 4]])
def test_what_is_emitted_after_a_rejection_follows_the_residual(children):
    """Drafts of target mass 0 are always rejected; one after the other, each leaves max(0, t - p), normalised."""
    left, draft = TARGET.clone(), DRAFT.clone()
    for child in children:
        left = (left - draft).clamp(min=0)
        left = left / left.sum()
        draft[child] = 0.0
        draft = draft / draft.sum()
    follow(emit(torch.tensor(children).expand(COUNT, -1)), left)


@pytest.mark.parametrize("num_children", [1, 2, 4])
def test_sampled_drafts_keep_the_targets_distribution(num_children):
    generator = torch.Generator().manual_seed(0)
    children = torch.multinomial(DRAFT.expand(COUNT, -1), num_children, generator=generator)
    follow(emit(children), TARGET)


def test_a_relaxed_set_that_is_rejected_takes_its_mass_along():
    """LANTERN++ with lambda 3 on draft 1: A(1) = {2, 3}, s(1) = 1; draft 0 has no mass, so A(0) is empty."""
    parts = {"relaxation": "multiplicative", "neighbours": "l2", "k": 3, "lambda_": 3.0}
    assert (emit(torch.ones(COUNT, 1, dtype=torch.int64), **parts) == 1).all()
    follow(emit(torch.zeros(COUNT, 1, dtype=torch.int64), **parts), (TARGET - DRAFT).clamp(min=0))


@pytest.mark.parametrize(
    "bound",
    [
        {"relaxation": "additive", "delta": 0.0},
        {"relaxation": "jensen_shannon", "delta": 0.0},
        {"relaxation": "multiplicative", "lambda_": 1.0},
        {"relaxation": "bounded", "drafts": "top", "delta": 0.0},
    ],
)
def test_bounds_of_nothing_are_exact_decoding_and_need_no_table(bound):
    spec = MethodSpec(**{"name": "exact", "tree": "chain3", "drafts": "sampled", "neighbours": "l2", "k": 3, **bound})
    for temperature in (0.0, 1.0):
        rule = make_rule(spec, SamplingConfig(temperature), None)
        assert isinstance(rule, ByEquality) or (rule.rejection.relaxation is None and rule.rejection.table is None)


@pytest.mark.parametrize("bound", [{"relaxation": "additive", "delta": 0.001}, {"relaxation": "proximity"}])
def test_any_other_bound_needs_its_table(bound):
    spec = MethodSpec(name="near", tree="chain3", drafts="top", neighbours="l2", k=3, **bound)
    with pytest.raises(ValueError, match="near needs the 3 nearest codes, got no table"):
        make_rule(spec, SamplingConfig(), None)
