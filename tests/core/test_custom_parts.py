"""Tests of wrong custom drafters and acceptances: the error names class, function and method."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from helpers.tiny_models import generate, verifier_from
from helpers.wrong_parts import Additive, AllAtOnce, Guesses, NodeByNode, OwnVerifier, Sets, Shift, Wide
from lantern.acceptance import base
from lantern.acceptance.base import Exact
from lantern.codebook import nearest_codes
from lantern.extensions import load_class
from lantern.methods import MethodSpec
from lantern.noise import uniform_field
from lantern.sampling import SamplingConfig

PARTS = "helpers.wrong_parts"  # the module, as a config names it


def draw(models, drafts: str, **options):
    spec = MethodSpec.of("mine", tree="chain3", drafts=f"{PARTS}:{drafts}", method_id="mine")
    return generate(models, spec, rows=range(2), **options)


def with_tokens(change):
    return lambda proposal: replace(proposal, tokens=change(proposal.tokens.clone()))


def other_root(tokens):
    tokens[:, 0] = (tokens[:, 0] + 1) % 9
    return tokens


def with_probs(value, shape=(2, 3, 12)):
    return lambda proposal: replace(proposal, draft_probs=torch.full(shape, value))


CHANGES = [
    ("Guesses", lambda proposal: proposal.tokens, "a Proposal, got Tensor"),
    (
        "Guesses",
        with_tokens(lambda tokens: tokens[:, :3]),
        r"torch.int64 of shape (2, 4), got torch.int64 of shape (2, 3)",
    ),
    ("Guesses", with_tokens(other_root), "the root ["),
    (
        "Guesses",
        with_tokens(lambda tokens: tokens + 1000 * (tokens < 0).logical_not().cumsum(1).gt(1)),
        "tokens in [0, 12)",
    ),
    ("Guesses", with_tokens(lambda tokens: tokens - 13 * (torch.arange(4) == 2)), "tokens in [0, 12), or -1 for none"),
    ("Sampled", lambda proposal: proposal, "draft_probs, since it declares is_sampled, got None"),
    (
        "Sampled",
        with_probs(0.1, (2, 4, 12)),
        "draft_probs, a tensor of a floating dtype of shape (2, 3, 12), got torch",
    ),
    ("Sampled", with_probs(float("nan")), "draft_probs that are finite and >= 0, got others"),
]


@pytest.mark.parametrize(("drafts", "change", "words"), CHANGES)
def test_a_wrong_proposal_names_class_and_method(models, monkeypatch, drafts, change, words):
    """Greedy decoding does not read draft_probs, so they may be missing."""
    monkeypatch.setattr(Guesses, "change", staticmethod(change))
    with pytest.raises(ValueError) as error:
        draw(models, drafts)
    assert str(error.value).startswith(f"propose of {PARTS}:{drafts} in method mine must return ")
    assert words in str(error.value) and str(error.value).endswith("; correct that class")
    if words.startswith("draft_probs"):
        assert draw(models, drafts, temperature=0.0).codes.shape == (2, 16)


def test_right_proposals_draw_the_images_of_one_by_one_decoding(models):
    expected = generate(models, MethodSpec.of("autoregressive"), rows=range(2))
    found = draw(models, "Guesses")
    assert torch.equal(found.codes, expected.codes) and (found.target_forwards < 16).any()


def test_a_drafter_reads_100_slots_of_a_stream_of_its_own(models):
    proposals = []
    found = draw(models, "Lots", observer=lambda outcome: proposals.append(outcome.proposal.tokens[:, 1:]))
    fields = [uniform_field(7, f"prompt-{row}", "lots", 16, 128) for row in range(2)]  # two blocks of 64 per position
    assert proposals[0].tolist() == [[int(12 * field[n, 100 - n]) for n in (1, 2, 3)] for field in fields]
    expected = generate(models, MethodSpec.of("autoregressive"), rows=range(2))
    assert torch.equal(found.codes, expected.codes)


def test_a_drafter_may_leave_drafts_out(models, monkeypatch):
    expected = generate(models, MethodSpec.of("autoregressive"), rows=range(2))
    only_the_root = with_tokens(lambda tokens: tokens.masked_fill(torch.arange(4) > 0, -1))
    monkeypatch.setattr(Guesses, "change", staticmethod(only_the_root))
    found = draw(models, "Guesses")
    assert torch.equal(found.codes, expected.codes) and (found.target_forwards == 16).all()


@pytest.mark.parametrize(
    ("drafts", "sentence"),
    [
        ("Broken", f"make of {PARTS}:Broken in method mine failed: KeyError: 'weights'; correct that class"),
        ("Treeless", f"make of {PARTS}:Treeless in method mine must return a drafter with the attribute tree"),
        ("Shallow", "a drafter whose max_depth is its tree's, 3, got 2"),
    ],
)
def test_a_drafter_that_is_made_wrongly_is_named(models, drafts, sentence):
    with pytest.raises(ValueError, match=sentence):
        draw(models, drafts)


def test_a_drafter_gets_the_trained_part_that_it_declares(models):
    expected = generate(models, MethodSpec.of("autoregressive"), rows=range(2))
    found = [draw(replace(models, parts={"shift": Shift(step)}), "Shifts") for step in range(12)]
    assert all(torch.equal(images.codes, expected.codes) for images in found)
    # Every next code is the last one plus some number, so one of the parts is right at least once.
    assert any((images.target_forwards < 16).any() for images in found)
    with pytest.raises(ValueError, match=r"^method mine needs Shift, got none"):
        draw(models, "Shifts")
    with pytest.raises(ValueError, match="needs Shift, got shift heads"):
        draw(replace(models, parts={"shift": models.parts["heads"]}), "Shifts")


@pytest.mark.parametrize("call", ["allocate", "fill", "propose", "observe"])
def test_what_a_drafter_raises_names_the_function(models, monkeypatch, call):
    def fail(*_):
        raise IndexError("too far")

    fail.__name__ = call
    monkeypatch.setattr(Guesses, call, fail)
    with pytest.raises(ValueError, match=f"^{call} of {PARTS}:Guesses in method mine failed: IndexError: too far"):
        draw(models, "Guesses")


def test_only_the_first_proposal_is_checked_but_later_errors_are_named(models, monkeypatch):
    """The second proposal has another root than the last token, and the third call fails."""
    seen = []

    def change(proposal):
        seen.append(proposal)
        if len(seen) == 3:
            raise IndexError("too far")
        return replace(proposal, tokens=other_root(proposal.tokens.clone())) if len(seen) == 2 else proposal

    monkeypatch.setattr(Guesses, "change", staticmethod(change))
    with pytest.raises(ValueError, match=f"^propose of {PARTS}:Guesses in method mine failed: IndexError: too far"):
        draw(models, "Guesses")
    assert len(seen) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_loop_of_ones_own_is_made_of_public_functions(models, temperature):
    spec = MethodSpec.of("mine", drafts="helpers.own_loop:Newest")
    found = generate(models, spec, temperature=temperature)
    expected = generate(models, MethodSpec.of("autoregressive"), temperature=temperature)
    assert torch.equal(found.codes, expected.codes) and torch.equal(found.step_lengths, expected.step_lengths)


def gap(found):
    found = found.clone()
    found[..., 0], found[..., 1] = False, True
    return found


def decode_with(models, acceptance: str, tree: str = "chain3", **options):
    table = nearest_codes(torch.randn(12, 4, generator=torch.Generator().manual_seed(3)), 6)
    models = replace(models, nearest_codes=table)
    parts = {"k": 4, "delta": 0.0} if acceptance in ("Sets", "Additive") else {}
    spec = MethodSpec.of("mine", tree=tree, drafts="sampled", acceptance=f"{PARTS}:{acceptance}", **parts)
    return generate(models, spec, rows=range(2), **options)


@pytest.mark.parametrize(
    ("kind", "change", "sentence"),
    [
        (Wide, lambda found: found[..., 0], f"relaxed_prob of {PARTS}:Wide in method mine must return a tensor of a "),
        (Wide, lambda found: found * torch.nan, "relaxed_prob of .* must return finite numbers >= 0, got .nan"),
        (Wide, lambda found: -found - 1, "relaxed_prob of .* must return finite numbers >= 0, got .-1"),
        (Wide, lambda found: found / 0 + "a", f"relaxed_prob of {PARTS}:Wide in method mine failed: TypeError: "),
        (
            Sets,
            lambda found: found.float(),
            "admits of .*:Sets in method mine must return a tensor of torch.bool of shape",
        ),
        (
            Sets,
            gap,
            "admits of .*:Sets in method mine must return a prefix: only False after the first False, got a gap",
        ),
        (Sets, lambda found: found.missing, "^admits of .*:Sets in method mine failed: AttributeError: "),
    ],
)
def test_a_wrong_acceptance_names_class_and_method(models, monkeypatch, kind, change, sentence):
    monkeypatch.setattr(kind, "change", staticmethod(change))
    with pytest.raises(ValueError, match=sentence):
        decode_with(models, kind.__name__)


@pytest.mark.parametrize(
    ("drafts", "acceptance", "need"),
    [
        ("Sampled", {"acceptance": "weighted", "omega": 1.1, "fall": 0.7, "residual": "matched"}, None),
        ("Sampled", {"acceptance": "bounded", "k": 3, "delta": 0.1}, "known before the target samples and independent"),
        ("Guesses", {"acceptance": f"{PARTS}:Wide"}, "sampled from a known distribution, got .*"),
        ("Guesses", {"acceptance": "bounded", "k": 3, "delta": 0.1}, ".* independent of its noise, got .*"),
        ("Broken", {"acceptance": "bounded", "k": 3, "delta": 0.1}, None),  # declares neither kind of sampling
    ],
)
def test_an_acceptance_takes_drafters_that_have_what_it_needs(drafts, acceptance, need):
    refused = pytest.raises(ValueError, match=f"needs drafts that are {need}") if need else nullcontext()
    with refused:
        MethodSpec.of("mine", tree="chain3", drafts=f"{PARTS}:{drafts}", **acceptance)


def test_a_need_that_no_drafts_declare_is_refused(monkeypatch):
    monkeypatch.setattr(Wide, "needs", "sampled")  # a word, not a tuple of words
    with pytest.raises(ValueError, match=f"^needs of {PARTS}:Wide must be some of sampled, .*, got 'sampled'"):
        MethodSpec.of("mine", tree="chain3", drafts="sampled", acceptance=f"{PARTS}:Wide")


def test_an_acceptance_is_made_from_models_like_a_drafter(models, monkeypatch):
    seen = []
    monkeypatch.setattr(Wide, "make", classmethod(lambda kind, *parts: seen.append(parts) or kind()))
    decode_with(models, "Wide", temperature=0.5)
    ((found, spec, sampling),) = seen
    assert found.target is models.target and spec.acceptance == f"{PARTS}:Wide" and sampling.temperature == 0.5


def test_siblings_that_the_filters_left_none_of_are_no_error(models):
    """The filters leave one of three children. The draft distribution of the other two is 0 / 0."""
    assert decode_with(models, "Mixed", tree="chain2k3d1", top_k=1).codes.shape == (2, 16)


def test_a_bound_of_ones_own_is_asked_even_if_delta_is_0(models):
    """With delta 0, LANTERN's bound is exact decoding. A custom bound need not be."""
    spec = MethodSpec.of("mine", tree="chain3", drafts="sampled", acceptance=f"{PARTS}:Additive", k=4, delta=0.0)
    table = nearest_codes(torch.randn(12, 4, generator=torch.Generator().manual_seed(3)), 6)
    assert type(verifier_from(spec, SamplingConfig(), table).rejection.acceptance) is Additive
    ours = MethodSpec.of("ours", tree="chain3", drafts="sampled", acceptance="additive", k=4, delta=0.0)
    assert type(verifier_from(ours, SamplingConfig(), table).rejection.acceptance) is Exact
    for name, parameter, value in (("multiplicative", "lambda_", 1), ("jensen_shannon", "delta", 0)):
        ours = MethodSpec.of("ours", tree="chain3", drafts="sampled", acceptance=name, k=4, **{parameter: value})
        assert type(verifier_from(ours, SamplingConfig(), table).rejection.acceptance) is Exact
    assert decode_with(models, "Additive").codes.shape == decode_with(models, "Sets").codes.shape == (2, 16)


