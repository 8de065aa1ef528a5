"""Tests of drafts of a draft model and of Jacobi decoding: well formed, filtered, and not deeper than the image."""

from __future__ import annotations

import itertools

import pytest
import torch

from helpers.table_world import Images, TableWorld
from helpers.tiny_models import first_steps, generate, make_models, make_prompts
from lantern.acceptance.base import ByEquality
from lantern.decoding import make_decoder
from lantern.draft_tree import static_tree
from lantern.drafters.jacobi import NUM_KEPT, JacobiDrafter
from lantern.methods import MethodSpec, make_method
from lantern.models.config import OVERSHOOT, TargetConfig
from lantern.noise import TARGET
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome
from lantern.tree_shapes import DynamicTreeOptions, tree_choices

DYNAMIC = MethodSpec.of(
    "dynamic", tree="dynamic", drafts="top", tree_shape=DynamicTreeOptions(num_nodes=9, depth=2, top_k=4)
)


def bushy(drafts: str) -> MethodSpec:
    if drafts == "dynamic":
        return DYNAMIC
    return MethodSpec.of("bushy", tree="bushy", drafts=drafts, tree_shape=[(0,), (1,), (2,), (0, 0), (0, 1)])


def steps_of(models: DecodingModels, spec: MethodSpec, **sampling) -> list[Outcome]:
    """Return the outcome of every step of five images."""
    seen: list[Outcome] = []
    generate(models, spec, observer=seen.append, **sampling)
    return seen


@pytest.fixture(scope="module")
def certain_models() -> DecodingModels:
    """Return models that are so certain that a draft is often as probable as its parent."""
    models = make_models(seed=2, is_prepared=False)
    with torch.no_grad():
        models.target.head.weight.mul_(20)
    models.target.prepare_for_decoding()
    models.draft.prepare_for_decoding()
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
    """Filters never remove the most probable token, but they would remove its siblings."""
    found = []
    for filters in ({}, {"top_k": 1, "top_p": 0.5}):
        seen = steps_of(models, bushy(drafts), temperature=0.0, **filters)
        found.append(torch.stack([outcome.proposal.tokens for outcome in seen]))
    assert torch.equal(*found)


@pytest.mark.parametrize("drafts", ["top", "coupled", "sampled", "dynamic"])
def test_what_the_filters_take_away_is_never_drafted(models, drafts):
    """The filters leave two codes for three children, so the third child is no draft."""
    for outcome in steps_of(models, bushy(drafts), top_k=2):
        tree, tokens = outcome.proposal.tree, outcome.proposal.tokens
        assert torch.equal(tokens < 0, (tree.ranks >= 2).expand(tokens.shape))
        assert not (outcome.is_accepted & (tokens < 0)).any()


def test_where_the_filters_leave_one_code_a_second_guess_is_of_another_result(models):
    seen = steps_of(models, make_method("jacobi", tree="chain2k2d2"), top_k=1)
    second = seen[0].proposal.tree.ranks[0] == 1
    assert (seen[0].proposal.tokens[:, second] == -1).all()  # every position has the same result
    assert all((outcome.proposal.tokens[:, ~second] >= 0).all() for outcome in seen)
    for outcome in seen:
        first, other = outcome.proposal.children.unbind(-1)
        assert (first != other).all()


def test_a_tree_may_be_as_deep_as_the_rotary_table_reaches(models):
    shallow, deep = (
        generate(models, MethodSpec.of("deep", tree=tree, drafts="coupled")).codes
        for tree in ("chain1", f"chain{OVERSHOOT}")
    )
    assert torch.equal(shallow, deep)
    with pytest.raises(ValueError, match="at most 32 drafts deep, got 33"):
        make_decoder(models, MethodSpec.of("deep", tree=f"chain{OVERSHOOT + 1}", drafts="coupled"), SamplingConfig())


