"""Tests of verification by the parts of a method: tokens after a rejection, and bounds that equal exact decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from every_method import with_heads

from helpers.statistics import assert_distribution
from helpers.tiny_models import generate, verifier_from
from lantern.acceptance import base
from lantern.acceptance.base import ByEquality, Exact
from lantern.acceptance.rejection import ACCEPT
from lantern.acceptance.relaxed_sets import AdditiveBound, WithinBound
from lantern.codebook import nearest_codes
from lantern.draft_tree import reached_nodes, static_tree, tree_from_parents
from lantern.methods import MethodSpec
from lantern.noise import Gumbel, ImageNoise, NoiseField
from lantern.sampling import SamplingConfig
from lantern.step import Proposal, Scores

COUNT = 8_000  # emissions
TARGET = torch.tensor([0.0, 0.45, 0.3, 0.25, 0.0])
DRAFT = torch.tensor([0.5, 0.05, 0.15, 0.1, 0.2])
STREAMS = (Gumbel("target"), ACCEPT)
TABLE = torch.tensor([[1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 1], [0, 1, 2]])
LANTERN_PP = {"acceptance": "multiplicative", "neighbours": "l2", "k": 3, "lambda_": 3.0}


@pytest.fixture(scope="module")
def noise() -> NoiseField:
    noise = NoiseField(COUNT, 1, len(TARGET), STREAMS)
    noise.fill(range(COUNT), [ImageNoise(3, f"p{i}", STREAMS, 1, len(TARGET)) for i in range(COUNT)])
    return noise


@pytest.mark.parametrize(
    ("children", "parts", "weights"),
    [
        # Drafts of target mass 0 are always rejected; one after the other, each leaves max(0, t - p), normalised.
        ([0], {}, [0.0, 0.4, 0.15, 0.15, 0.0]),
        ([0, 4], {}, [0.0, 0.4 / 0.7 - 0.1, 0.0, 0.15 / 0.7 - 0.2, 0.0]),
        # Draft 0 has no mass, so that A(0) is empty.
        ([0], LANTERN_PP, [0.0, 0.4, 0.15, 0.15, 0.0]),
    ],
)
def test_what_is_emitted_behind_drafts_follows_the_residual(noise, children, parts, weights):
    """Many images have these children at the root."""
    choices = [(rank,) for rank in range(len(children))]
    spec = MethodSpec.of("rejects", tree="mine", drafts="sampled", tree_shape=choices, **parts)
    tokens = torch.tensor([[0, *children]]).expand(COUNT, -1)
    proposal = Proposal(tokens, static_tree(choices), DRAFT.expand(COUNT, 1, -1))
    scores = Scores(None, TARGET.log().expand(*tokens.shape, -1), torch.zeros_like(tokens), noise, SamplingConfig())
    emitted = verifier_from(spec, SamplingConfig(), TABLE).verify(scores, proposal).emitted[:, 0]
    assert_distribution(emitted.bincount(minlength=5), torch.tensor(weights))


@pytest.mark.parametrize(
    "bound",
    [
        {"acceptance": "additive", "delta": 0.0},
        {"acceptance": "jensen_shannon", "delta": 0.0},
        {"acceptance": "multiplicative", "lambda_": 1.0},
        {"acceptance": "bounded", "drafts": "top", "delta": 0.0},
    ],
)
def test_bounds_of_nothing_are_exact_decoding_and_need_no_table(bound):
    spec = MethodSpec.of("exact", **{"tree": "chain3", "drafts": "sampled", "neighbours": "l2", "k": 3, **bound})
    for temperature in (0.0, 1.0):
        verifier = verifier_from(spec, SamplingConfig(temperature), None)
        assert isinstance(verifier, ByEquality) or type(verifier.rejection.acceptance) is Exact


@pytest.mark.parametrize(
    ("parts", "table", "words"),
    [
        ({"acceptance": "additive", "delta": 0.001}, None, "near needs the 3 nearest codes, got no table"),
        ({"acceptance": "proximity"}, None, "near needs the 3 nearest codes, got no table"),
        # They zero the nearest k + 1 codes; k columns would zero k and say nothing.
        (
            {"acceptance": "additive", "delta": 0.1, "residual": "official"},
            TABLE,
            "near needs the 4 nearest codes, got a table of 3 columns",
        ),
    ],
)
def test_any_other_bound_needs_its_table(parts, table, words):
    spec = MethodSpec.of("near", tree="dynamic", drafts="top", neighbours="l2", k=3, **parts)
    with pytest.raises(ValueError, match=words):
        verifier_from(spec, SamplingConfig(), table)


@pytest.mark.parametrize("drafts", ["hybrid_head", "jacobi_heads", "helpers.wrong_parts:Guesses"])
def test_proximity_substitutes_a_near_code_on_all_drafts_that_are_known_before_the_target_samples(models, drafts):
    """A coupling: substitutions, which limit TV, are just the emitted tokens that differ from the target's samples."""
    spec = MethodSpec.of("near", tree="chain2", drafts=drafts, acceptance="proximity", k=3)
    found = []

    def check(outcome):
        emitted, sampled = outcome.emitted, outcome.scores.keys.argmax(-1).gather(1, outcome.path)
        is_near = (models.nearest_codes[emitted, :3] == sampled[..., None]).any(-1)
        is_emitted = torch.arange(3) <= outcome.num_accepted[:, None]
        assert ((emitted == sampled) | is_near)[is_emitted].all()
        assert torch.equal(outcome.is_substituted[is_emitted], (emitted != sampled)[is_emitted])
        found.append(outcome.is_substituted[is_emitted].any())

    generate(with_heads(models, spec), spec, observer=check)
    assert any(found)


