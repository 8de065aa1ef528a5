"""Tests of the whole measurement and of scores of images, on tiny random models: bookkeeping, not numbers."""

import copy
import math
from dataclasses import replace

import pandas as pd
import pytest
import torch

from helpers.tiny_quality import (
    BASELINE,
    EXACT,
    NUM,
    OPTIONS,
    REJECTED,
    RELAXED,
    SETTINGS,
    TOKENS,
    VOCAB,
    make_parts,
    make_records,
    measure,
    score_all,
)
from lantern.io import DamagedFileError, save_tensors
from lantern_pipeline.data.image_sources import SceneSource
from lantern_pipeline.measure.exactness.likelihood import score_tokens
from lantern_pipeline.measure.quality.clip_score import ClipScore
from lantern_pipeline.measure.quality.evaluate_images import (
    ImageScores,
    load_scores,
    save_scores,
    score_records,
)
from lantern_pipeline.measure.quality.feature_extractors import classifier_features
from lantern_pipeline.measure.quality.fidelity import ClassifierFidelity, feature_scale
from lantern_pipeline.measure.quality.metric_models import MetricModels
from lantern_pipeline.measure.quality.prompt_accuracy import AccuracyScore
from lantern_pipeline.measure.quality.quality_tables import _mean_scores
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig
from lantern_pipeline.world.clip import ClipConfig, ClipModel, ClipScorer


@pytest.fixture(scope="module")
def source():
    return SceneSource(0, image_size=48, num_train=16)


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(1)
    return AttributeClassifier(AttributeClassifierConfig(width=8, num_features=8)).eval()


@pytest.fixture(scope="module")
def clip_scorer(source):
    torch.manual_seed(2)
    config = ClipConfig(source.vocabulary, embed_dim=8, width=4, text_width=32, text_layers=1)
    return ClipScorer.from_model(ClipModel(config))


@pytest.fixture(scope="module")
def models(source, classifier, clip_scorer):
    scores = ClipScore(clip_scorer), AccuracyScore(classifier)
    return MetricModels(
        **make_parts(source.vocabulary), scores=scores, of_sets={"fidelity": ClassifierFidelity(classifier)}
    )


@pytest.fixture(scope="module")
def records(source):
    codes = torch.randint(VOCAB, (NUM, TOKENS), generator=torch.Generator().manual_seed(0))
    changed = codes.clone()
    changed[:2, 7] = (changed[:2, 7] + 1) % VOCAB
    drawn = {BASELINE: codes, EXACT: codes, RELAXED: changed, REJECTED: changed}
    prompts = source.prompts("seen", NUM)
    made = {spec.method_id: make_records(rows, spec, prompts) for spec, rows in drawn.items()}
    made["proximity-k5"].is_substituted[:2, 7] = True
    return made


@pytest.fixture(scope="module")
def measured(records, source, models):
    arguments = (records, source.prompts("seen", NUM), source, models)
    return measure(*arguments, **OPTIONS)


@pytest.fixture(scope="module")
def prompts(source):
    return source.prompts("seen", NUM)


def test_one_row_per_method_and_ceiling_and_equal_codes_have_equal_numbers(measured):
    rows, images = measured[0].set_index("method_id"), measured[1]
    assert rows.index.tolist() == ["autoregressive", "coupled", "proximity-k5", "pp", "real", "reconstruction"]
    assert len(images) == 6 * NUM and not images.duplicated(["method_id", "prompt_id"]).any()
    assert (images["repeat"] == "s0n0").all() and (rows.cfg_scale == 3.0).all()
    identity = rows.loc["proximity-k5", ["method", "tree", "drafts", "k"]]
    assert identity.tolist() == ["proximity", "chain3", "coupled", 5]
    quality = ["nll", "precision", "recall", "clip_score", "prompt_accuracy"]
    quality += ["frechet_distance", "kernel_distance"]
    assert rows.loc["coupled", quality].equals(rows.loc["autoregressive", quality].rename("coupled"))
    assert rows.loc["proximity-k5", "nll"] != rows.loc["autoregressive", "nll"]
    assert rows.tokens_equal_autoregressive.tolist()[:4] == pytest.approx([1, 1, 4 / 6, 4 / 6])
    counts = images.groupby("method_id").substitutions.sum(min_count=1)
    assert (counts["proximity-k5"], counts["coupled"]) == (2, 0)
    assert math.isnan(counts["pp"])  # with rejection sampling, the target samples no token
    assert math.isnan(rows.loc["real", "nll"])  # real images have no codes, and reconstructions have
    assert rows.loc["reconstruction", "nll"] > 0


