"""Tests of output distributions of coupled and Jacobi drafts: the closed form against sums and against samples."""

from __future__ import annotations

import pytest
import torch

from helpers.node_copies import NUM_COPIES, copies_of, mean_of_copies
from helpers.tiny_models import make_models, verifier_from
from lantern.acceptance.base import ByEquality, Choice, Verifier
from lantern.acceptance.rejection import NO_TOKEN
from lantern.acceptance.relaxed_sets import AdditiveBound, MultiplicativeBound
from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.draft_tree import reached_nodes
from lantern.methods import MethodSpec
from lantern.noise import TARGET
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_methods.similarity import Proximity
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.measure.exactness.coupled_distribution import (
    crossings,
    distribution_of_coupled_siblings,
    distribution_of_one_coupled_draft,
    measure_coupled_drafts,
)
from lantern_pipeline.measure.exactness.output_distribution import NodeRecorder, OutputDistribution, VerifiedNodes
from lantern_pipeline.world.scenes import VOCABULARY

VOCAB, K = 9, 3
BOUNDS = {
    "proximity": (Proximity, {"k": K}),
    "additive": (AdditiveBound, {"k": K, "delta": 0.2}),
    "multiplicative": (MultiplicativeBound, {"k": K, "lambda_": 3.0}),
}


def make_nodes(num: int = 4, children: int = 1) -> VerifiedNodes:
    """Make random distributions, each without two of the codes. The draft of the last node is a copy."""
    logits = 1.5 * torch.randn(2, num, VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target, draft = logits
    target[:, :2], draft[:, 1:3] = -torch.inf, -torch.inf
    draft = draft.softmax(-1)
    draft[-1] = 0
    copies = torch.arange(3, 3 + children).expand(num, -1)
    return VerifiedNodes(target.softmax(-1), draft, copies, torch.arange(num), torch.zeros(num).long())


@pytest.fixture(scope="module")
def table() -> torch.Tensor:
    return nearest_codes(torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(3)), K + 1)


def verifier_of(name: str, table: torch.Tensor):
    spec = MethodSpec.of("mine", tree="chain2", drafts="coupled", acceptance=name, neighbours="l2", **BOUNDS[name][1])
    return verifier_from(spec, SamplingConfig(temperature=1.0), table)


