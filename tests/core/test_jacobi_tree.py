"""Jacobi drafts of trees: the children of a node against a mixture of lists, and what a pool of many results holds."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch

from helpers.tiny_models import first_steps, generate, make_models, make_prompts
from lantern.decoding import make_decoder
from lantern.draft_tree import static_tree
from lantern.drafters.jacobi import JacobiDrafter
from lantern.methods import make_method
from lantern.sampling import SamplingConfig
from lantern.tree_shapes import tree_choices
from lantern_methods.hybrid import NUM_DEPTHS, HybridTreeDrafter
from lantern_methods.jacobi_tree import FITTED, NO_KEY, NUM_CODES, NUM_RESULTS, OLDEST, JacobiTreeDrafter

Result = tuple[int, list[int], list[float], int]  # preceding token, codes, their keys, and the step


def dot(numbers: tuple[float, ...], facts: list[float]) -> float:
    return sum(number * fact for number, fact in zip(numbers, facts, strict=True))


def mixture_scores(
    results: list[Result], parent: int, step: int, drafted: tuple[list[int], list[float]] = ([], [])
) -> dict[int, float]:
    """Return the probability of every code in the mixture of some results, newest first, and of a draft model's."""
    mixture, scores, total = FITTED, defaultdict(float), 0.0
    if drafted[0]:
        weight, sharpness, other = (math.exp(number) for number in mixture.drafted)
        shares = [math.exp(key * sharpness) for key in drafted[1]]
        total += weight
        for code, share in zip(drafted[0], shares, strict=True):
            scores[code] += weight * share / (sum(shares) + other)
    for number, (left, codes, keys, of_step) in enumerate(results):
        age = min(step - of_step, OLDEST)
        facts = [left == parent, age == 1, number == 0, age / 10, 1]
        weight = math.exp(dot(mixture.weight, facts))
        sharpness = math.exp(dot(mixture.sharpness, facts))
        shares = [math.exp(key * sharpness) for key in keys]
        total += weight
        for code, share in zip(codes, shares, strict=True):
            scores[code] += weight * share / (sum(shares) + math.exp(dot(mixture.other, facts)))
    return {code: score / total for code, score in scores.items()}


def best_of(keys: torch.Tensor) -> tuple[list[int], list[float]]:
    """Return the best codes of a distribution, and their keys less the best."""
    values, codes = keys.double().sort(descending=True, stable=True)
    values = (values - values[0]).clamp(min=NO_KEY)[:NUM_CODES]
    is_missing = keys[codes[:NUM_CODES]].isneginf()
    return codes[:NUM_CODES].masked_fill(is_missing, -1).tolist(), values.tolist()


@pytest.mark.parametrize(
    ("tree", "sampling"),
    [
        ("chain5k3d2", {"temperature": 0.0}),
        ("chain5k3d2", {"top_k": 4}),
        ("jacobi_50", {}),
        ("jacobi_50", {"top_k": 0}),
    ],
)
def test_children_are_the_codes_with_the_highest_scores_of_the_mixture(models, tree, sampling):
    """Against lists. A parent's token is that of its rank in the newest result of its position."""
    seen, num_several = first_steps(models, make_method("jacobi", tree=tree), 8, **sampling), 0
    structure = seen[0].proposal.tree
    depths, ranks, parents = (part[0].tolist() for part in (structure.depths, structure.ranks, structure.parents))
    window, inner = structure.max_depth, structure.parent_nodes.tolist()
    for image in range(2):
        first, length = int(seen[0].proposal.tokens[image, 0]), 1
        unknown = (-2, [first, *[-1] * (NUM_CODES - 1)], [0.0, *[NO_KEY] * (NUM_CODES - 1)], -OLDEST)
        pool: dict[int, list[Result]] = defaultdict(lambda unknown=unknown: [unknown] * NUM_RESULTS)
        for step, outcome in enumerate(seen):
            tokens = outcome.proposal.tokens[image].tolist()
            for node in inner:
                newest = pool[length + depths[node] - 1][0][1]
                parent = newest[min(ranks[node], NUM_CODES - 1)] if node else tokens[0]
                scores = mixture_scores(pool[length + depths[node]], parent, step)
                children = [tokens[child] for child in range(1, len(tokens)) if parents[child] == node]
                known = [code for code in children if code >= 0]
                assert len(set(known)) == len(known)
                best = sorted(scores.values(), reverse=True)[: len(children)]
                found = [scores[code] for code in children[: len(best)]]
                assert found == pytest.approx(best, abs=1e-5)
                assert children[len(best) :] == [-1] * (len(children) - len(best))
                num_several += len(known) > 1
            results = [(tokens[node], *best_of(outcome.scores.keys[image, node]), step) for node in range(len(tokens))]
            for depth in range(2 * window + 1):
                there = pool[length + depth]
                if depth <= window:
                    new = [results[node] for node in range(len(tokens)) if depths[node] == depth]
                else:
                    new, there = [results[depths.index(window)]], there[1:]
                pool[length + depth] = [*new, *there][:NUM_RESULTS]
            length += int(outcome.num_accepted[image]) + 1
            if length >= 16:
                break
    assert num_several > 10


