"""Jacobi drafts: the autoregressive image without a draft model, and what the guesses are."""

from __future__ import annotations

import itertools

import pytest
import torch

from conftest import make_prompts
from lantern.decoding import DecodingModels, make_decoder
from lantern.draft_tree import join_trees, static_tree
from lantern.drafters.jacobi import JacobiDrafter
from lantern.methods import make_method
from lantern.models.config import TargetConfig
from lantern.sampling import SamplingConfig
from lantern.step import Prefill
from lantern.tree_shapes import tree_choices

AUTOREGRESSIVE = make_method("autoregressive")
SAMPLINGS = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 6, "top_p": 0.9}]
WINDOWS = ["chain1", "chain6", "chain5k3d2", "mc_sim_7b_63"]


def draw(models, spec, sampling, rows):
    decoder = make_decoder(models, spec, SamplingConfig(cfg_scale=2.0, **sampling))
    features, mask = make_prompts(models, 5)
    return decoder.generate(features[rows], mask[rows], [decoder.make_noise(7, f"prompt-{row}") for row in rows])


@pytest.mark.parametrize("rows", [[2], [0, 1, 2, 3, 4]], ids=["alone", "five"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T1", "filtered"])
@pytest.mark.parametrize("tree", WINDOWS)
def test_jacobi_drafts_give_the_autoregressive_image_without_a_draft_model(models, tree, sampling, rows):
    bare = DecodingModels(models.target)
    expected = draw(bare, AUTOREGRESSIVE, sampling, rows)
    found = draw(bare, make_method("jacobi", tree=tree), sampling, rows)
    assert torch.equal(found.codes, expected.codes)
    assert not found.is_substituted.any()
    assert (found.step_lengths.sum(1) == 16).all()
    assert len(rows) == 1 or (found.target_forwards < 16).any()  # not won by never accepting


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T1", "filtered"])
@pytest.mark.parametrize("tree", ["chain6+chain3", "chain3+chain6", "chain4k2d1+mc_sim_7b_63"])
def test_hybrid_drafts_give_the_autoregressive_image(models, tree, sampling):
    rows = [0, 1, 2, 3, 4]
    expected = draw(models, AUTOREGRESSIVE, sampling, rows)
    found = draw(models, make_method("hybrid", tree=tree), sampling, rows)
    assert torch.equal(found.codes, expected.codes)
    fewest = [
        draw(models, make_method(name, tree=part), sampling, rows).target_forwards.sum()
        for name, part in zip(("jacobi", "coupled"), tree.split("+"), strict=True)
    ]
    assert found.target_forwards.sum() <= min(fewest)


def test_guesses_are_what_the_target_drew_at_those_places_in_the_step_before(models):
    """With siblings: the best codes of the rows along the first ranks, in order; for places that enter, the last's."""
    decoder = make_decoder(models, make_method("jacobi", tree="chain3k2d1"), SamplingConfig(cfg_scale=2.0))
    features, mask = make_prompts(models, 2)
    seen = []
    decoder.observer = seen.append
    with torch.inference_mode():
        state = decoder.start(features, mask, [decoder.make_noise(7, i) for i in "ab"])
        first = state.tokens[:, 0].clone()
        for _ in range(4):
            decoder.step(state)
    assert torch.equal(seen[0].proposal.tokens, first[:, None].expand(-1, 5))  # nothing is known yet
    assert decoder.drafter.tree.ranks.tolist() == [[0, 0, 1, 0, 0]]
    for before, after in itertools.pairwise(seen):
        best = before.scores.keys[:, [0, 1, 3, 4]].topk(2, dim=-1).indices  # (batch, places, ranks)
        for row in range(2):
            moved = int(before.num_accepted[row]) + 1
            places = [min(moved + ahead, 3) for ahead in range(3)]
            expected = torch.stack([best[row, places[0], 0], best[row, places[0], 1], *best[row, places[1:], 0]])
            assert torch.equal(after.proposal.tokens[row, 1:], expected)


def test_where_the_filters_leave_one_code_there_is_no_second_guess(models):
    decoder = make_decoder(models, make_method("jacobi", tree="chain2k2d2"), SamplingConfig(cfg_scale=2.0, top_k=1))
    features, mask = make_prompts(models, 2)
    seen = []
    decoder.observer = seen.append
    decoder.generate(features, mask, [decoder.make_noise(7, i) for i in "ab"])
    second = decoder.drafter.tree.ranks[0] == 1
    assert all((outcome.proposal.tokens[:, second] == -1).all() for outcome in seen[1:])
    assert all((outcome.proposal.tokens[:, ~second] >= 0).all() for outcome in seen)


def test_a_new_prompt_forgets_the_guesses_of_the_old_one():
    drafter = JacobiDrafter(static_tree(tree_choices("chain2")), TargetConfig(vocab_size=8, grid=2))
    state = drafter.allocate(2, None)
    state.guesses.fill_(9)
    drafter.fill(state, torch.tensor([1]), Prefill(None, None, torch.tensor([[5]])))
    assert (state.guesses[0] == 9).all() and (state.guesses[1] == 5).all()


def test_two_trees_are_joined_below_one_root():
    joined = join_trees(static_tree(tree_choices("chain2")), static_tree([(0,), (1,), (0, 0)]))
    assert joined.parents.tolist() == [[0, 0, 1, 0, 0, 3]]
    assert joined.depths.tolist() == [[0, 1, 2, 1, 1, 2]]
    assert joined.ranks.tolist() == [[0, 0, 0, 1, 2, 0]]