NEAR = {"neighbours": "l2", "k": 6}
METHODS = {
    "exact": {"drafts": "coupled"},
    "proximity": {"drafts": "coupled", "acceptance": "proximity", **NEAR},
    "additive": {"drafts": "top", "acceptance": "additive", "delta": 0.3, **NEAR},
    "multiplicative": {"drafts": "top", "acceptance": "multiplicative", "lambda_": 4.0, **NEAR},
    "jensen_shannon": {"drafts": "top", "acceptance": "jensen_shannon", "delta": 0.1, **NEAR},
    "bounded": {"drafts": "top", "acceptance": "bounded", "delta": 0.3, **NEAR},
    "rejection": {"drafts": "sampled"},
    "relaxed_rejection": {"drafts": "sampled", "acceptance": "multiplicative", "lambda_": 4.0, **NEAR},
    "official": {"drafts": "top", "acceptance": "additive", "delta": 0.3, "residual": "official", **NEAR},
}
CHOICES = [(0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (1, 0), (0, 0, 0), (0, 0, 1)]
BATCH, VOCAB = 64, 12
NEAREST = nearest_codes(torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(1)), 8)


def make_step(drafts: str, sampling: SamplingConfig, is_dynamic: bool = False, seed: int = 0) -> tuple:
    """Return (scores, proposal) of random drafts that resemble the target.

    The second child of the first node is missing.
    """
    generator, tree = torch.Generator().manual_seed(seed), static_tree(CHOICES)
    logits = 2 * torch.randn(BATCH, tree.num_nodes, VOCAB, generator=generator)
    draft_logits = (logits + torch.randn(logits.shape, generator=generator))[:, tree.parent_nodes]
    probs = draft_logits.softmax(-1)
    best = (probs / torch.empty_like(probs).exponential_(generator=generator)).topk(3, dim=-1).indices
    tokens = torch.zeros(BATCH, tree.num_nodes, dtype=torch.int64)
    for inner, rank in (tree.children[0] >= 0).nonzero().tolist():
        tokens[:, tree.children[0, inner, rank]] = best[:, inner, rank]
    tokens[:, 5] = -1
    if is_dynamic:
        tree = tree_from_parents(tree.parents.expand(BATCH, -1).contiguous(), 3, 4)
    noise = NoiseField(BATCH, 8, VOCAB, STREAMS)
    noise.fill(range(BATCH), [ImageNoise(seed, f"p{i}", STREAMS, 8, VOCAB) for i in range(BATCH)])
    positions = (1 + tree.depths).expand(BATCH, -1)
    proposal = Proposal(tokens, tree, probs if drafts == "sampled" else None)
    return Scores(None, logits, positions, noise, sampling), proposal


def verifier_of(name: str, sampling: SamplingConfig):
    is_dynamic = METHODS[name].get("residual") == "official"
    tree = {"tree": "dynamic"} if is_dynamic else {"tree": "mine", "tree_shape": CHOICES}
    return verifier_from(MethodSpec.of(name="mine", **tree, **METHODS[name]), sampling, NEAREST), is_dynamic


@pytest.mark.parametrize("name", METHODS)
def test_verifying_the_path_only_finds_what_verifying_all_nodes_finds(name, monkeypatch):
    sampling = SamplingConfig(top_k=7)
    verifier, is_dynamic = verifier_of(name, sampling)
    assert verifier.follows_path(sampling)
    scores, proposal = make_step(METHODS[name]["drafts"], sampling, is_dynamic)
    outcomes, verified, verify_path = [], [], type(verifier)._verify_path
    monkeypatch.setattr(
        type(verifier), "_verify_path", lambda *args: verified.append(len(outcomes)) or verify_path(*args)
    )
    for most in (0, scores.logits.numel()):
        monkeypatch.setattr(base, "MANY_LOGITS", most)
        outcomes.append(verifier.verify(replace(scores), proposal))
    path, whole = outcomes
    assert verified == [0]  # only the first
    assert torch.equal(path.num_accepted, whole.num_accepted) and torch.equal(path.path, whole.path)
    assert set(path.num_accepted.tolist()) == {0, 1, 2, 3}
    counts = torch.arange(4) <= path.num_accepted[:, None]
    assert torch.equal(path.emitted[counts], whole.emitted[counts])
    assert torch.equal(path.is_substituted[counts], whole.is_substituted[counts])
    assert ((path.emitted >= 0) & (path.emitted < VOCAB)).all() and (whole.emitted >= 0).all()
    reached = reached_nodes(proposal.tree, path.is_accepted)
    assert torch.equal(reached, reached_nodes(proposal.tree, whole.is_accepted))
    assert path.is_finite.all() and whole.is_finite.all()


