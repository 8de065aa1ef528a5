"""Audits of exact and of biased samplers, of broken parts of the decoder, and of wrong input."""

from __future__ import annotations

import pytest
import torch

import lantern
from helpers.paths import ROOT
from lantern.acceptance.rejection import Rejection
from lantern.decoding import make_decoder
from lantern.kv_cache import KVCache
from lantern.methods import make_method
from lantern.noise import TARGET, NoiseField
from lantern.sampling import SamplingConfig
from lantern_audit.assisted import language_model
from lantern_audit.table_models import make_models
from lantern_audit.world import make_world

NUM = 6_000
FAST = [("eagle2", {}), ("jacobi", {"tree": "chain3k3d2"}), ("zipar", {"window": 2})]
EXACT = [
    *FAST,
    ("eagle1", {"tree": "chain3"}),
    ("coupled", {}),
    ("eagle1", {"drafts": "heads", "tree": "chain2"}),
    ("hybrid", {}),
    ("scd", {}),
    ("sjd_pac", {}),
    ("pjd", {"window": 2}),
]
# The least total variation that an audit must find.
BIASED = [
    ("lantern", {"k": 2, "delta": 0.1}, 0.015),
    ("ssd", {"rounds": 1}, 0.05),
    ("lantern", {"k": 2, "delta": 0.3, "residual": "official"}, 0.4),
    ("lantern_pp", {"k": 2, "lambda_": 2.0}, 0.06),
    ("proximity", {"k": 1}, 0.025),
    ("cool", {"omega": 1.1}, 0.1),
    ("ensemble", {"weight": 0.8}, 0.07),
    ("mixing", {"budget": 0.1}, 0.1),
    ("gsd", {"h": 1}, 0.035),
    ("path_relax", {}, 0.02),
    ("zipar", {"window": 1}, 0.3),
    ("pjd", {"window": 1}, 0.03),
]


def cases(rows, num_fast):
    marks = [[] if number < num_fast else pytest.mark.slow for number in range(len(rows))]
    return [pytest.param(*row, marks=mark, id=f"{row[0]}-{row[1]}") for row, mark in zip(rows, marks, strict=True)]


@pytest.fixture
def examples(monkeypatch):
    """The folder of the examples on Python's path."""
    monkeypatch.syspath_prepend(ROOT / "examples")


@pytest.mark.parametrize(("name", "parts"), cases(EXACT, len(FAST)))
def test_exact_methods_show_no_difference(name, parts):
    found = lantern.audit(name, num=NUM // 2, **parts)
    assert found.p_value > 1e-4 and found.total_variation.low < 0.01 and found.num_impossible == 0
    assert found.num_samples == NUM // 2 and found.num_possible == 512


@pytest.mark.parametrize(("name", "parts", "least"), cases(BIASED, 2))
def test_biased_methods_are_found(name, parts, least):
    found = lantern.audit(name, num=NUM, **parts)
    assert found.p_value < 1e-6 and found.has_difference
    assert found.total_variation.low < found.total_variation.value < found.total_variation.high
    assert least < found.total_variation.value < least + 0.2
    assert f"{name} is not lossless: " in str(found)


@pytest.mark.parametrize("delta", [pytest.param(0.02, marks=pytest.mark.slow), 0.1])
def test_the_bound_of_bounded_holds_for_whole_sequences(delta):
    found = lantern.audit("bounded", num=NUM, k=4, delta=delta)
    assert found.total_variation.low < 3 * delta  # token 0 is never drafted
    assert found.has_difference == (delta == 0.1)


def test_the_example_samplers(examples):
    for name, least, most in (("speculative", 0, 0.01), ("shared_gumbel", 0.02, 0.06), ("greedy_drafts", 0.6, 0.9)):
        found = lantern.audit(f"samplers_to_audit:{name}")
        assert (found.p_value > 1e-4) if name == "speculative" else (found.p_value < 1e-6)
        assert least <= found.total_variation.low < most


def test_shared_noise_moves_probability_as_in_the_vllm_issue(examples):
    """10, 60 and 30 % came out as 10.2, 63.0 and 26.8 %, with a draft model that is not stated."""
    import samplers_to_audit as samplers

    num = 50_000
    probs = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]], dtype=torch.float64)
    target, draft = probs[:, None].expand(-1, num, -1)
    generator = torch.Generator().manual_seed(0)
    noise, fresh = samplers.gumbel(draft, generator), samplers.gumbel(draft, generator)
    drafted = (draft.log() + noise).argmax(1)
    shared, exact = (
        samplers.verify(target, draft, drafted, part, generator).bincount(minlength=3) / num for part in (noise, fresh)
    )
    torch.testing.assert_close(shared, torch.tensor([0.102, 0.630, 0.268]), atol=0.008, rtol=0)
    torch.testing.assert_close(exact, probs[0].float(), atol=0.008, rtol=0)


