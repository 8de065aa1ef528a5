"""Tests of ablations on tiny random models: the decoders that they make, and each point."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.models.draft import DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.prompts import Prompt
from lantern.state import DecodingModels
from lantern.tree_shapes import DynamicTreeOptions, tree_choices
from lantern_models.images.shapes import ImageTokenizer, TokenizerConfig
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.data.image_sources import SceneSource
from lantern_pipeline.measure import ablations
from lantern_pipeline.measure.ablations import AblationStudy
from lantern_pipeline.measure.quality.clip_score import ClipScore
from lantern_pipeline.measure.quality.metric_models import MetricModels
from lantern_pipeline.measure.quality.prompt_accuracy import AccuracyScore
from lantern_pipeline.plan.methods import expand_ablations
from lantern_pipeline.schema.run_config import TotalVariationNodes
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig
from lantern_pipeline.world.clip import ClipConfig, ClipModel, ClipScorer

NUM, VOCAB = 4, 24
SAMPLING = {"cfg_scale": 2.0, "top_k": 6, "top_p": 1.0, "filter_order": "top_k_first"}
IDENTITY = ["ablation", "method", "tree", "drafts", "acceptance", "residual", "neighbours", "k", "delta", "lambda_"]
IDENTITY += ["method_id", "temperature", "cfg_scale", "top_k", "drafter_steps", "target_cross_entropy"]
NEAR = {"preset": "proximity", "k": 6}


@pytest.fixture(scope="module")
def study():
    torch.manual_seed(0)
    source = SceneSource(0, image_size=48, num_train=16)
    sizes = {"dim": 32, "num_layers": 1, "num_heads": 2, "vocab_size": VOCAB, "grid": 4}
    target = TargetModel(TargetConfig(**sizes, num_text_tokens=16, caption_dim=8, ffn_multiple=16)).eval()
    with torch.no_grad():
        target.head.weight.mul_(6)  # far from uniform
    tokenizer = TokenizerConfig(grid=4, codebook_size=VOCAB, encoder_width=8, decoder_width=8, decoder_blocks=1)
    attribute_classifier = AttributeClassifier(AttributeClassifierConfig(width=8, num_features=8)).eval()
    clip = ClipModel(ClipConfig(source.vocabulary, embed_dim=8, width=4, text_width=32, text_layers=1))
    measuring = MetricModels(
        ImageTokenizer(tokenizer).eval(),
        target,
        WordEmbeddingEncoder(source.vocabulary, 8, 16),
        5,
        (ClipScore(ClipScorer.from_model(clip)), AccuracyScore(attribute_classifier)),
    )

    def models(seed):
        draft = DraftModel.from_target(target, seed).prepare_for_decoding()
        return DecodingModels(copy.deepcopy(target).prepare_for_decoding(), draft)

    codebook = torch.randn(VOCAB, 4)
    return AblationStudy(
        models={None: models(0), 3: models(1)},
        tables={name: nearest_codes(codebook, 10, name) for name in ("l2", "random")},
        measuring=measuring,
        cross_entropy=3.5,
        prompts=source.prompts("seen", NUM),
        total_variation=TotalVariationNodes(num_images=3, max_nodes=30, num_samples=4),
        bootstrap_resamples=20,
        batch_size=3,
        seed=1,
    )


def expand(**grid):
    config = load_config([ROOT / "config.yaml"])
    config["draft_tree"] = {"static": "chain3", "dynamic": {"num_nodes": 6, "depth": 1, "top_k": 4}}
    config["codebook"]["neighbours"] = "l2"
    config["sampling"] = SAMPLING
    config["ablations"]["grids"] = {"mine": grid}
    return expand_ablations(typed_config(config))["mine"]


@pytest.fixture
def seen(monkeypatch):
    """Return a list of the arguments of all decoders that were made during the test."""
    made = []

    def watched(models, spec, sampling, **options):
        made.append({"models": models, "spec": spec, "sampling": sampling, **options})
        return make_decoder(models, spec, sampling, **options)

    monkeypatch.setattr(ablations, "make_decoder", watched)
    return made


@pytest.fixture(scope="module")
def measured(study):
    points = expand(methods=[{"preset": ["coupled", "eagle2", "eagle1"]}, {**NEAR, "neighbours": ["l2", "random"]}])
    rows, images = study.run("mine", points)
    return rows.set_index("method_id", drop=False), images


def test_one_row_per_point_with_what_identifies_it_and_counts_over_its_images(measured):
    rows, images = measured
    ids = ["autoregressive", "coupled", "eagle2", "eagle1", "proximity-l2-k6", "proximity-random-k6"]
    assert rows.index.tolist() == ids
    assert set(IDENTITY) <= set(rows.columns)
    assert (rows["ablation"] == "mine").all() and (rows["num_images"] == NUM).all()
    assert rows["drafter_steps"].isna().all() and (rows["top_k"] == 6).all() and (rows["temperature"] == 1).all()
    assert set(IDENTITY) | {"prompt_id", "num_tokens", "target_forwards", "nll", "substitutions"} <= set(images.columns)
    assert len(images) == len(ids) * NUM and not images.duplicated(["method_id", "prompt_id"]).any()
    for name, frame in images.groupby("method_id"):
        assert rows.loc[name, "tokens_per_forward"] == frame["num_tokens"].sum() / frame["target_forwards"].sum()
        assert (frame["num_tokens"] == 16).all()
    substitutions = images.groupby("method_id")["substitutions"].mean()
    assert substitutions["proximity-l2-k6"] > 0 == substitutions["coupled"]
    assert rows.loc["proximity-l2-k6", "substitutions"] == substitutions["proximity-l2-k6"]
    assert np.isnan(rows.loc["eagle1", "substitutions"])  # with rejection sampling, the target samples no token


def test_points_are_paired_with_autoregressive_decoding_by_prompt(measured):
    rows, images = measured
    for name in ("autoregressive", "coupled", "eagle2"):
        assert rows.loc[name, "tokens_equal_autoregressive"] == 1
        assert rows.loc[name, ["nll_change", "nll_change_low", "nll_change_high"]].tolist() == [0, 0, 0]
        assert rows.loc[name, "substitutions"] == 0
        assert rows.loc[name, "prompt_accuracy"] == rows.loc["autoregressive", "prompt_accuracy"]
    assert rows.loc["autoregressive", "tokens_per_forward"] == 1 < rows.loc["coupled", "tokens_per_forward"]
    nll = images.pivot(index="prompt_id", columns="method_id", values="nll")
    for name in ("proximity-l2-k6", "proximity-random-k6"):
        change = (nll[name] - nll["autoregressive"]).to_numpy()
        assert np.abs(change).max() > 0
        assert rows.loc[name, "nll_change"] == pytest.approx(change.mean())
        assert change.min() <= rows.loc[name, "nll_change_low"] <= rows.loc[name, "nll_change_high"] <= change.max()
        assert rows.loc[name, "nll"] == pytest.approx(nll[name].mean())
        assert rows.loc[name, "tokens_equal_autoregressive"] < 1


def test_jacobi_drafts_need_no_draft_model_and_their_total_variation_is_measured(study):
    models = study.models[None]
    alone = replace(study, models={None: replace(models, draft=None)})
    near = {**NEAR, "drafts": "jacobi", "tree": ["chain3", "chain3k2d1"]}
    bounded = {"preset": "lantern", "drafts": "jacobi", "tree": "chain3", "k": 6, "delta": 0.3}
    rows, _ = alone.run("mine", expand(methods=[{"preset": "jacobi", "tree": ["chain3", "chain3k2d1"]}, near, bounded]))
    exact, relaxed = (rows[rows["acceptance"] == name] for name in ("exact", "proximity"))
    assert (exact["tokens_equal_autoregressive"] == 1).sum() == 3 and exact["tv_mean"].isna().all()
    assert (exact["substitution_rate"] == 0).all()
    assert 0.001 < relaxed["tv_mean"].iloc[0] < 0.999
    assert relaxed["tv_mean"].iloc[1:].isna().all()  # siblings of many distributions
    assert (rows[rows["acceptance"] == "additive"]["tv_mean"] > 0).all()
    assert relaxed["substitution_rate"].tolist() == (relaxed["substitutions"] / 16).tolist()


def test_every_change_of_the_sampling_reaches_the_decoder(study, seen):
    points = expand(
        methods=[{"preset": "coupled", "temperatures": [0, 0.5]}], sampling={"cfg_scale": [1, 4], "top_p": [0.9]}
    )
    rows, _ = study.run("mine", points)
    found = {(made["spec"].name, made["sampling"].temperature, made["sampling"].cfg_scale) for made in seen}
    assert found == {
        (name, temperature, scale)
        for name in ("autoregressive", "coupled")
        for temperature in (0.0, 0.5)
        for scale in (1, 4)
    }
    assert len(seen) == 8 and all(made["sampling"].top_p == 0.9 and made["sampling"].top_k == 6 for made in seen)
    assert (rows["tokens_equal_autoregressive"] == 1).all() and (rows["nll_change"] == 0).all()
    assert rows.groupby(["temperature", "cfg_scale"]).size().tolist() == [2] * 4
    baseline = rows[rows["method"] == "autoregressive"]
    assert baseline["nll"].nunique() == 4  # every point has its own autoregressive images


def test_margins_are_recorded_of_autoregressive_decoding_alone_and_steps_run_as_the_config_says(study, seen):
    replace(study, stepping="eager").run("mine", expand(methods=[NEAR]))
    assert [made["records_margins"] for made in seen] == [True, False, False]  # the last for total variation
    assert {made["stepping"] for made in seen} == {"eager"}
    assert all(models.nearest_codes is None for models in study.models.values())  # shared, and left without a table


def test_each_point_has_its_draft_model_its_table_and_its_tree(study, seen):
    methods = [{"preset": "coupled"}, {**NEAR, "tree": "dynamic", "neighbours": "random"}]
    rows, images = study.run("mine", expand(methods=methods, drafter_steps=[3, None]))
    assert [made["spec"].name for made in seen] == ["autoregressive", "coupled", "proximity", "coupled", "proximity"]
    for made, steps in zip(seen, [None, 3, 3, None, None], strict=True):
        assert made["models"].draft is study.models[steps].draft
        is_random = made["models"].nearest_codes is study.tables["random"]
        assert is_random == (made["spec"].name == "proximity")
    shapes = [made["spec"].tree_shape for made in seen]
    assert shapes[:3] == [None, tree_choices("chain3"), DynamicTreeOptions(6, 1, 4)]
    assert rows["drafter_steps"].fillna(0).tolist() == [0, 3, 3, 0, 0]
    assert len(images) == 5 * NUM and images["drafter_steps"].fillna(0).nunique() == 2
    exact = rows[rows["method"] == "coupled"]
    assert (exact["tokens_equal_autoregressive"] == 1).all() and (exact["nll_change"] == 0).all()


@pytest.mark.parametrize("changes", [{"batch_size": 1}, {"batch_size": 4}], ids=str)
def test_numbers_do_not_depend_on_the_batches(study, measured, changes):
    rows, _ = replace(study, **changes).run(
        "mine", expand(methods=[{"preset": "eagle1"}, {**NEAR, "neighbours": ["l2"]}])
    )
    expected = measured[0].loc[rows["method_id"]].reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, expected, rtol=1e-4, check_dtype=False)


def test_prompts_without_a_known_scene_have_no_accuracy(study):
    backwards = [" ".join(reversed(prompt.text.split())) for prompt in study.prompts]  # known words, no caption
    free = replace(study, prompts=[Prompt(f"p{i}", text) for i, text in enumerate(backwards)])
    rows, images = free.run("mine", expand(methods=[{"preset": "coupled"}]))
    assert rows["prompt_accuracy"].isna().all() and images["prompt_accuracy"].isna().all()
    assert rows["nll"].notna().all()
