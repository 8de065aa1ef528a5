"""Tests of decoding: exactness as equality of tokens, output distributions by chi-square, counts and errors."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from helpers.statistics import assert_distribution
from helpers.tiny_models import generate, make_models, make_prompts
from lantern.acceptance.base import ByEquality
from lantern.decoding import make_decoder
from lantern.kv_cache import KVCache
from lantern.methods import MethodSpec, make_method
from lantern.models.transformer import cast_weights
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.tree_shapes import DynamicTreeOptions
from lantern_pipeline.measure.exactness.losslessness import compare_with_autoregressive

AUTOREGRESSIVE = make_method("autoregressive")
BUSHY = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)]
DYNAMIC = DynamicTreeOptions(num_nodes=9, depth=2, top_k=4)
SAMPLINGS = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 6, "top_p": 0.9}]


def method(drafts: str, tree: str, **parts) -> MethodSpec:
    shape = {"bushy": BUSHY, "dynamic": DYNAMIC}.get(tree)
    return MethodSpec.of("method", drafts=drafts, tree=tree, tree_shape=shape, **parts)


@cache
def autoregressive_codes(rows: tuple[int, ...], **sampling: float) -> torch.Tensor:
    return generate(make_models(), AUTOREGRESSIVE, rows, **sampling).codes


MODELS_DRAFTS = [(drafts, tree) for drafts in ("top", "coupled") for tree in ("chain3", "bushy", "dynamic")]


@pytest.mark.sensitive
@pytest.mark.parametrize(
    ("drafts", "tree", "rows"),
    [
        *((*row, range(5)) for row in MODELS_DRAFTS),
        *(("jacobi", window, range(5)) for window in ("chain1", "chain5k3d2")),
        *(("hybrid", trees, range(5)) for trees in ("chain6+chain3", "chain4k2d1+mc_sim_7b_63")),
        ("hybrid", "chain3+chain6", [2]),
    ],
)
def test_exact_decoding_emits_the_autoregressive_tokens(models, drafts, tree, rows):
    """Jacobi drafts need no draft model. Together with drafts of one, more are accepted than with either only."""
    if drafts == "jacobi":
        models = DecodingModels(models.target)
    forwards = []  # of all images: with hybrid drafts, then with those of Jacobi or of the draft model only
    for sampling in SAMPLINGS:
        result = generate(models, method(drafts, tree), rows, **sampling)
        assert torch.equal(result.codes, autoregressive_codes(tuple(rows), **sampling))
        assert (result.step_lengths.sum(1) == 16).all() and not result.is_substituted.any()
        assert len(rows) == 1 or (result.target_forwards < 16).any()  # not won by never accepting a draft
        if drafts == "hybrid" and len(rows) > 1:
            parts = zip(("jacobi", "coupled"), tree.split("+"), strict=True)
            alone = [generate(models, method(*part), rows, **sampling).target_forwards.sum() for part in parts]
            forwards.append([result.target_forwards.sum(), *alone])
    if forwards:
        both, *alone = torch.tensor(forwards).sum(0)
        assert both < min(alone)


@pytest.mark.parametrize(("drafts", "tree"), [("top", "dynamic"), ("coupled", "bushy")])
def test_in_bfloat16_tokens_part_only_where_candidates_are_close(drafts, tree):
    """One and several nodes round differently. Guidance, filters and the head stay in float32."""
    models = make_models(seed=5, is_prepared=False)
    cast_weights(models.target, torch.bfloat16).prepare_for_decoding()
    cast_weights(models.draft, torch.bfloat16).prepare_for_decoding()
    assert models.target.read_logits(torch.zeros(1, models.target.config.dim)).dtype == torch.float32
    slow = make_decoder(models, AUTOREGRESSIVE, SamplingConfig(cfg_scale=2.0), records_margins=True)
    noise = [slow.make_noise(7, f"prompt-{i}") for i in range(5)]
    expected, result = slow.generate(*make_prompts(models, 5), noise), generate(models, method(drafts, tree))
    equality = compare_with_autoregressive(result.codes, expected.codes, expected.margins)
    assert equality.margin_at_difference.nan_to_num(0.0).max() < 0.1  # nats; typical margins are ten times that
    assert expected.margins.median() > 0.3
    assert (result.target_forwards < 16).any()


@pytest.mark.parametrize(
    ("dtype", "mode", "is_limited"),
    [
        (torch.float32, "eager", True),
        (torch.bfloat16, "eager", False),  # would round by the number of slots
        (torch.float32, "graph", False),  # a captured step reads the same slots every time
    ],
)
def test_steps_read_no_empty_slots_in_float32_on_a_cpu_without_graphs(monkeypatch, dtype, mode, is_limited):
    models = make_models(is_prepared=False)
    cast_weights(models.target, dtype).prepare_for_decoding()
    decoder = make_decoder(models, AUTOREGRESSIVE, SamplingConfig())
    is_part, limit = [], KVCache.limit

    def watch(cache: KVCache, num_used: int) -> None:
        is_part.append(num_used < cache.num_slots)
        limit(cache, num_used)

    monkeypatch.setattr(KVCache, "limit", watch)
    monkeypatch.setattr(decoder.runner, "mode", mode)
    monkeypatch.setattr(decoder.runner, "prepare", lambda step, state, limits: None)
    decoder.generate(*make_prompts(models, 1), [decoder.make_noise(7, "prompt-0")])
    assert any(is_part) == is_limited


NEAR = {"neighbours": "l2_normalised", "k": 4}


@pytest.mark.parametrize(
    ("drafts", "tree", "parts"),
    [
        ("top", "dynamic", {"acceptance": "additive", "delta": 0.2}),
        ("sampled", "bushy", {"acceptance": "multiplicative", "lambda_": 3.0}),
        ("top", "dynamic", {"acceptance": "bounded", "delta": 0.2}),
        ("coupled", "bushy", {"acceptance": "proximity", "k": 3}),
    ],
)
def test_relaxation_accepts_more_than_exact_decoding_and_counts_substitutions(models, drafts, tree, parts):
    """Exact and relaxed decoding share tree, drafts and noise.

    If the target samples a token at every node, an image equals the autoregressive one up to the first substitution,
    and differs there.
    """
    relaxed = generate(models, method(drafts, tree, **NEAR | parts), range(40))
    assert relaxed.target_forwards.sum() < generate(models, method(drafts, tree), range(40)).target_forwards.sum()
    expected = generate(models, AUTOREGRESSIVE, range(40)).codes
    assert relaxed.is_substituted.any() == (drafts != "sampled")
    for codes, is_substituted, exact in zip(relaxed.codes, relaxed.is_substituted, expected, strict=True):
        if drafts != "sampled":
            first = [*is_substituted.nonzero().flatten().tolist(), 16][0]
            assert torch.equal(codes[:first], exact[:first]) and (first == 16 or codes[first] != exact[first])


CHAIN, SIBLINGS = [(0,), (0, 0)], [(0,), (1,), (0, 0), (1, 0)]


@pytest.mark.parametrize(
    ("drafts", "tree"),
    [
        pytest.param("sampled", SIBLINGS, id="sampled-siblings"),
        pytest.param("top", SIBLINGS, id="top-siblings", marks=pytest.mark.slow),
        pytest.param("coupled", CHAIN, id="coupled-chain", marks=pytest.mark.slow),
    ],
)
def test_emitted_pairs_have_the_targets_distribution(drafts, tree):
    """The first two tokens of 4000 images are compared with the enumerated distribution.

    Acceptance and rejection are both common at the root, so tokens after either are tested.
    """
    models = make_models(vocab_size=4, grid=2, seed=3)
    target, count = models.target, 4000
    features, mask = (part.expand(count, *part.shape[1:]) for part in make_prompts(models, 1))
    spec = MethodSpec.of("pair", tree="pair", tree_shape=tree, drafts=drafts)
    decoder = make_decoder(models, spec, SamplingConfig(cfg_scale=1.0))
    generation = decoder.generate(features, mask, [decoder.make_noise(11, f"p{i}") for i in range(count)])
    with torch.inference_mode():
        first, second = (
            target.head(target(features[: len(codes)], mask[: len(codes)], codes)[:, -1]).softmax(-1).double()
            for codes in (torch.zeros(1, 0, dtype=torch.int64), torch.arange(4)[:, None])
        )
    found = (generation.codes[:, 0] * 4 + generation.codes[:, 1]).bincount(minlength=16)
    assert_distribution(found, (first.T * second).flatten())
    assert 0.15 < (generation.accepted_lengths[:, 0] == 0).float().mean() < 0.85


class AcceptsByDepth(ByEquality):
    """Verifier that accepts every draft down to a depth."""

    depths: int

    def verify_all(self, scores, proposal):
        _, own, best = super().verify_all(scores, proposal)
        return (proposal.tree.depths <= self.depths).expand(proposal.tokens.shape), own, best


@pytest.mark.parametrize(("depths", "forwards"), [(0, 16), (1, 9), (3, 5)])
def test_number_of_forwards_when_never_sometimes_always_accepting(models, depths, forwards):
    """16 tokens, a chain of 3: the prefill emits one token, each step one more than it accepts."""
    decoder = make_decoder(models, method("coupled", "chain3"), SamplingConfig(cfg_scale=2.0))
    decoder.verifier = AcceptsByDepth()
    decoder.verifier.depths = depths
    generation = decoder.generate(*make_prompts(models, 2), [decoder.make_noise(0, i) for i in "ab"])
    assert generation.target_forwards.tolist() == [forwards, forwards]
    assert generation.step_lengths.sum(1).tolist() == [16, 16]
    assert generation.step_lengths[0, : forwards - 1].tolist() == [1] + [depths + 1] * (forwards - 2)


def test_logits_that_are_not_finite_name_prompt_and_step():
    models = make_models(seed=5, is_prepared=False)
    with torch.no_grad():
        models.target.head.weight[3, 0] = float("nan")
    models.target.prepare_for_decoding()
    with pytest.raises(FloatingPointError, match=r"prompt prompt-0 .* step"):
        generate(models, AUTOREGRESSIVE, range(2))


def test_logits_within_the_accepted_path_are_checked():
    """Where autoregressive decoding raises, every exact method raises, whichever node of the tree has the logits."""
    models = make_models(seed=5, is_prepared=False)
    with torch.no_grad():
        models.target.head.weight[7, 0] = 3.3e38  # overflows after some tokens only
    models.target.prepare_for_decoding()

    def raises(spec, row):
        try:
            generate(models, spec, [row], cfg_scale=1.0)
        except FloatingPointError:
            return True
        return False

    rows = [row for row in range(20) if raises(AUTOREGRESSIVE, row)]
    assert 0 < len(rows) < 20
    for row in rows:
        for drafts, tree in (("jacobi", "chain6"), ("coupled", "bushy"), ("hybrid", "chain6+chain3")):
            assert raises(method(drafts, tree), row)


@pytest.mark.parametrize(
    ("drafts", "tree", "value"),
    [
        ("top", "chain3", float("inf")),
        ("sampled", "bushy", float("nan")),
        ("coupled", "dynamic", float("nan")),
        ("hybrid", "chain4k2d1", float("nan")),
        ("hybrid", "chain3+chain3", float("inf")),
        ("heads", "chain3", float("nan")),
        ("jacobi_heads", "chain3", float("inf")),
        ("ssd", "none", float("nan")),
    ],
)
def test_drafts_of_a_broken_model_name_it_and_prompt_and_step(drafts, tree, value):
    models = make_models(is_prepared=False)
    for model in (models.draft, models.parts["heads"]):
        for weight in model.parameters():
            weight.data.fill_(value)
    for model in (models.target, models.draft):
        model.prepare_for_decoding()
    spec = make_method("ssd", rounds=1) if drafts == "ssd" else method(drafts, tree)
    with pytest.raises(FloatingPointError, match=r"prompt prompt-0 .* step 0, from the draft model or the heads"):
        generate(models, spec, range(2))


def test_a_missing_draft_model_is_named(models):
    with pytest.raises(ValueError, match="needs a draft model"):
        make_decoder(DecodingModels(models.target), method("coupled", "chain3"), SamplingConfig())