@pytest.mark.slow
def test_assisted_generation_of_transformers_shows_no_difference():
    found = lantern.audit("transformers", num=500)
    assert found.p_value > 1e-4 and found.num_possible == 27 and found.num_samples == 500


def test_the_models_of_transformers_have_the_probabilities_of_the_world():
    world = make_world()
    ids = torch.tensor([[1, 2, 3, 0]])
    for table in (world.target, world.draft):
        probs = language_model(world, table)(ids).logits.softmax(-1)[0]
        contexts = [world.contexts_of(ids[:, 0], ids[:, 1 : 1 + num]) for num in range(4)]
        torch.testing.assert_close(probs, table[torch.cat(contexts)].float())


def test_a_custom_acceptance_is_audited(examples):
    name = "samplers_to_audit:Typical"
    assert lantern.audit(name, num=2000, floor=0.25).p_value < 1e-6
    assert lantern.audit(name, num=2000, floor=1.0).p_value > 1e-4


def test_custom_drafters_with_and_without_a_tree_are_audited(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "audited_drafters.py").write_text(
        "from lantern.drafters.base import NoDrafter\nfrom lantern.drafters.jacobi import JacobiDrafter\n\n\n"
        "class Mine(JacobiDrafter):\n    trees = ('static',)\n    has_twins = True\n\n\n"
        "class Empty(NoDrafter):\n    trees = ()\n"
    )
    for name in ("Mine", "Empty"):
        assert lantern.audit(f"audited_drafters:{name}", num=2000).p_value > 1e-4


def test_the_draft_model_has_the_probabilities_of_the_world():
    world = make_world()
    spec = make_method("eagle1", tree="chain3")
    decoder = make_decoder(make_models(world, spec), spec, SamplingConfig())
    outcomes = []
    decoder.observer = outcomes.append
    prompts = torch.arange(8) % 2
    noise = [decoder.make_noise(seed, "0") for seed in range(8)]
    codes = decoder.generate(prompts[:, None], torch.ones(8, 1, dtype=torch.bool), noise).codes
    proposal = outcomes[0].proposal
    for num in (0, 1):
        context = torch.cat([codes[:, :1], proposal.tokens[:, 1 : 1 + num]], dim=1)
        torch.testing.assert_close(proposal.draft_probs[:, num], world.draft_probs(prompts, context).float())


def test_samples_do_not_depend_on_the_batch_and_seeds_are_not_shared():
    found = [lantern.audit("jacobi", num=500, batch_size=size) for size in (70, 500)]
    assert found[0] == found[1] != lantern.audit("jacobi", num=500, seed=1)
    seen = []

    def sampler(world, prompts, seeds):
        seen.append(seeds)
        return torch.multinomial(world.target_probs(prompts, prompts[:, None][:, :0]), 4, replacement=True)

    for seed in (0, 1):
        lantern.audit(sampler, make_world(vocab_size=4, top_k=4), num=700, seed=seed, batch_size=300)
    assert len(torch.cat(seen).unique()) == 1400


# --- what a mistake in the decoder would do ---------------------------------------------------------


@pytest.mark.slow
def test_a_cache_that_keeps_the_wrong_path_is_found(monkeypatch):
    monkeypatch.setattr(KVCache, "move", lambda cache, source, target: None)
    assert lantern.audit("eagle2", num=NUM).p_value < 1e-6


@pytest.mark.slow
def test_a_mask_that_shows_siblings_is_found(monkeypatch):
    mask = KVCache.mask
    monkeypatch.setattr(
        KVCache, "mask", lambda cache, window, begin: mask(cache, window, begin).clamp(min=-1e-9).relu()
    )
    assert lantern.audit("eagle1", num=NUM).has_difference