def test_scores_are_those_of_every_image_alone(measured, records, models, prompts, clip_scorer):
    """Nothing is shared between methods. The likelihood of an image is the mean over its tokens."""
    images = measured[1].set_index(["method_id", "prompt_id"])
    for i, prompt in enumerate(prompts):
        pixels = models.tokenizer.decode(records["proximity-k5"].codes[i : i + 1].long()).float()
        expected = float(clip_scorer.score(pixels, [prompt.text]))
        assert images.loc[("proximity-k5", prompt.id), "clip_score"] == pytest.approx(expected, abs=1e-5)
    texts = [prompt.text for prompt in prompts]
    for method_id, record in records.items():
        tokens = score_tokens(models.target_model, models.text_encoder, record.codes, texts, cfg_scale=3.0)
        assert tokens.mean(dim=1).numpy() == pytest.approx(images.loc[method_id, "nll"].to_numpy(), abs=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_batch_size_does_not_matter(batch_size, measured, records, source, models):
    arguments = (records, source.prompts("seen", NUM), source, replace(models, batch_size=batch_size))
    again = measure(*arguments, **OPTIONS)
    pd.testing.assert_frame_equal(again[0], measured[0], rtol=1e-3, atol=1e-5)
    pd.testing.assert_frame_equal(again[1], measured[1], rtol=1e-3, atol=1e-5)


def test_distances_are_from_the_autoregressive_image_of_the_same_prompt(measured, records, source, models, classifier):
    images = measured[1].set_index("method_id")
    assert (images.loc["coupled", ["pixel_mse", "feature_distance"]] == 0).all(axis=None)
    pixels = {name: (models.tokenizer.decode(records[name].codes.long()).float() + 1) / 2 for name in ("pp", "coupled")}
    expected = (pixels["pp"] - pixels["coupled"]).square().mean(dim=(1, 2, 3))
    assert images.loc["pp", "pixel_mse"].to_numpy() == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-9)
    assert (expected[:2] > 0).all()
    codes = models.tokenizer.encode(source.images("seen", range(NUM, NUM + SETTINGS.num_reference)))
    _, std = feature_scale(classifier_features(classifier, models.tokenizer.decode(codes).float()))
    features = {name: classifier_features(classifier, 2 * value - 1) for name, value in pixels.items()}
    distance = ((features["pp"] - features["coupled"]) / std).norm(dim=1) / features["pp"].shape[1] ** 0.5
    assert images.loc["pp", "feature_distance"].to_numpy() == pytest.approx(distance.numpy(), rel=1e-3, abs=1e-6)


def test_a_method_is_scored_where_it_differs_whatever_is_scored_beside_it(records, models, prompts, tmp_path):
    scores = score_all(records, prompts, replace(models, batch_size=5))
    numbers = {name: found.prompts.tolist() for name, found in scores.items()}
    assert numbers == {"autoregressive": [*range(NUM)], "coupled": [], "proximity-k5": [0, 1], "pp": [0, 1]}
    two = {name: records[name] for name in ("pp", "autoregressive")}
    pair = score_records(two, prompts, replace(models, batch_size=1))
    for name, column in pair["pp"].columns.items():
        found = scores["pp"].complete(scores["autoregressive"].scores).columns[name]
        assert torch.allclose(column, found, atol=1e-5), name
    save_scores(tmp_path / "scores.safetensors", scores.values())
    for name, stored in load_scores(tmp_path / "scores.safetensors").items():
        found = scores.pop(name)
        assert stored.method_id == name and stored.prompts.equal(found.prompts)
        for part in ("features", "columns"):
            expected, read = getattr(found.scores, part), getattr(stored.scores, part)
            assert [*read] == [*expected] and all(read[key].equal(values) for key, values in expected.items())
        assert [*stored.scores.features] == (["fidelity"] if len(found.prompts) else [])
    assert not scores


def test_a_file_of_something_else_is_named(tmp_path):
    save_tensors(tmp_path / "codes.safetensors", {"codes": torch.zeros(2)})
    with pytest.raises(DamagedFileError, match=r"codes\.safetensors holds no scores of images"):
        load_scores(tmp_path / "codes.safetensors")


class Redness:
    """Metric that is not in the table of metrics."""

    def describe(self):
        return {}

    def score(self, images, prompts):
        return {name: images[:, 0].mean(dim=(1, 2)).cpu() for name in ("whiteness", "yellowness", "redness", "shine")}


def test_an_unknown_column_is_named(records, source, models, prompts):
    with pytest.raises(ValueError, match=r"redness is measured but has no row in measure\.registry\.METRICS"):
        measure(records, prompts, source, replace(models, scores=(Redness(),)), **OPTIONS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_numbers(measured, records, source, models, classifier, clip_scorer):
    reader = copy.deepcopy(classifier).cuda()
    on_gpu = MetricModels(
        *(copy.deepcopy(model).cuda() for model in (models.tokenizer, models.target_model)),
        models.text_encoder,
        models.batch_size,
        (ClipScore(copy.deepcopy(clip_scorer).to("cuda")), AccuracyScore(reader)),
        {"fidelity": ClassifierFidelity(reader)},
    )
    arguments = (records, source.prompts("seen", NUM), source, on_gpu)
    rows = measure(*arguments, **OPTIONS)[0]
    columns = ["nll", "clip_score", "prompt_accuracy"]
    assert rows[columns].to_numpy() == pytest.approx(measured[0][columns].to_numpy(), rel=1e-2, abs=1e-3, nan_ok=True)


def test_a_mean_is_over_the_images_that_have_a_value():
    columns = {"prompt_accuracy": torch.tensor([0.5, torch.nan, 1.0])}
    assert _mean_scores(ImageScores({}, columns)) == {"prompt_accuracy": 0.75}


def test_without_held_out_images_there_are_no_ceilings_and_no_reference_of_the_classifier(records, models, prompts):
    with pytest.raises(ValueError, match="compares with held-out images, which only data"):
        measure(records, prompts, None, models, **OPTIONS)
    rows, images = measure(records, prompts, None, replace(models, of_sets={}), **OPTIONS)
    assert rows["method_id"].tolist() == list(records) and len(images) == len(records) * NUM
    absent = {"frechet_distance", "precision", "reference", "feature_distance"}
    assert not absent & {*rows.columns, *images.columns} and rows["clip_score"].notna().all()