@pytest.mark.parametrize("kind", [NodeByNode, AllAtOnce])
def test_a_users_verifier_decides_and_follows_the_path_if_it_verifies_single_nodes(models, monkeypatch, kind):
    monkeypatch.setattr(OwnVerifier, "kind", kind)
    monkeypatch.setattr(base, "MANY_LOGITS", 0)
    tree = {"tree": "wide", "tree_shape": [(i,) for i in range(5)]}  # many more nodes than levels
    spec = MethodSpec.of("mine", **tree, drafts="top", acceptance=f"{PARTS}:OwnVerifier")
    assert verifier_from(spec, SamplingConfig()).follows_path(SamplingConfig()) == (kind is NodeByNode)
    found = generate(models, spec, rows=range(2))
    expected = generate(models, MethodSpec.of("autoregressive"), rows=range(2))
    assert torch.equal(found.codes, expected.codes) and (found.target_forwards < 16).any()


def test_a_relaxation_that_derives_from_exact_or_acceptance_decodes_alike(models):
    """Classes that were written for earlier versions derive from Exact."""
    found = [decode_with(models, name).codes for name in ("Mixed", "MixedFromExact")]
    assert torch.equal(*found) and not torch.equal(found[0], decode_with(models, "Plain").codes)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def broken(:\n", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('no GPU')\n", "RuntimeError: no GPU"),
        ("Mine = 3\n", "must name a class as module:Class, got int"),
        ("", "has no attribute 'Mine'"),
    ],
)
def test_a_file_that_names_no_class_is_one_sentence(tmp_path, monkeypatch, code, words):
    (tmp_path / "own_part_file.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_part_file", raising=False)
    with pytest.raises(ValueError, match="own_part_file:Mine must name a class as module:Class") as error:
        load_class("own_part_file:Mine")
    assert words in str(error.value)
