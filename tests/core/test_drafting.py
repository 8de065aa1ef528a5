"""Drafted trees: dynamic ones are well formed, greedy ones know no filters, and depth has its limit."""

from __future__ import annotations

import pytest
import torch

from conftest import make_models, make_prompts
from lantern.decoding import DecodingModels, make_decoder
from lantern.methods import MethodSpec
from lantern.models.config import OVERSHOOT
from lantern.sampling import SamplingConfig
from lantern.step import Proposal
from lantern.tree_shapes import DynamicTreeOptions

DYNAMIC = MethodSpec.of(
    "dynamic", tree="dynamic", drafts="top", tree_shape=DynamicTreeOptions(num_nodes=9, depth=2, top_k=4)
)
BUSHY = [(0,), (1,), (2,), (0, 0), (0, 1)]


@pytest.fixture(scope="module")
def certain_models() -> DecodingModels:
    """Models so sure of themselves that a draft is often as probable as the draft before it."""
    models = make_models(seed=2)
    with torch.no_grad():
        models.target.head.weight.mul_(20)
    return models


def drawn_trees(models: DecodingModels, sampling: SamplingConfig) -> list[tuple[Proposal, tuple[torch.Tensor, ...]]]:
    """Trees of some steps, each with the candidates (tokens, scores, parents) that it was chosen from."""
    decoder = make_decoder(models, DYNAMIC, sampling)
    features, mask = make_prompts(models, 5)
    select, found = decoder.drafter._select, []

    def spy(root, *candidates):
        found.append((select(root, *candidates), candidates))
        return found[-1][0]

    decoder.drafter._select = spy
    decoder.generate(features, mask, [decoder.make_noise(0, i) for i in "abcde"])
    return found


def paths_of_candidates(tokens: list[int], parents: list[int]) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return set(paths)


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_k": 1}, {"top_p": 0.3}, {"cfg_scale": 3.0}]
)
def test_every_node_of_a_dynamic_tree_hangs_on_its_own_parent(certain_models, sampling):
    for drafts, (tokens, scores, parents) in drawn_trees(certain_models, SamplingConfig(**sampling)):
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
    spec, found = MethodSpec.of("bushy", tree="bushy", drafts=drafts, tree_shape=BUSHY), []
    features, mask = make_prompts(models, 5)
    for filters in ({}, {"top_k": 1, "top_p": 0.5}):
        sampling = SamplingConfig(temperature=0.0, cfg_scale=2.0, **filters)
        decoder = make_decoder(models, spec, sampling)
        tokens: list[torch.Tensor] = []
        decoder.observer = lambda outcome, tokens=tokens: tokens.append(outcome.proposal.tokens)
        decoder.generate(features, mask, [decoder.make_noise(0, i) for i in "abcde"])
        found.append(torch.stack(tokens))
    assert torch.equal(*found)


def test_a_tree_may_be_as_deep_as_the_rotary_table_reaches(models):
    features, mask = make_prompts(models, 2)
    codes = []
    for tree in ("chain1", f"chain{OVERSHOOT}"):
        decoder = make_decoder(
            models, MethodSpec.of("deep", tree=tree, drafts="coupled"), SamplingConfig(cfg_scale=2.0)
        )
        codes.append(decoder.generate(features, mask, [decoder.make_noise(0, i) for i in "ab"]).codes)
    assert torch.equal(*codes)
    with pytest.raises(ValueError, match="at most 32 drafts deep, got 33; choose a shallower tree"):
        make_decoder(models, MethodSpec.of("deep", tree=f"chain{OVERSHOOT + 1}", drafts="coupled"), SamplingConfig())


@pytest.mark.parametrize("drafts", ["top", "coupled", "sampled", "dynamic"])
def test_what_the_filters_take_away_is_never_drafted(models, drafts):
    """Two codes are left, three children wanted: the third is no draft."""
    spec = DYNAMIC if drafts == "dynamic" else MethodSpec.of("bushy", tree="bushy", drafts=drafts, tree_shape=BUSHY)
    decoder = make_decoder(models, spec, SamplingConfig(cfg_scale=2.0, top_k=2))
    features, mask = make_prompts(models, 5)
    seen = []
    decoder.observer = seen.append
    decoder.generate(features, mask, [decoder.make_noise(0, i) for i in "abcde"])
    for outcome in seen:
        tree, tokens = outcome.proposal.tree, outcome.proposal.tokens
        assert torch.equal(tokens < 0, (tree.ranks >= 2).expand(tokens.shape))
        assert not (outcome.is_accepted & (tokens < 0)).any()
