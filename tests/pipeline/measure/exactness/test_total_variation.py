"""Tests of total variation: which methods have it, how it is computed, and the columns next to it."""

from __future__ import annotations

import pytest
import torch

from helpers.tiny_models import make_models
from helpers.wrong_parts import AllAtOnce, OwnVerifier
from lantern.decoding import make_decoder
from lantern.generation import generate_records
from lantern.methods import MethodSpec, make_method
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern.tree_shapes import DynamicTreeOptions
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.measure.exactness.total_variation import COLUMNS, TotalVariationStudy
from lantern_pipeline.schema.run_config import TotalVariationNodes

PROMPTS = [Prompt(f"p{i}", text) for i, text in enumerate(["a red circle", "a blue square", "grass", "sand"])]
ENCODER = WordEmbeddingEncoder(None, 16, 5, 0)
PAIRS = ((0,), (1,), (0, 0), (1, 0))
DYNAMIC = DynamicTreeOptions(num_nodes=6, depth=2, top_k=3)
NEAR = {"acceptance": "additive", "neighbours": "l2", "k": 3, "delta": 0.3}
CLOSE = {"acceptance": "proximity", "neighbours": "l2", "k": 3}
# Method -> how its total variation is computed; whether the target samples a token at every node.
METHODS = {
    "autoregressive": (make_method("autoregressive"), "none", False),
    "lines": (make_method("zipar", window=2), "enumeration", False),
    "lines_with_drafts": (make_method("pjd", window=2), "none", False),
    "inexact": (make_method("sjd_pp", tree="chain3"), "none", False),
    "one_sampled": (MethodSpec.of("m", tree="chain3", drafts="sampled", **NEAR), "enumeration", False),
    "siblings": (MethodSpec.of("m", tree="mine", drafts="sampled", tree_shape=PAIRS, **NEAR), "monte_carlo", False),
    "top": (MethodSpec.of("m", tree="mine", drafts="top", tree_shape=PAIRS, **NEAR), "enumeration", True),
    "top_near": (MethodSpec.of("m", tree="mine", drafts="top", tree_shape=PAIRS, **CLOSE), "monte_carlo", True),
    "coupled": (MethodSpec.of("m", tree="chain3", drafts="coupled"), "coupling", True),
    "coupled_dynamic": (
        MethodSpec.of("m", tree="dynamic", drafts="coupled", tree_shape=DYNAMIC, **NEAR),
        "coupling",
        True,
    ),
    "coupled_at_0": (MethodSpec.of("m", tree="chain3", drafts="coupled", **NEAR | {"delta": 0}), "coupling", True),
    "coupled_near": (MethodSpec.of("m", tree="chain3", drafts="coupled", **NEAR), "enumeration", True),
    "coupled_close": (MethodSpec.of("m", tree="chain3", drafts="coupled", **CLOSE), "enumeration", True),
    "jacobi_near": (MethodSpec.of("m", tree="chain3", drafts="jacobi", **NEAR), "enumeration", True),
    "hybrid_near": (MethodSpec.of("m", tree="chain2+chain2", drafts="hybrid", **NEAR), "coupling", True),
}


def measure(names, temperature=1.0):
    """Measure the methods with these names, which are listed above."""
    models, sampling = make_models(), SamplingConfig(temperature=temperature, cfg_scale=2.0)
    decoders = [make_decoder(models, METHODS[name][0], sampling) for name in names]
    rows = {}
    for name, decoder in zip(names, decoders, strict=True):
        records = generate_records(decoder, PROMPTS, ENCODER, run_seed=3, batch_size=4)
        study = TotalVariationStudy(
            make_models(is_prepared=False).target,  # the same weights
            ENCODER,
            PROMPTS[:3],
            PROMPTS,
            torch.randn(12, 4, generator=torch.Generator().manual_seed(0)),
            TotalVariationNodes(num_images=3, max_nodes=48, num_samples=20),
            {"num_resamples": 20, "seed": 3},
            batch_size=3,
        )
        table = study.measure_methods([decoder], {decoder.spec.method_id: records})
        assert tuple(table.columns) == COLUMNS
        rows[name] = table.iloc[0]
    return rows


@pytest.mark.parametrize("name", METHODS)
def test_a_total_variation_is_computed_where_the_drafts_distribution_is_known(name):
    _, kind, draws_tokens = METHODS[name]
    row = measure([name])[name]
    is_measured = kind in ("enumeration", "monte_carlo")
    assert row["kind"] == kind and (0 < row["tv_mean"] < 1) == is_measured
    assert (row["monte_carlo_error"] > 0) == (kind == "monte_carlo")
    assert (row["num_images"] == 3) == is_measured and 0 <= row["law_p"] <= 1
    assert (row["substitution_rate"] >= 0) == draws_tokens
    has_bound = is_measured and name not in ("lines", "top_near", "coupled_close")
    assert (row["tv_share_above_delta"] >= 0) == has_bound
    if draws_tokens:
        assert (row["substitution_rate"] > 0) == (name not in ("coupled", "coupled_at_0"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("top", "none"), ("lines", "none"), ("coupled_near", "coupling"), ("coupled_close", "coupling")],
)
def test_no_total_variation_is_computed_at_temperature_0(name, kind):
    row = measure([name], temperature=0.0)[name]
    assert row["kind"] == kind and row["tv_mean"] != row["tv_mean"]
    assert row["law_p"] != row["law_p"]  # greedy images have no distribution to test
    assert (row["substitution_rate"] > 0) == (name != "lines")


@pytest.mark.parametrize(("drafts", "kind"), [("top", "none"), ("coupled", "coupling")])
def test_a_verifier_of_whole_trees_has_no_total_variation_of_nodes(monkeypatch, drafts, kind):
    monkeypatch.setattr(OwnVerifier, "kind", AllAtOnce)
    monkeypatch.setattr(OwnVerifier, "needs", ("deterministic",))
    spec = MethodSpec.of("m", tree="chain3", drafts=drafts, acceptance="helpers.wrong_parts:OwnVerifier")
    monkeypatch.setitem(METHODS, "whole_trees", (spec, kind, True))
    row = measure(["whole_trees"])["whole_trees"]
    assert row["kind"] == kind and row["substitution_rate"] == 0
