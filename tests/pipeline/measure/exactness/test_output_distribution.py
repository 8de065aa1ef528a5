"""Tests of output distributions against reference numbers, a slow enumeration, sampling, and bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from helpers.node_copies import copies_of, mean_of_copies
from helpers.paths import DATA
from helpers.tiny_models import make_models, make_prompts, verifier_from
from lantern.acceptance.base import Exact
from lantern.acceptance.rejection import Rejection
from lantern.acceptance.relaxed_sets import AdditiveBound, JensenShannonBound, MultiplicativeBound, WithinBound
from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.generation import decode_timed
from lantern.methods import MethodSpec, make_method
from lantern.models.config import TargetConfig
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_methods.similarity import BudgetBound
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.measure.exactness.output_distribution import (
    NodeRecorder,
    OutputDistribution,
    VerifiedNodes,
    distribution_given_children,
    distribution_of_one_sampled_draft,
    distribution_of_relaxed_sets,
    distribution_of_sampled_siblings,
    mean_over_nodes,
    measure_missing_context,
    record_nodes,
)
from lantern_pipeline.measure.exactness.total_variation import RULES, distribution_of_method, tv_curves, tv_row
from lantern_pipeline.measure.registry import ROUNDING

REFERENCE = json.loads((DATA / "reference" / "emission_law.json").read_text())
OPTIONS = {"num_resamples": 100, "seed": 0}


SQUARE = TargetConfig(grid=4)


def random_nodes(num_nodes: int, vocab: int = 24, children: int = 3, seed: int = 0) -> VerifiedNodes:
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(2, num_nodes, vocab, generator=generator, dtype=torch.float64)
    target, draft = logits[0].softmax(-1), (logits[0] + logits[1]).softmax(-1)
    image, depths = torch.arange(num_nodes) % 5, torch.zeros(num_nodes, dtype=torch.int64)
    return VerifiedNodes(target, draft, draft.topk(children).indices, image, depths)


@pytest.fixture(scope="module")
def table() -> torch.Tensor:
    return nearest_codes(torch.randn(24, 4, generator=torch.Generator().manual_seed(3)), 20)


def test_distributions_equal_the_references():
    for case in REFERENCE:
        compare_with_reference(case)


def compare_with_reference(case):
    target, draft = (torch.tensor([case[name]], dtype=torch.float64) for name in ("q", "p"))
    delta, k = case["delta"], case["k"]
    table = torch.tensor(case["neighbours"])
    sets = AdditiveBound(table, k=k, delta=delta) if delta <= 1 else MultiplicativeBound(table, k=k, lambda_=delta)
    residual = {"paper": "paper", "static_lumina": "official_lumina"}.get(case["rule"], "official")
    rejection = Rejection(sets if delta > 0 else Exact(), residual)
    tolerance = 1e-9
    if case["deterministic_draft"]:
        found = distribution_given_children(target, None, draft.topk(case["siblings"]).indices, rejection)
    elif case["siblings"] == 1:
        found = distribution_of_one_sampled_draft(target, draft, rejection)
    else:
        zero = torch.zeros(1, dtype=torch.int64)
        nodes = VerifiedNodes(target, draft, draft.topk(case["siblings"]).indices, zero, zero)
        found = mean_of_copies(distribution_of_sampled_siblings(copies_of(nodes), rejection, num_samples=10, seed=0))
        tolerance = 0.03
    expected = torch.tensor([case["law"]], dtype=torch.float64)
    name = f"{case['rule']}, {case['siblings']} siblings, delta {delta}"
    torch.testing.assert_close(found.probs, expected, atol=tolerance, rtol=0, msg=name)
    assert abs(float(found.tv_from(target)) - case["tv"]) < tolerance, name


def test_exact_rules_have_the_distribution_of_the_target():
    nodes = random_nodes(40)
    for found in (
        distribution_of_one_sampled_draft(nodes.target_probs, nodes.draft_probs, Rejection()),
        distribution_given_children(nodes.target_probs, None, nodes.children, Rejection()),
        distribution_of_relaxed_sets(
            nodes.target_probs, nodes.children, AdditiveBound(torch.zeros(24, 1).long(), k=0, delta=0.0)
        ),
    ):
        assert found.tv_from(nodes.target_probs).max() < 1e-12
        assert (found.acceptance > 0).all() and (found.acceptance <= 1 + 1e-12).all()


@pytest.mark.parametrize(
    ("kind", "bound"),
    [(AdditiveBound, {"delta": 0.1}), (BudgetBound, {"delta": 0.2}), (MultiplicativeBound, {"lambda_": 3.0})],
)
def test_relaxed_sets_have_the_distribution_of_the_decoder(kind, bound, table):
    """Every token y goes through the decoder's verifier, weighted by its probability under the target."""
    nodes, sets = random_nodes(30), kind(table, k=8, **bound)
    expected, accepted = through_the_verifier(nodes, WithinBound(sets))
    found = distribution_of_relaxed_sets(nodes.target_probs, nodes.children, sets)
    torch.testing.assert_close(found.probs, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(found.acceptance, accepted, atol=1e-12, rtol=0)


def test_proximity_of_top_drafts_has_the_distribution_of_the_decoder(table):
    """Its relaxed sets have no bound, so only decisions of the verifier are known."""
    nodes = replace(random_nodes(30), draft_probs=None)
    spec = MethodSpec.of("m", tree="chain3", drafts="top", acceptance="proximity", k=4)
    verifier = verifier_from(spec, SamplingConfig(), table)
    kind, found = distribution_of_method(copies_of(nodes), verifier, 200, seed=0)
    found = mean_of_copies(found)
    expected, accepted = through_the_verifier(nodes, verifier)
    assert kind == "monte_carlo" and (found.error > 0).any()
    assert (found.probs - expected).abs().max() < 0.02 and (found.acceptance - accepted).abs().max() < 0.02
    assert found.tv_from(nodes.target_probs).mean() > 0.1


def through_the_verifier(nodes: VerifiedNodes, verifier) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distribution of the emitted token, and the probability that a draft is accepted."""
    expected = torch.zeros_like(nodes.target_probs)
    accepted = torch.zeros(30, dtype=torch.float64)
    padded = torch.nn.functional.pad(nodes.children, (0, 1))
    for y in range(24):
        drawn = torch.full((30,), y)
        keys = torch.nn.functional.one_hot(drawn, 24).double()[None]
        scores = SimpleNamespace(weights=nodes.target_probs.log()[None], keys=keys)
        chosen = verifier.verify_nodes(scores, nodes.children[None], None).chosen[0]
        is_child = nodes.children == chosen[:, None]
        rank = torch.where(is_child.any(1), is_child.long().argmax(1), 3)
        emitted = torch.where(rank < 3, padded.gather(1, rank[:, None]).squeeze(1), drawn)
        weight = nodes.target_probs[:, y]
        expected.scatter_add_(1, emitted[:, None], weight[:, None])
        accepted += weight * (rank < 3)
    return expected, accepted


def test_one_child_and_the_budget_keep_their_bound_and_the_published_rules_do_not(table):
    nodes = random_nodes(200)
    curves = tv_curves(nodes, table, k=8, deltas=[0.05, 0.2], num_children=3, options=OPTIONS)
    largest = curves.set_index(["rule", "delta"])["tv_max"]
    assert set(curves["rule"]) == set(RULES)
    for delta in (0.05, 0.2):
        assert largest["bounded", delta] <= delta + 1e-12
        assert largest["top_one_child", delta] <= delta + 1e-12
        assert delta < largest["top_children", delta] <= 1 - (1 - delta) ** 3 + 1e-12
        for name in ("top_official", "sampled_paper", "sampled_official", "sampled_official_lumina", "sampled_js"):
            assert largest[name, delta] > delta, name
    is_bounded = curves["rule"].isin(["bounded", "top_one_child"])
    assert (curves.loc[is_bounded, "tv_share_above_delta"] == 0).all()
    assert (curves.loc[~is_bounded, "tv_share_above_delta"] > 0).all()


def test_siblings_by_monte_carlo_state_their_error(table):
    nodes = random_nodes(20)
    relaxed = {"acceptance": "additive", "neighbours": "l2_normalised", "k": 4, "delta": 0.2}
    spec = MethodSpec.of(name="lantern", tree="chain3", drafts="sampled", **relaxed)
    verifier = verifier_from(spec, SamplingConfig(), table)
    (kind, few), (_, many) = (distribution_of_method(nodes, verifier, number, seed=1) for number in (50, 1000))
    assert kind == "monte_carlo"
    assert (few.error > 0).all() and (many.error < few.error).all()
    noise = few.tv_from(many.probs).mean()
    assert few.error.mean() / 2 < noise < 2 * few.error.mean()  # of the size stated
    assert distribution_of_method(random_nodes(1), verifier, 50, seed=1)[1].error > 0
    torch.testing.assert_close(few.probs.sum(-1), torch.ones(20, dtype=torch.float64))


def test_an_exact_rule_has_no_noise_of_drawn_siblings():
    nodes = random_nodes(20)
    spec = MethodSpec.of(name="eagle1", tree="chain3", drafts="sampled")
    kind, found = distribution_of_method(nodes, verifier_from(spec, SamplingConfig(), None), num_samples=2, seed=1)
    assert kind == "monte_carlo" and found.tv_from(nodes.target_probs).max() < 1e-12


@pytest.mark.parametrize("name", ["cool", "gsd", "lantern_matched", "mixing"])
def test_where_one_residual_follows_all_drafts_a_formula_has_the_distribution(name, table):
    """It equals the sum over all drafts. Weights are those of the depths of the nodes."""
    drawn = random_nodes(30)
    nodes = replace(drawn, children=drawn.children[:, :1], depths=torch.arange(30) % 3)
    bound = {"acceptance": "additive", "neighbours": "l2_normalised", "k": 4, "delta": 0.2}
    parts = {
        "cool": {"acceptance": "weighted", "omega": 1.5, "fall": -0.7, "residual": "matched"},
        "gsd": {"acceptance": "group", "h": 3, "p_max": 0.2, "d_max": 1.0},
        "lantern_matched": {**bound, "residual": "matched"},
        "mixing": {"acceptance": "mixing", "budget": 0.1},
    }[name]
    spec = MethodSpec.of(name=name, tree="chain3", drafts="sampled", **parts)
    verifier = verifier_from(spec, SamplingConfig(), table, torch.arange(24.0)[:, None] / 4)
    kind, found = distribution_of_method(nodes, verifier, num_samples=1, seed=0)
    assert kind == "enumeration"
    expected, rejection = torch.zeros_like(nodes.target_probs), verifier.rejection.at(nodes.depths)
    for code in range(24):
        children = torch.full((30, 1), code)
        given = distribution_given_children(nodes.target_probs, nodes.draft_probs, children, rejection)
        expected += nodes.draft_probs[:, code : code + 1] * given.probs
    torch.testing.assert_close(found.probs, expected)
    tv = found.tv_from(nodes.target_probs)
    if name == "cool":
        weights = rejection.acceptance.weights
        assert (tv <= (1 - 1 / weights).clamp(min=0) + 1e-6).all() and (tv[weights > 1.1] > 0.01).all()
    elif name == "gsd":
        assert tv.mean() > 0.01
    elif name == "mixing":
        torch.testing.assert_close(tv, ((nodes.target_probs - nodes.draft_probs).abs().sum(-1) / 2).clamp(max=0.1))
    else:
        paper = Rejection(AdditiveBound(table, k=4, delta=0.2))
        other = distribution_of_one_sampled_draft(nodes.target_probs, nodes.draft_probs, paper)
        torch.testing.assert_close(found.acceptance, other.acceptance)
        assert (tv <= other.tv_from(nodes.target_probs) + 1e-12).all() and tv.mean() > 0.01


def test_deterministic_drafts_are_drawn_from_nothing():
    zeros = torch.zeros(2).long()
    nodes = VerifiedNodes(torch.full((2, 2), 0.5), None, zeros[:, None], zeros, zeros)
    with pytest.raises(ValueError, match="draft_probs must be known, got None"):
        distribution_of_sampled_siblings(nodes, Rejection(), num_samples=1, seed=0)


def test_a_row_by_hand():
    target = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    nodes = VerifiedNodes(target, None, torch.zeros(2, 1).long(), torch.tensor([0, 1]), torch.tensor([0, 0]))
    found = distribution_of_relaxed_sets(
        target, nodes.children, AdditiveBound(torch.tensor([[1], [0]]), k=1, delta=0.5)
    )
    assert found.probs.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    row = tv_row(nodes, found, 0.4, OPTIONS)
    assert row["tv_mean"] == row["tv_p95"] == row["tv_max"] == 0.5
    assert row["tv_share_above_delta"] == row["tv_share_above_delta_low"] == 1
    for delta in (0.5, 0.5 - ROUNDING):
        assert tv_row(nodes, found, delta, OPTIONS)["tv_share_above_delta"] == 0


def test_the_percentile_over_nodes_in_float32_is_interpolated_in_float64():
    nodes = random_nodes(33)
    target, draft = nodes.target_probs.float(), nodes.draft_probs.float()
    nodes = replace(nodes, target_probs=target, draft_probs=draft)
    found = OutputDistribution(draft, torch.ones(33), torch.zeros(33))
    expected = np.quantile(found.tv_from(target).double().numpy(), 0.95)  # between two nodes
    assert tv_row(nodes, found, None, OPTIONS)["tv_p95"] == pytest.approx(expected, rel=1e-12)


def test_jensen_shannon_bound_against_its_definition(table):
    target = random_nodes(1).target_probs[0]
    nearest, bound = table[3].long(), JensenShannonBound(table, k=20, delta=0.1)
    admitted = bound.admits(target[nearest].cumsum(0), target[3:4], torch.zeros(1))
    for j in range(20):
        moved = target.clone()
        moved[3] += target[nearest[: j + 1]].sum()
        moved[nearest[: j + 1]] = 0
        middle = (moved + target) / 2
        pieces = [(p * (p / middle).log2()).nan_to_num().sum() / 2 for p in (moved, target)]
        assert bool(admitted[j]) == bool(sum(pieces) <= 0.1), j
    assert 0 < int(admitted.sum()) < 20


def test_the_recorder_keeps_visited_nodes_of_every_image_at_the_same_positions():
    models = make_models()
    spec = MethodSpec.of(name="eagle1", tree="chain3", drafts="sampled")
    decoder = make_decoder(models, spec, SamplingConfig(cfg_scale=2.0))
    features, mask = make_prompts(models, 5)
    counts = []
    for ids in (range(5), range(5)):
        recorder = NodeRecorder(5, SQUARE, max_nodes=5 * 16, seed=0)
        decoder.observer = recorder
        generation = decoder.generate(features, mask, [decoder.make_noise(7, f"p{i}") for i in ids])
        nodes = recorder.collect()
        # the prefill's token and a full chain's bonus token are sampled without a verified draft
        num_bonus = int((generation.accepted_lengths == 3).sum())
        assert 5 * 15 - num_bonus <= len(nodes) <= 5 * 15
        assert len(nodes.image.unique()) == 5
        torch.testing.assert_close(nodes.target_probs.sum(-1), torch.ones(len(nodes)))
        counts.append(len(nodes))
    assert counts[0] == counts[1]
    found = distribution_of_one_sampled_draft(nodes.target_probs, nodes.draft_probs, Rejection())
    assert found.tv_from(nodes.target_probs).max() < 1e-5


def test_the_nodes_kept_do_not_depend_on_the_batch():
    models = make_models()
    spec = MethodSpec.of("exact", tree="chain3", drafts="sampled", method_id="exact")
    decoder = make_decoder(models, spec, SamplingConfig(cfg_scale=2.0))
    prompts, encoder = [Prompt(f"p{i}", f"a word {i}") for i in range(5)], WordEmbeddingEncoder(None, 16, 5, 0)
    found = {}
    for size in (2, 5):
        nodes = record_nodes(decoder, prompts, encoder, run_seed=3, max_nodes=40, batch_size=size)
        order = nodes.image.argsort(stable=True)  # of one image, nodes come in the order of its steps
        found[size] = [part[order] for part in (nodes.image, nodes.children, nodes.target_probs, nodes.draft_probs)]
    assert len(found[2][0]) > 20 and decoder.observer is None
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_intervals_of_a_noisy_distance_hold_the_truth():
    """The emitted tokens of 150 nodes are drawn 40 times each, which adds 0.2 to the distance."""
    pool, trials, hits = random_nodes(400, vocab=12), 40, 0
    emitted = 0.9 * pool.target_probs + 0.1 * pool.target_probs.roll(1, dims=1)
    truth = (emitted - pool.target_probs).abs().sum(-1) / 2
    for trial in range(trials):
        generator = torch.Generator().manual_seed(trial)
        drawn = torch.randint(400, (150,), generator=generator)
        nodes = VerifiedNodes(pool.target_probs[drawn], None, pool.children[drawn], torch.arange(150) // 3, drawn)
        halves = torch.multinomial(emitted[drawn], 40, replacement=True, generator=generator).view(150, 2, 20)
        first, second = F.one_hot(halves, 12).double().mean(2).unbind(1)
        found = OutputDistribution((first + second) / 2, torch.ones(150), (first - second).abs().sum(-1) / 4)
        row = tv_row(nodes, found, 0.05, OPTIONS)
        hits += row["tv_mean_low"] <= truth.mean() <= row["tv_mean_high"]
        share = (truth > 0.05).double().mean()
        hits += row["tv_share_above_delta_low"] <= share <= row["tv_share_above_delta_high"]
        assert row["tv_mean"] > 2 * truth.mean()  # the estimate itself is not corrected
    assert hits >= 0.95 * 2 * trials


def test_a_missing_child_of_a_draft_distribution_of_one_code_changes_nothing():
    """The draft distribution has one code, and the node may have two children."""
    target, draft = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.0, 1.0, 0.0]])
    found = distribution_given_children(target, draft, torch.tensor([[1, -1]]), Rejection())
    assert torch.allclose(found.probs, target) and found.acceptance.item() == pytest.approx(0.3)


def test_nodes_with_fewer_children_than_others_are_kept():
    prompts, encoder = [Prompt(f"p{i}", f"a word {i}") for i in range(3)], WordEmbeddingEncoder(None, 16, 5, 0)
    options = {"run_seed": 3, "max_nodes": 48, "batch_size": 3}
    models, sampling = make_models(), SamplingConfig(cfg_scale=2.0)
    uneven = make_decoder(models, make_method("eagle1", tree="chain3k3d1"), sampling)  # three children, then one
    nodes = record_nodes(uneven, prompts, encoder, **options)
    assert set((nodes.children >= 0).sum(-1).tolist()) == {1, 3}


def test_no_more_nodes_are_kept_than_asked_for():
    assert NodeRecorder(5, SQUARE, max_nodes=10, seed=0).is_chosen.sum(dim=1).tolist() == [2] * 5
    assert NodeRecorder(5, SQUARE, max_nodes=3, seed=0).is_chosen.sum(dim=1).tolist() == [1] * 5  # every image has one
    lined = NodeRecorder(5, TargetConfig(grid=4, line_end=0), max_nodes=1000, seed=0)
    assert lined.is_chosen.view(5, 4, 5).all(1).all(0).tolist() == [True] * 4 + [False]
    assert NodeRecorder(5, SQUARE, max_nodes=1000, seed=0).is_chosen.all()


def test_a_method_without_delta_has_no_share_above_it():
    nodes = random_nodes(10)
    emitted = distribution_of_one_sampled_draft(nodes.target_probs, nodes.draft_probs, Rejection())
    row = tv_row(nodes, emitted, None, OPTIONS)
    missing = {name for name, value in row.items() if value != value}
    assert missing == {"tv_share_above_delta", "tv_share_above_delta_low", "tv_share_above_delta_high"}


def test_nodes_in_float32_are_averaged_in_float64():
    """A running sum of a thousand float32 numbers would be wrong by 3e-6."""
    values, image = torch.full((3000,), 0.1, dtype=torch.float32), torch.arange(3000) // 1000
    found = mean_over_nodes("acceptance", values, image, OPTIONS)
    assert found == {name: pytest.approx(float(values[0]), rel=1e-6) for name in found}


# --- lines in parallel, compared with the target in full context

PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass"])]


def measure_lines(models, window: int, max_nodes: int = 48, batch_size: int = 2):
    decoder = make_decoder(models, make_method("zipar", window=window), SamplingConfig(top_k=8, cfg_scale=2.0))
    encoder = WordEmbeddingEncoder(None, 16, 5, 0)
    options = {"run_seed": 3, "max_nodes": max_nodes, "batch_size": batch_size}
    return decode_timed(decoder, PROMPTS, encoder, 3)[0], *measure_missing_context(decoder, PROMPTS, encoder, **options)


def test_nothing_is_missing_with_a_window_of_a_line(models):
    _, nodes, found = measure_lines(models, 4)
    assert len(nodes) == 45 and nodes.image.bincount().tolist() == [15, 15, 15]
    assert float(found.tv_from(nodes.target_probs).max()) < 1e-4


def test_the_first_line_misses_nothing_and_what_follows_does(models):
    """Nodes are all positions except 0, in order.

    Their distributions, from which the tokens were sampled, give these tokens again.
    """
    generation, nodes, found = measure_lines(models, 2)
    tv = found.tv_from(nodes.target_probs).view(3, 15)
    assert float(tv[:, :3].max()) < 1e-4 and float(tv[:, 3:].mean()) > 0.01
    drawn = found.probs.view(3, 15, -1).gather(2, generation.codes[:, 1:, None])
    assert (drawn > 0).all() and torch.allclose(found.probs.sum(1), torch.ones(45))


def test_nodes_do_not_depend_on_the_batch(models):
    expected, found = (measure_lines(models, 2, max_nodes=12, batch_size=size) for size in (3, 1))
    assert torch.equal(expected[1].image, found[1].image) and len(found[1]) < 12 + 1
    torch.testing.assert_close(expected[2].probs, found[2].probs)


@pytest.mark.parametrize(("excess", "share"), [(5e-6, 0), (5e-5, 1)])
def test_a_distance_within_float32_s_rounding_of_its_bound_is_not_above_it(excess, share):
    target, tv = torch.full((4, 2), 0.5), 0.2 + excess
    nodes = VerifiedNodes(target, None, torch.zeros(4, 1).long(), torch.arange(4), torch.zeros(4).long())
    found = OutputDistribution(target + torch.tensor([tv, -tv]), torch.ones(4), torch.zeros(4))
    assert tv_row(nodes, found, 0.2, OPTIONS)["tv_share_above_delta"] == share