def test_a_residual_that_is_the_targets_distribution_is_found(monkeypatch):
    monkeypatch.setattr(Rejection, "residual_probs", lambda rejection, probs, *_: probs)
    assert lantern.audit("eagle1", tree="chain3", num=NUM).p_value < 1e-6


@pytest.mark.slow
def test_noise_of_the_drafts_that_decides_on_them_too_is_found(monkeypatch):
    gumbel = NoiseField.gumbel
    monkeypatch.setattr(NoiseField, "gumbel", lambda noise, _, positions: gumbel(noise, TARGET, positions))
    assert lantern.audit("eagle1", tree="chain3", num=2 * NUM).p_value < 1e-6


# --- wrong input --------------------------------------------------------------------------------------


def constant(value):
    """Return a sampler that returns a value whatever it gets."""
    return lambda world, prompts, seeds: value


@pytest.mark.parametrize(
    ("sampler", "options", "message"),
    [
        ("jakobi", {}, r"a sampler must be one of autoregressive, .* got 'jakobi'"),
        ("jacobi", {"num": 3}, r"num of audit .* \[500, 1e\+07\], got 3"),
        ("jacobi", {"seed": -1}, r"seed of audit .* got -1"),
        ("jacobi", {"batch_size": 0}, r"batch_size of audit .* >= 1, got 0"),
        ("jacobi", {"name": "x"}, r"sampler jacobi takes no name, got 'x'"),
        ("lantern", {}, r"method lantern .* needs k"),
        ("gone:function", {}, r"gone:function .* No module named 'gone'"),
        ("math:pi", {}, r"math:pi .* got float"),
        ("fractions:Fraction", {}, r"fractions:Fraction must be a function, or a class"),
        ("math:gcd", {"k": 3}, r"got k for math:gcd"),
        (constant(0), {"k": 3}, "no parts of a method, got k"),
        (constant(0), {}, r"integer tokens in \[0, 5\) of shape \(500, 4\), got int"),
        (constant(torch.zeros(500, 3).long()), {}, r"got torch.int64 of shape \(500, 3\)"),
        (constant(torch.zeros(500, 4)), {}, r"got torch.float32 of shape \(500, 4\)"),
        (constant(torch.full((500, 4), 5)), {}, r"got tokens from 5 to 5"),
        ("transformers", {"world": make_world(3, 1, 2, num_prompts=4, top_k=3)}, r"num_prompts .* <= 3"),
    ],
    ids=str,
)
def test_wrong_input_is_named(sampler, options, message):
    with pytest.raises(ValueError, match=message):
        lantern.audit(sampler, **{"num": 500, **options})


def test_wrong_sizes_of_a_world_are_named():
    for sizes, message in (
        ({"vocab_size": 2}, r"vocab_size of a world .* \[3, 8\], got 2"),
        ({"columns": 9}, r"columns of a world .* \[1, 8\], got 9"),
        ({"vocab_size": 8, "columns": 3}, r"at most 4096 sequences, got 8\^6"),
        ({"lines": 1, "columns": 1}, r"at least 2 tokens .* got 5\^1"),
    ):
        with pytest.raises(ValueError, match=message):
            make_world(**sizes)


def test_similar_codes_are_neighbours_with_nearly_equal_probabilities():
    world = make_world(vocab_size=6, lines=1, columns=3, top_k=6)
    for neighbours in ("l2", "l2_normalised"):
        models = make_models(world, make_method("proximity", k=1, neighbours=neighbours))
        assert models.nearest_codes[:, 0].tolist() == [1, 0, 3, 2, 5, 4]
    gap = (world.target[:, 0::2] / world.target[:, 1::2]).log().abs().mean()
    other = (world.target[:, [0, 2, 4]] / world.target[:, [2, 4, 0]]).log().abs().mean()
    assert gap < 0.4 < 3 * gap < other
    assert world.sequence_probs().sum(1).tolist() == pytest.approx([1.0, 1.0])


def test_a_p_value_between_the_levels_asks_for_more_samples(monkeypatch):
    from lantern_audit import audit as module

    monkeypatch.setattr(module, "UNCLEAR", 1.0)
    assert "autoregressive is undecided in 1,000 sequences (p = " in lantern.audit("autoregressive", num=1000).sentence


def test_a_bias_among_rare_sequences_is_not_promised_to_be_found():
    said = lantern.audit("autoregressive", num=1000).sentence
    assert "rare sequences counted as one" in said