@pytest.mark.parametrize(
    ("name", "temperature", "most"),
    [*((name, 1.0, 10**9) for name in METHODS), *((name, 0.0, 0) for name in METHODS), ("exact", 1.0, 0)],
)
def test_a_missing_draft_is_never_accepted(name, temperature, most, monkeypatch):
    """Index -1 would read code 11, the last one. All tokens here are this code or one of its nearest codes."""
    monkeypatch.setattr(base, "MANY_LOGITS", most)
    sampling = SamplingConfig(temperature=temperature)
    verifier, is_dynamic = verifier_of(name, sampling)
    scores, proposal = make_step(METHODS[name]["drafts"], sampling, is_dynamic)
    scores.logits[..., 11] += 20
    proposal.tokens[:, 1:] = -1
    outcome = verifier.verify(scores, proposal)
    assert not outcome.is_accepted[:, 1:].any() and (outcome.num_accepted == 0).all()
    assert (outcome.emitted[:, 0] == 11).all()


@pytest.mark.parametrize(("name", "leaves"), [("proximity", False), ("bounded", False), ("additive", True)])
def test_only_the_papers_rules_emit_what_the_target_filtered(name, leaves):
    sampling, is_outside = SamplingConfig(top_k=2), False
    verifier, _ = verifier_of(name, sampling)
    for seed in range(3):
        scores, proposal = make_step(METHODS[name]["drafts"], sampling, seed=seed)
        outcome = verifier.verify(scores, proposal)
        weights = outcome.scores.weights.gather(1, outcome.path[..., None].expand(-1, -1, VOCAB))
        is_kept = weights.gather(-1, outcome.emitted[..., None]).squeeze(-1) > -torch.inf
        counts = torch.arange(4) <= outcome.num_accepted[:, None]
        assert (outcome.is_substituted & counts).any()
        is_outside |= bool((~is_kept & counts).any())
    assert is_outside == leaves


def test_siblings_of_one_token_are_accepted_together_and_the_longer_path_is_taken():
    """Two chains from the root begin with one token, as Jacobi drafts and coupled drafts in `hybrid` may do."""
    tree = static_tree([(0,), (1,), (0, 0), (1, 0)])
    logits = torch.full((1, 5, VOCAB), -20.0)
    for node, token in enumerate([3, 5, 5, 7, 7]):  # tokens that the target samples after each
        logits[0, node, token] = 20.0
    proposal = Proposal(torch.tensor([[0, 3, 3, 6, 5]]), tree)
    sampling, noise = SamplingConfig(), NoiseField(1, 4, VOCAB, STREAMS[:1])
    for name in ("exact", "proximity", "additive", "bounded"):
        spec = MethodSpec.of(name="mine", tree="mine", tree_shape=CHOICES, **METHODS[name])
        verifier = verifier_from(spec, sampling, NEAREST)
        outcome = verifier.verify(Scores(None, logits, tree.depths, noise, sampling), proposal)
        assert outcome.is_accepted[0].tolist()[1:] == [True, True, False, True]
        assert outcome.path.tolist() == [[0, 2, 4]] and outcome.emitted.tolist() == [[3, 5, 7]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_root_alone_emits_the_targets_token_and_tells_bad_logits(temperature):
    sampling = SamplingConfig(temperature=temperature)
    scores, _ = make_step("coupled", sampling)
    alone = scores.at(torch.zeros(BATCH, 1, dtype=torch.int64))
    alone.logits[3, 0, 2] = torch.nan
    outcome = verifier_from(MethodSpec.of("autoregressive"), sampling, None).verify(
        alone, Proposal(torch.zeros(BATCH, 1, dtype=torch.int64), tree_from_parents(torch.zeros(1, 1).long(), 0, 0))
    )
    assert outcome.emitted.shape == (BATCH, 1) and torch.equal(outcome.emitted, alone.keys.argmax(-1))
    assert outcome.is_finite.tolist() == [row != 3 for row in range(BATCH)]
    assert (outcome.num_accepted == 0).all() and not outcome.is_substituted.any()


def test_the_twin_of_a_draft_takes_no_mass_of_its_own():
    verifier, taken = WithinBound(AdditiveBound(NEAREST, k=8, delta=0.1)), []
    scores, _ = make_step("top", SamplingConfig())
    root = scores.at(torch.zeros(BATCH, 1, dtype=torch.int64))
    for second in (3, -1):
        children = torch.tensor([[[3, second]]]).expand(BATCH, -1, -1)
        taken.append(verifier.verify_nodes(root, children, None).chosen)
    assert torch.equal(*taken) and (taken[0] == 3).any()
