"""Decoding: exactness as an equality, laws by chi-square, independence of batch and order, no host synchronisation."""

from __future__ import annotations

import pytest
import torch

from conftest import make_models, make_prompts
from lantern.acceptance.base import ByEquality
from lantern.decoding import DecodingModels, Generation, make_decoder
from lantern.draft_tree import longest_path, static_tree
from lantern.methods import MethodSpec
from lantern.models.transformer import cast_weights
from lantern.sampling import SamplingConfig
from lantern.tree_shapes import DynamicTreeOptions, tree_choices
from lantern_pipeline.measure.losslessness import compare_with_autoregressive

TREES = {
    "chain3": tree_choices("chain3"),
    "bushy": [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)],
    "mc_sim_7b_63": tree_choices("mc_sim_7b_63"),
    "dynamic": DynamicTreeOptions(num_nodes=9, depth=2, top_k=4),
}
AUTOREGRESSIVE = MethodSpec.of(name="autoregressive")


def generate(
    models: DecodingModels,
    spec: MethodSpec,
    batch: int = 5,
    ids: list[str] | None = None,
    **sampling,
) -> Generation:
    sampling = SamplingConfig(**{"cfg_scale": 2.0, **sampling})
    features, mask = make_prompts(models, 5)
    ids = ids or [f"prompt-{i}" for i in range(batch)]
    rows = torch.tensor([int(i.split("-")[1]) % 5 for i in ids])
    decoder = make_decoder(models, spec, sampling)
    return decoder.generate(features[rows], mask[rows], [decoder.make_noise(7, i) for i in ids])


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 6, "top_p": 0.9}]
)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafts", ["top", "coupled"])
def test_exact_decoding_emits_the_autoregressive_tokens(models, drafts, tree, sampling, batch):
    expected = generate(models, AUTOREGRESSIVE, batch, **sampling)
    spec = method(tree=tree, drafts=drafts)
    result = generate(models, spec, batch, **sampling)
    assert torch.equal(result.codes, expected.codes)
    assert (result.step_lengths.sum(1) == 16).all()
    assert batch == 1 or (result.target_forwards < 16).any()  # the equality is not won by never accepting a draft
    assert not result.is_substituted.any()


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafts", ["top", "coupled"])
def test_in_bfloat16_tokens_part_only_where_candidates_are_close(drafts, tree):
    """Forwards over one and over several nodes round differently; guidance, filters and the head stay float32."""
    models = make_models(seed=5)
    cast_weights(models.target, torch.bfloat16).prepare_for_decoding()
    cast_weights(models.draft, torch.bfloat16).prepare_for_decoding()
    assert models.target.read_logits(torch.zeros(1, models.target.config.dim)).dtype == torch.float32
    spec, (features, mask) = method(tree=tree, drafts=drafts), make_prompts(models, 5)
    found = []
    for part in (AUTOREGRESSIVE, spec):
        decoder = make_decoder(models, part, SamplingConfig(cfg_scale=2.0), records_margins=part.drafts is None)
        fields = [decoder.make_noise(7, f"prompt-{i}") for i in range(5)]
        found.append(decoder.generate(features, mask, fields))
    expected, result = found
    equality = compare_with_autoregressive(result.codes, expected.codes, expected.margins)
    assert equality.margin_at_difference.nan_to_num(0.0).max() < 0.1  # nats; typical margins are ten times that
    assert expected.margins.median() > 0.3
    assert (result.target_forwards < 16).any()


def method(**parts) -> MethodSpec:
    return MethodSpec.of(name="method", tree_shape=TREES.get(parts.get("tree")), **parts)


NEAR = {"neighbours": "l2_normalised", "k": 4}
METHODS = {
    "additive": method(tree="dynamic", drafts="top", acceptance="additive", delta=0.2, **NEAR),
    "multiplicative": method(tree="bushy", drafts="sampled", acceptance="multiplicative", lambda_=3.0, **NEAR),
    "bounded": method(tree="dynamic", drafts="top", acceptance="bounded", delta=0.2, **NEAR),
    "proximity": method(tree="bushy", drafts="coupled", acceptance="proximity", **NEAR | {"k": 3}),
}


@pytest.mark.parametrize("name", METHODS)
def test_relaxation_accepts_more_than_exact_decoding(models, name):
    """Over 40 images; the exact counterpart shares tree, drafts and noise."""
    spec = METHODS[name]
    exact = method(tree=spec.tree, drafts=spec.drafts)
    ids = [f"prompt-{i}" for i in range(40)]
    relaxed_forwards = generate(models, spec, 40, ids).target_forwards.sum()
    assert relaxed_forwards < generate(models, exact, 40, ids).target_forwards.sum()