def sampled_distribution(nodes: VerifiedNodes, verifier, num_samples: int) -> OutputDistribution:
    """Estimate the distribution of coupled siblings from `num_samples` samples per node, a multiple of NUM_COPIES."""
    options = {"num_samples": num_samples // NUM_COPIES, "seed": 0}
    return mean_of_copies(distribution_of_coupled_siblings(copies_of(nodes), verifier, **options))


def test_the_joint_distribution_has_both_marginals():
    nodes = make_nodes()
    target, draft = nodes.target_probs[:3], nodes.draft_probs[:3]
    integral, mass = crossings(target, draft)
    joint = draft[:, :, None] * target[:, None] * (integral[:, :, None] - integral[:, None]).clamp(min=0)
    joint += torch.diag_embed(torch.where(target > 0, draft / mass, 0.0))
    torch.testing.assert_close(joint.sum(2), draft, atol=1e-12, rtol=0)
    torch.testing.assert_close(joint.sum(1), target, atol=1e-12, rtol=0)
    noise = (
        -torch.empty(100_000, 1, VOCAB, dtype=torch.float64)
        .exponential_(generator=torch.Generator().manual_seed(0))
        .log()
    )
    pairs = (draft.log() + noise).argmax(-1) * VOCAB + (target.log() + noise).argmax(-1)  # (samples, nodes)
    counts = torch.stack([column.bincount(minlength=VOCAB**2) for column in pairs.T]) / len(noise)
    assert (counts.view_as(joint) - joint).abs().max() < 0.006  # four standard errors


def test_equal_distributions_always_agree():
    target = make_nodes().target_probs
    _, mass = crossings(target, target)
    torch.testing.assert_close(torch.where(target > 0, target / mass, 0.0).sum(1), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("name", BOUNDS)
def test_one_draft_is_as_its_rule_draws_it(name, table):
    nodes = make_nodes()
    kind, parameters = BOUNDS[name]
    found = distribution_of_one_coupled_draft(nodes, kind(table, **parameters))
    torch.testing.assert_close(found.probs.sum(1), torch.ones(4, dtype=torch.float64))
    drawn = sampled_distribution(nodes, verifier_of(name, table), num_samples=20_000)
    assert (found.probs - drawn.probs).abs().max() < 0.015 and (found.acceptance - drawn.acceptance).abs().max() < 0.015
    tv = found.tv_from(nodes.target_probs)
    assert (tv > 0.01).sum() >= 3 and (tv - drawn.tv_from(nodes.target_probs)).abs().max() < 0.015


def test_a_copied_draft_is_a_point_mass(table):
    nodes = make_nodes()
    found = distribution_of_one_coupled_draft(nodes, Proximity(table, k=K))
    target, near = nodes.target_probs[-1], table[3, :K].long()
    assert found.probs[-1, 3] == pytest.approx(float(target[3] + target[near].sum()))
    assert found.probs[-1, near].abs().max() < 1e-12


@pytest.mark.parametrize(("drafts", "tree"), [("coupled", "chain9"), ("coupled", "chain9k2d1"), ("jacobi", "chain9")])
def test_the_recorded_distributions_picked_the_drafts(drafts, tree, monkeypatch):
    models, seen = make_models(), []
    models.nearest_codes = nearest_codes(torch.randn(models.target.config.vocab_size, 4), 8)
    spec = MethodSpec.of("mine", tree=tree, drafts=drafts, acceptance="proximity", neighbours="l2", k=8)
    decoder = make_decoder(models, spec, SamplingConfig(temperature=1.0, top_k=30, cfg_scale=3.0))
    record = NodeRecorder.__call__

    def watch(self, outcome):
        proposal, inner = outcome.proposal, outcome.proposal.tree.parent_nodes
        reached = reached_nodes(proposal.tree, outcome.is_accepted)[:, inner]
        laws, positions = proposal.draft_probs, outcome.scores.positions[:, inner]
        width = proposal.children.shape[-1]
        drawn = (laws.log() + outcome.scores.noise.gumbel(TARGET, positions)).topk(width, dim=-1).indices
        fits = (drawn == proposal.children) | (proposal.children < 0)
        chosen = reached & (positions < decoder.num_tokens) & (laws.sum(-1) > 0)
        seen.append(fits.all(-1)[chosen])
        record(self, outcome)

    monkeypatch.setattr(NodeRecorder, "__call__", watch)
    prompts = [Prompt(str(i), "a red circle on grass") for i in range(5)]
    options = {"run_seed": 3, "max_nodes": 1000, "batch_size": 3, "num_samples": 4}
    encoder = WordEmbeddingEncoder(VOCABULARY, models.target.config.caption_dim, models.target.config.num_text_tokens)
    nodes, kind, found = measure_coupled_drafts(decoder, prompts, encoder, **options)
    assert torch.cat(seen).all() and sum(map(len, seen)) > 10
    assert kind == ("enumeration" if tree == "chain9" else "monte_carlo")
    assert len(nodes) == len(found.probs) and set(nodes.image.tolist()) == set(range(5))
    assert float(found.tv_from(nodes.target_probs).mean()) > 0.01
    assert decoder.observer is None and not decoder.drafter.keeps_probs


def test_a_bound_of_0_moves_nothing():
    """Such a method decodes exactly, although it names relaxed sets."""
    models = make_models()
    spec = MethodSpec.of("mine", tree="chain3", drafts="coupled", acceptance="additive", k=3, delta=0)
    encoder = WordEmbeddingEncoder(VOCABULARY, models.target.config.caption_dim, models.target.config.num_text_tokens)
    options = {"run_seed": 3, "max_nodes": 40, "batch_size": 2, "num_samples": 4}
    decoder = make_decoder(models, spec, SamplingConfig(cfg_scale=2.0))
    nodes, kind, found = measure_coupled_drafts(decoder, [Prompt("a", "grass")], encoder, **options)
    assert kind == "monte_carlo" and (found.acceptance > 0).any()
    assert torch.equal(found.probs, nodes.target_probs)


def test_siblings_move_more_and_are_given_where_they_are_copied(table):
    nodes, verifier = make_nodes(children=2), verifier_of("proximity", table)
    found = sampled_distribution(nodes, verifier, num_samples=4000)
    one = distribution_of_one_coupled_draft(make_nodes(), Proximity(table, k=K))
    assert (found.acceptance[:3] > one.acceptance[:3]).all() and (found.error > 0).all()
    target, near = nodes.target_probs[-1], set(table[3, :K].tolist()) | set(table[4, :K].tolist()) | {3, 4}
    assert float(found.acceptance[-1]) == pytest.approx(float(target[list(near)].sum()), abs=0.04)


def test_a_sibling_that_the_draft_model_cannot_draw_is_none(table):
    """All drafts are code 4, although two are wanted. It is accepted if the target samples it."""
    target = torch.full((200, VOCAB), 1 / VOCAB)
    draft = torch.nn.functional.one_hot(torch.full((200,), 4), VOCAB).float()
    children = torch.tensor([[4, 5]]).expand(200, -1)
    nodes = VerifiedNodes(target, draft, children, torch.arange(200), torch.zeros(200).long())
    spec = MethodSpec.of("exact", tree="bushy", tree_shape=[(0,), (1,)], drafts="coupled")
    verifier = verifier_from(spec, SamplingConfig(), table)
    found = distribution_of_coupled_siblings(nodes, verifier, num_samples=20, seed=0)
    assert float(found.acceptance.mean()) == pytest.approx(1 / VOCAB, abs=0.02)


class OfAUser(Verifier):
    """Exact verifier whose `chosen` is no token if no child is accepted. It reads `field` of the scores."""

    def __init__(self, field=None):
        self.field = field

    def verify_nodes(self, scores, children, draft_probs):
        choice = ByEquality().verify_nodes(scores, children, draft_probs)
        is_accepted = (children == choice.chosen[..., None]).any(-1)
        if self.field is not None:
            getattr(scores, self.field)
        return Choice(choice.chosen.where(is_accepted, NO_TOKEN), choice.bonus, choice.best)


def test_a_verifier_may_choose_no_token():
    nodes = make_nodes(children=2)
    found, exact = (
        distribution_of_coupled_siblings(nodes, verifier, num_samples=20, seed=0)
        for verifier in (OfAUser(), ByEquality())
    )
    assert torch.equal(found.probs, exact.probs) and torch.equal(found.acceptance, exact.acceptance)
    assert (exact.acceptance < 1).any()


@pytest.mark.parametrize("field", ["logits", "noise"])
def test_what_a_verifier_cannot_read_here_is_named(field):
    with pytest.raises(ValueError, match=rf"scores\.weights and scores\.keys, got scores\.{field};"):
        distribution_of_coupled_siblings(make_nodes(), OfAUser(field), num_samples=2, seed=0)