def test_jacobi_drafts_are_drawn_from_the_distributions_that_are_asked_for_in_rows_that_are_used_again(models):
    """The next prompt of a batch row does not get the distributions of the previous one.

    Decoding gives the same tokens with and without them.
    """
    decoder = make_decoder(models, make_method("jacobi", tree="chain4"), SamplingConfig(cfg_scale=2.0))
    asked, seen = decoder.with_draft_probs(), []
    asked.observer = seen.append
    with torch.inference_mode():
        state = asked.allocate(2)
        for round_ in range(2):
            batch = (*make_prompts(models, 2), [asked.make_noise(round_, i) for i in "ab"])
            asked.fill(state, range(2), *batch)
            first = len(seen)
            asked.run(state, 2)
            assert not seen[first].proposal.draft_probs.any() and len(seen) > first + 3
            assert torch.equal(state.collect(range(2)).codes, decoder.generate(*batch).codes)
            for outcome in seen[first:]:
                inner, proposal = outcome.proposal.tree.parent_nodes, outcome.proposal
                is_known = (proposal.draft_probs.sum(-1) > 0) & (
                    outcome.scores.positions[:, inner] < decoder.num_tokens
                )
                keys = proposal.draft_probs.log() + outcome.scores.noise.gumbel(
                    TARGET, outcome.scores.positions[:, inner]
                )
                drawn = keys.topk(proposal.children.shape[-1], dim=-1).indices
                fits = (drawn == proposal.children) | (proposal.children < 0)
                assert fits.all(-1)[is_known].all() and (outcome is seen[first] or is_known.any())
    assert not decoder.drafter.keeps_probs


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("tree", ["chain4", "chain5k3d2+chain1", "chain3+chain2"])
def test_guesses_are_of_the_newest_row_that_saw_the_newest_guess_at_their_left(models, tree, temperature):
    """Compared with a version in plain lists.

    Without a result in the pool, a position copies the samples of the last one, or is image token 0.
    """
    spec = make_method("hybrid" if "+" in tree else "jacobi", tree=tree)
    seen, num_chosen = first_steps(models, spec, 8, temperature=temperature), 0
    jacobi = make_decoder(models, spec, SamplingConfig()).drafter
    jacobi = getattr(jacobi, "jacobi", jacobi)
    parents, depths, ranks = (part[0].tolist() for part in (jacobi.tree.parents, jacobi.tree.depths, jacobi.tree.ranks))
    for image in range(2):
        length, copy = 1, [int(seen[0].proposal.tokens[image, 0])] * jacobi.num_siblings
        rows = [[] for _ in range(32)]  # of every position, newest first: left token and best codes
        for outcome in seen:
            tokens = outcome.proposal.tokens[image].tolist()
            newest = [tokens[0]]
            for node in range(1, len(parents)):
                there = rows[length + depths[node] - 1]
                chosen = [codes for left, codes in there if left == newest[parents[node]]]
                codes = [*chosen, *(codes for _, codes in there), copy][0]
                newest.append((there[0][1] if there else copy)[ranks[node]])
                assert tokens[node] == codes[ranks[node]]
                num_chosen += bool(there) and codes != there[0][1]
            best = outcome.scores.keys[image].topk(jacobi.num_siblings, dim=-1).indices.tolist()
            for depth in range(jacobi.max_depth + 1):
                there = rows[length + depth]
                there[:0] = [(tokens[node], best[node]) for node in range(len(parents)) if depths[node] == depth]
                del there[6:]
            copy = best[depths.index(jacobi.max_depth)]
            length += int(outcome.num_accepted[image]) + 1
            if length >= 16:
                break
    assert num_chosen > 0 or temperature  # greedily, an older result gives another draft than the newest


def test_with_one_row_kept_guesses_are_what_the_target_drew_in_the_step_before(models):
    """Drafts are the same as those of SJD at temperature 0.

    They are the most probable codes of the results along the first ranks, in order. New positions copy those of the
    last position.
    """
    seen = first_steps(models, make_method("sjd_pac", tree="chain3k2d1"), 4, temperature=0.0)
    tree = seen[0].proposal.tree
    assert torch.equal(seen[0].proposal.tokens, seen[0].proposal.tokens[:, :1].expand(-1, 5))  # nothing is known yet
    assert tree.ranks.tolist() == [[0, 0, 1, 0, 0]]
    for before, after in itertools.pairwise(seen):
        best = before.scores.keys[:, [0, 1, 3, 4]].topk(2, dim=-1).indices  # (batch, positions, ranks)
        for row in range(2):
            moved = int(before.num_accepted[row]) + 1
            places = [min(moved + ahead, 3) for ahead in range(3)]
            expected = torch.stack([best[row, places[0], 0], best[row, places[0], 1], *best[row, places[1:], 0]])
            assert torch.equal(after.proposal.tokens[row, 1:], expected)


def test_a_pool_knows_what_the_last_row_did_not_see():
    """The next token is the last one plus 1, modulo 3, so a result is right after one preceding token only.

    The result of the previous step always has another preceding token. Three results cover all tokens.
    """
    tables = {name: torch.zeros(3, 3) for name in ("base_c", "left2_c", "up_c")} | {"left_c": torch.eye(3).roll(1, 1)}
    world = TableWorld(tables, 8, SamplingConfig(temperature=0.0))
    num_steps = {}
    for num_kept in (1, NUM_KEPT):
        drafter = JacobiDrafter(static_tree(tree_choices("chain9")), TargetConfig(vocab_size=3, grid=8), num_kept)
        images, steps = Images(world, drafter, ByEquality(), None, torch.tensor([[0]]), 64), 0
        while images.lengths < 64:
            images.step()
            steps += 1
        assert torch.equal(images.tokens[0, :64], torch.arange(64) % 3)
        num_steps[num_kept] = steps
    assert num_steps[1] == 63 and num_steps[NUM_KEPT] < 32