def test_substitutions_are_counted_where_the_emitted_token_is_not_the_targets(models):
    ids = [f"prompt-{i}" for i in range(20)]
    relaxed = generate(models, METHODS["proximity"], 20, ids)
    exact = generate(models, AUTOREGRESSIVE, 20, ids=ids)
    assert relaxed.is_substituted.any()
    # up to the first substitution an image is the autoregressive one, and there it departs
    for row in range(20):
        where = relaxed.is_substituted[row].nonzero()
        first = int(where[0]) if len(where) else 16
        assert torch.equal(relaxed.codes[row, :first], exact.codes[row, :first])
        assert first == 16 or relaxed.codes[row, first] != exact.codes[row, first]


@pytest.mark.parametrize("tree", [[(0,), (0, 0)], [(0,), (1,), (0, 0), (1, 0)]], ids=["chain", "siblings"])
@pytest.mark.parametrize("drafts", ["sampled", "top", "coupled"])
def test_emitted_pairs_have_the_targets_distribution(drafts, tree):
    """Chi-square of the first two tokens over 4000 images against the enumeration; fails once in 10^4 by chance.

    Both acceptance and rejection are common at the root, so that what is emitted after either has its say.
    """
    models = make_models(vocab_size=4, grid=2, seed=3)
    target, count = models.target, 4000
    features, mask = make_prompts(models, 1)
    features, mask = features.expand(count, -1, -1), mask.expand(count, -1)
    spec = MethodSpec.of(name="pair", tree="pair", tree_shape=tree, drafts=drafts)
    decoder = make_decoder(models, spec, SamplingConfig(cfg_scale=1.0))
    generation = decoder.generate(features, mask, [decoder.make_noise(11, f"p{i}") for i in range(count)])
    codes = generation.codes
    with torch.inference_mode():
        first = target.head(target(features[:1], mask[:1], codes[:1, :0])[:, -1]).softmax(-1)[0].double()
        rows = torch.arange(4)[:, None]
        second = target.head(target(features[:4], mask[:4], rows)[:, -1]).softmax(-1).double()
    expected = (first[:, None] * second).flatten() * count
    observed = torch.bincount(codes[:, 0] * 4 + codes[:, 1], minlength=16).double()
    kept = expected > 1
    statistic = ((observed - expected) ** 2 / expected)[kept].sum()
    degrees = int(kept.sum()) - 1
    # 99.99th percentile by the Wilson-Hilferty approximation
    limit = degrees * (1 - 2 / (9 * degrees) + 3.72 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert statistic < limit, (float(statistic), limit)
    assert 0.15 < (generation.accepted_lengths[:, 0] == 0).float().mean() < 0.85


class AcceptsByDepth(ByEquality):
    """Accepts every draft down to a depth, whatever it is."""

    depths: int

    def judge_all(self, scores, proposal):
        _, own, best = super().judge_all(scores, proposal)
        return (proposal.tree.depths <= self.depths).expand(proposal.tokens.shape), own, best


@pytest.mark.parametrize(("depths", "forwards"), [(0, 16), (1, 9), (3, 5)])
def test_number_of_forwards_when_never_sometimes_always_accepting(models, depths, forwards):
    """16 tokens on a chain of 3: the prefill emits one, each step one more than it accepts."""
    features, mask = make_prompts(models, 2)
    spec, sampling = method(tree="chain3", drafts="coupled"), SamplingConfig(cfg_scale=2.0)
    decoder = make_decoder(models, spec, sampling)
    decoder.rule = AcceptsByDepth()
    decoder.rule.depths = depths
    generation = decoder.generate(features, mask, [decoder.make_noise(0, i) for i in "ab"])
    assert generation.target_forwards.tolist() == [forwards, forwards]
    assert generation.step_lengths.sum(1).tolist() == [16, 16]
    assert generation.step_lengths[0, : forwards - 1].tolist() == [1] + [depths + 1] * (forwards - 2)


def test_longest_path_by_eye():
    """Root 0 with children 1 and 2, 1 with child 3, 2 with child 4."""
    tree = static_tree([(0,), (1,), (0, 0), (1, 0)])
    accepted = torch.tensor(
        [
            [False, True, False, True, False],  # 0-1-3
            [False, False, True, True, False],  # 3's parent is not accepted: 0-2
            [False, True, True, True, True],  # two longest paths: the first
            [True, False, False, True, True],  # none: the root alone
        ]
    )
    path, counts = longest_path(tree, accepted)
    assert path.tolist() == [[0, 1, 3], [0, 2, 2], [0, 1, 3], [0, 0, 0]]
    assert counts.tolist() == [2, 1, 2, 0]


def test_logits_that_are_not_finite_name_prompt_and_step():
    models = make_models(seed=5)
    with torch.no_grad():
        models.target.head.weight[3, 0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"prompt prompt-0 .* step"):
        generate(models, AUTOREGRESSIVE, 2)


def test_missing_parts_are_named(models):
    bare = DecodingModels(models.target)
    with pytest.raises(ValueError, match="needs a draft model"):
        make_decoder(bare, method(tree="chain3", drafts="coupled"), SamplingConfig())
    with pytest.raises(ValueError, match="needs the 3 nearest codes, got no table"):
        make_decoder(DecodingModels(models.target, models.draft), METHODS["proximity"], SamplingConfig())