@pytest.mark.parametrize(
    ("tree", "sampling"), [("chain2", {"top_k": 4}), ("chain5k3d2", {"temperature": 0.0}), ("hybrid_16", {})]
)
def test_near_the_root_a_draft_models_codes_are_one_more_result(models, tree, sampling, monkeypatch):
    """Each parent has its own. The images are those of autoregressive decoding."""
    calls = []
    children = HybridTreeDrafter._children

    def watch(self, results, parents, keys, num_siblings):
        found = children(self, results, parents, keys, num_siblings)
        calls.append((results, parents, keys, found))
        return found

    monkeypatch.setattr(HybridTreeDrafter, "_children", watch)
    found = generate(models, make_method("hybrid", tree=tree), **sampling)
    assert torch.equal(found.codes, generate(models, make_method("autoregressive"), **sampling).codes)
    for results, parents, keys, found_children in calls:
        for image, number in itertools.product(range(len(parents)), range(parents.shape[1])):
            left, ages, codes, their_keys = (
                part[image, number].tolist() for part in (results.left, results.ages, results.codes, results.keys)
            )
            of_pool = [
                (token, code, key, -(age % (OLDEST + 1)))
                for token, age, code, key in zip(left, ages, codes, their_keys, strict=True)
            ]
            scores = mixture_scores(of_pool, int(parents[image, number]), 0, best_of(keys[image, number]))
            tokens = found_children[image, number].tolist()
            best = sorted(scores.values(), reverse=True)[: len(tokens)]
            assert [scores[token] for token in tokens[: len(best)]] == pytest.approx(best, abs=1e-5)
    levels = static_tree(tree_choices(tree)).levels[:NUM_DEPTHS]
    assert {parents.shape[1] for _, parents, _, _ in calls} == {len(level) for level in levels}


def test_a_chain_keeps_the_drafts_of_the_newest_suitable_result(models):
    """They are as good as those of the mixture, and cost less."""
    kinds = {"chain9": JacobiDrafter, "chain9k2d1": JacobiTreeDrafter, "jacobi_100": JacobiTreeDrafter}
    for tree, kind in kinds.items():
        drafter = make_decoder(models, make_method("jacobi", tree=tree), SamplingConfig()).drafter
        assert type(drafter) is kind


def test_a_row_of_the_batch_that_is_used_again_knows_nothing_of_the_image_before(models):
    decoder = make_decoder(models, make_method("jacobi", tree="chain4k3d2"), SamplingConfig(cfg_scale=2.0))
    batches = [(*make_prompts(models, 2), [decoder.make_noise(number, i) for i in "ab"]) for number in range(2)]
    with torch.inference_mode():
        state = decoder.allocate(2)
        for batch in batches:
            decoder.fill(state, range(2), *batch)
            decoder.run(state, 2)
            expected, found = decoder.generate(*batch), state.collect(range(2))
            assert torch.equal(found.codes, expected.codes)
            assert torch.equal(found.step_lengths, expected.step_lengths)


def test_at_the_end_of_a_line_only_the_line_end_is_drafted():
    models = make_models(line_end=20)
    spec = make_method("jacobi", tree="chain5k3d2")
    seen = []
    generate(models, spec, observer=seen.append)
    config = models.target.config
    for outcome in seen:
        tokens, tree = outcome.proposal.tokens, outcome.proposal.tree
        is_end = config.ends_line(outcome.scores.positions[:, 1:] - 1)
        assert (tokens[:, 1:][is_end & (tree.ranks[:, 1:] == 0)] == config.num_codes).all()
        assert (tokens[:, 1:][is_end & (tree.ranks[:, 1:] > 0)] == -1).all()
