"""Drafts of a draft model and of Jacobi decoding: well formed, filtered, and no deeper than there is room."""

from __future__ import annotations

import itertools

import pytest
import torch

from conftest import generate, make_models, make_prompts
from lantern.decoding import DecodingModels, make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.models.config import OVERSHOOT
from lantern.sampling import SamplingConfig
from lantern.step import Outcome
from lantern.tree_shapes import DynamicTreeOptions

DYNAMIC = MethodSpec.of(
    "dynamic", tree="dynamic", drafts="top", tree_shape=DynamicTreeOptions(num_nodes=9, depth=2, top_k=4)
)


def bushy(drafts: str) -> MethodSpec:
    if drafts == "dynamic":
        return DYNAMIC
    return MethodSpec.of("bushy", tree="bushy", drafts=drafts, tree_shape=[(0,), (1,), (2,), (0, 0), (0, 1)])


def steps_of(models: DecodingModels, spec: MethodSpec, **sampling) -> list[Outcome]:
    """What happened in every step of five images."""
    seen: list[Outcome] = []
    generate(models, spec, observer=seen.append, **sampling)
    return seen


@pytest.fixture(scope="module")
def certain_models() -> DecodingModels:
    """Models so sure of themselves that a draft is often as probable as the draft before it."""
    models = make_models(seed=2)
    with torch.no_grad():
        models.target.head.weight.mul_(20)
    return models


def paths_of_candidates(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return set(paths)


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_k": 1}, {"top_p": 0.3}, {"cfg_scale": 3.0}]
)
def test_every_node_of_a_dynamic_tree_hangs_on_its_own_parent(certain_models, sampling):
    decoder = make_decoder(certain_models, DYNAMIC, SamplingConfig(**sampling))
    select, found = decoder.drafter._select, []

    def spy(root, *candidates):
        found.append((select(root, *candidates), candidates))
        return found[-1][0]

    decoder.drafter._select = spy
    decoder.generate(*make_prompts(certain_models, 5), [decoder.make_noise(0, i) for i in "abcde"])
    for drafts, (tokens, scores, parents) in found:
        assert scores.isfinite().all()  # a filtered-out token too has a score by which to choose
        tree = drafts.tree
        for row in range(len(tokens)):
            known = paths_of_candidates(tokens[row].tolist(), parents[row].tolist())
            for node in range(1, tree.num_nodes):
                path = tree.paths[row, node, 1 : 1 + int(tree.depths[row, node])]
                assert tuple(drafts.tokens[row, path].tolist()) in known
            children = tree.children[row]
            assert sorted(children[children >= 0].tolist()) == list(range(1, tree.num_nodes))


@pytest.mark.parametrize("drafts", ["top", "coupled", "sampled"])
def test_greedy_drafts_do_not_depend_on_the_filters(models, drafts):
    """Filters never take the most probable token away, but they would take its siblings."""
    found = []
    for filters in ({}, {"top_k": 1, "top_p": 0.5}):
        seen = steps_of(models, bushy(drafts), temperature=0.0, **filters)
        found.append(torch.stack([outcome.proposal.tokens for outcome in seen]))
    assert torch.equal(*found)


@pytest.mark.parametrize("drafts", ["top", "coupled", "sampled", "dynamic"])
def test_what_the_filters_take_away_is_never_drafted(models, drafts):
    """Two codes are left, three children wanted: the third is no draft."""
    for outcome in steps_of(models, bushy(drafts), top_k=2):
        tree, tokens = outcome.proposal.tree, outcome.proposal.tokens
        assert torch.equal(tokens < 0, (tree.ranks >= 2).expand(tokens.shape))
        assert not (outcome.is_accepted & (tokens < 0)).any()


def test_where_the_filters_leave_one_code_there_is_no_second_guess(models):
    seen = steps_of(models, make_method("jacobi", tree="chain2k2d2"), top_k=1)
    second = seen[0].proposal.tree.ranks[0] == 1
    assert all((outcome.proposal.tokens[:, second] == -1).all() for outcome in seen[1:])
    assert all((outcome.proposal.tokens[:, ~second] >= 0).all() for outcome in seen)


def test_a_tree_may_be_as_deep_as_the_rotary_table_reaches(models):
    shallow, deep = (
        generate(models, MethodSpec.of("deep", tree=tree, drafts="coupled")).codes
        for tree in ("chain1", f"chain{OVERSHOOT}")
    )
    assert torch.equal(shallow, deep)
    with pytest.raises(ValueError, match="at most 32 drafts deep, got 33; choose a shallower tree"):
        make_decoder(models, MethodSpec.of("deep", tree=f"chain{OVERSHOOT + 1}", drafts="coupled"), SamplingConfig())


def test_guesses_are_what_the_target_drew_at_those_positions_in_the_step_before(models):
    """With siblings: the best codes of the rows along the first ranks, in order; for new positions, the last's."""
    decoder = make_decoder(models, make_method("jacobi", tree="chain3k2d1"), SamplingConfig(cfg_scale=2.0))
    seen = []
    decoder.observer = seen.append
    with torch.inference_mode():
        state = decoder.start(*make_prompts(models, 2), [decoder.make_noise(7, i) for i in "ab"])
        first = state.tokens[:, 0].clone()
        for _ in range(4):
            decoder.step(state)
    assert torch.equal(seen[0].proposal.tokens, first[:, None].expand(-1, 5))  # nothing is known yet
    assert decoder.drafter.tree.ranks.tolist() == [[0, 0, 1, 0, 0]]
    for before, after in itertools.pairwise(seen):
        best = before.scores.keys[:, [0, 1, 3, 4]].topk(2, dim=-1).indices  # (batch, positions, ranks)
        for row in range(2):
            moved = int(before.num_accepted[row]) + 1
            places = [min(moved + ahead, 3) for ahead in range(3)]
            expected = torch.stack([best[row, places[0], 0], best[row, places[0], 1], *best[row, places[1:], 0]])
            assert torch.equal(after.proposal.tokens[row, 1:], expected)
