"""Tests of the whole measurement with published metric models, all or some of them, up to the tables."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from helpers.configs import load_config
from helpers.paths import ROOT
from helpers.published_stand_ins import TINY_CLIP, tiny_clip, write_pictures
from helpers.tiny_quality import BASELINE, EXACT, RELAXED, TOKENS, VOCAB, make_parts, make_records
from helpers.tiny_quality import SETTINGS as OF_QUALITY
from helpers.tiny_quality import measure as measure_all
from lantern.io import save_tensors
from lantern.models.stored import load_model, save_model
from lantern.prompts import Prompt
from lantern_pipeline.data.image_sources import SceneSource
from lantern_pipeline.measure.quality import fidelity as of_sets
from lantern_pipeline.measure.quality.clip_score import ClipScore, load_open_clip
from lantern_pipeline.measure.quality.feature_extractors import Extractor
from lantern_pipeline.measure.quality.fidelity import ClassifierFidelity
from lantern_pipeline.measure.quality.metric_models import MetricModels, load_metric_models, load_parts
from lantern_pipeline.measure.quality.prompt_accuracy import AccuracyScore
from lantern_pipeline.measure.quality.quality_tables import hash_prompts
from lantern_pipeline.measure.quality.reference_statistics import measure_reference
from lantern_pipeline.measure.registry import DECODING, METRICS, SET_KEYS
from lantern_pipeline.schema.run_config import MetricChoices
from lantern_pipeline.tables.comparisons import build_paired
from lantern_pipeline.tables.markdown import markdown_table, method_cells, results_table
from lantern_pipeline.tables.summary import TV_COLUMNS, build_summary
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig
from lantern_pipeline.world.clip import ClipConfig, ClipModel, ClipScorer

NUM, WAY = 10, "centre_lanczos_32"
NEAR = replace(RELAXED, method_id="near")
FIDELITY_SETTINGS = OF_QUALITY.model_copy(update={"prc_neighbours": 3})
SETTINGS = {"bootstrap_resamples": 20, "headline_prompt_set": "coco", "headline_temperature": 1.0}
PROMPTS = [Prompt(f"coco-{i}", f"a photo of {i} dogs in the snow") for i in range(NUM)]
PLACE = {"prompt_set": "coco", "split": "val", "repeat": "s0n0", "seed": 0}
ALL = {"fidelity": "inception", "clip": "openai", "hps": True}
OFF = {"fidelity": None, "efficientnet": False, "clip": None, "prompt_accuracy": False, "hps": False}
NOTHING = load_config([ROOT / "config.yaml"])["metrics"]["published"]


class Colours(nn.Module):
    """Extractor whose features are the mean colours of a grid of squares."""

    def __init__(self, side):
        super().__init__()
        self.side, self.scale = side, nn.Parameter(torch.tensor(1 / 255), requires_grad=False)

    def forward(self, pixels):
        return (nn.functional.adaptive_avg_pool2d(pixels.float() * self.scale, self.side).flatten(1),)


@pytest.fixture(scope="module")
def extractors():
    return {
        "inception": Extractor("colours/12", "a" * 64, Colours(2)),
        "vgg16": Extractor("colours/3", "b" * 64, Colours(1)),
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory, extractors):
    folder = tmp_path_factory.mktemp("files")
    save_file(tiny_clip(2).state_dict(), folder / "clip.safetensors")
    save_file(tiny_clip(3).state_dict(), folder / "hps.safetensors")
    (folder / "tiny-clip.json").write_text(json.dumps(TINY_CLIP))
    images = write_pictures(folder / "images", 9, seed=0, sizes=((40, 30),))
    save_tensors(folder / "features.safetensors", *measure_reference(images, "coco_val", extractors, WAY))
    features = np.random.default_rng(0).uniform(size=(30, 12))
    np.savez(folder / "statistics.npz", mu=features.mean(0), sigma=np.cov(features.T))
    return folder


@pytest.fixture(scope="module")
def models():
    return make_parts()


@pytest.fixture(scope="module")
def records():
    codes = torch.randint(VOCAB, (NUM, TOKENS), generator=torch.Generator().manual_seed(0))
    changed = codes.clone()
    changed[:4, 5] = (changed[:4, 5] + 1) % VOCAB
    drawn = {BASELINE: codes, EXACT: codes, NEAR: changed}
    return {spec.method_id: make_records(rows, spec, PROMPTS) for spec, rows in drawn.items()}


@pytest.fixture
def measure(files, models, records, extractors, monkeypatch):
    """Measure with the metrics that a config section `metrics` selects."""
    monkeypatch.setattr(of_sets, "load_extractors", lambda *arguments: extractors)

    def run(reference="features.safetensors", **metrics):
        published = {
            **NOTHING,
            "preprocessing": WAY,
            "clip_architecture": str(files / "tiny-clip.json"),
            "clip_prefix": "A photo depicts ",
            "hps_architecture": str(files / "tiny-clip.json"),
            "vgg16_layer": "fc2_relu",
            "reference": {"name": "coco_val", "images": "coco", "statistics": None},
        }
        paths = {"clip_weights": files / "clip.safetensors", "hps_weights": files / "hps.safetensors"}
        found = {**paths, "reference": files / reference}
        parts = load_parts(MetricChoices(**{**OFF, "published": published, **metrics}), found, "cpu")
        comparisons = {key: parts.pop(key) for key in SET_KEYS if key in parts}
        measuring = MetricModels(**models, of_sets=comparisons, scores=list(parts.values()))
        return measure_all(records, PROMPTS, None, measuring, settings=FIDELITY_SETTINGS, **PLACE)

    return run


def summarise(quality):
    """Return the table that the rule `summarise` makes of the quality."""
    times = [
        (name, prompt.id, 1.0 if name == "autoregressive" else 0.5)
        for name in quality[0]["method_id"]
        for prompt in PROMPTS
    ]
    latency = pd.DataFrame(times, columns=["method_id", "prompt_id", "seconds"]).assign(round=0, busy_elsewhere=0.0)
    latency = latency.assign(cpu_seconds=latency["seconds"], target_forwards=16, machine="a CPU")
    latency = latency.assign(prompt_set="coco", temperature=1.0, repeat="s0n0", stepping="eager")
    total_variation = pd.DataFrame(columns=["method_id", "prompt_set", "temperature", "repeat", *TV_COLUMNS])
    tables = quality[0], quality[1], latency, total_variation
    summary = build_summary(*tables, {0: 3.9}, settings=SETTINGS, seed=0)
    paired = build_paired(quality[1], latency, settings=SETTINGS, seed=0)
    return summary.set_index("method_id"), paired, markdown_table(method_cells(results_table(summary, SETTINGS)))


def test_every_published_metric_is_in_the_rows_with_what_it_was_measured_with(measure, files):
    quality = measure(**ALL)
    rows = quality[0].set_index("method_id")
    assert rows.index.tolist() == ["autoregressive", "coupled", "near"]  # no source of held-out images, no ceilings
    measured = ["nll", "clip_score", "hps", "fid", "kid", "kid_std", "precision", "recall"]
    assert np.isfinite(rows[measured].to_numpy(float)).all()
    assert rows.loc["coupled", measured].tolist() == rows.loc["autoregressive", measured].tolist()
    assert not {"prompt_accuracy", "all_correct"} & set(rows)
    row = rows.iloc[0]
    assert row.num_images == NUM and row.prompts_sha256 == hash_prompts(PROMPTS)["prompts_sha256"]
    assert (row.reference, row.num_reference, row.preprocessing) == ("coco_val", 9, WAY)
    assert (row.fid_extractor, row.fid_weights_sha256) == ("colours/12", "a" * 64)
    assert (row.prc_extractor, row.prc_weights_sha256) == ("colours/3", "b" * 64)
    assert row.clip_extractor == 'tiny-clip, prefix "A photo depicts "' and row.hps_extractor == "tiny-clip"
    assert row.clip_weights_sha256 != row.hps_weights_sha256 and len(row.reference_sha256) == 64
    rows = measure(reference="statistics.npz", fidelity="inception")[0]  # with statistics only, FID is the only metric
    assert np.isfinite(rows["fid"]).all()
    assert rows["num_reference"].isna().all()
    assert not {"kid", "kid_std", "precision", "recall"} & set(rows)


def test_prompts_that_clip_does_not_read_to_their_end_are_counted(measure, monkeypatch, caplog):
    # one word, and 80 tokens
    prompts = [*PROMPTS[:-2], *(replace(prompt, text="9" * 80) for prompt in PROMPTS[-2:])]
    monkeypatch.setitem(globals(), "PROMPTS", prompts)
    quality = measure(**ALL)
    assert quality[0]["clip_num_cut"].tolist() == quality[0]["hps_num_cut"].tolist() == [2, 2, 2]
    assert len([record for record in caplog.records if f"2 of {NUM} captions are cut" in record.getMessage()]) == 2
    assert summarise(quality)[0]["clip_num_cut"].tolist() == [2, 2, 2]


def test_images_are_those_of_their_prompts(measure, files, models, records):
    images = measure(clip="openai", hps=True)[1].set_index(["method_id", "prompt_id"])
    drawn = models["tokenizer"].decode(records["near"].codes.long()).float()
    texts, architecture = [prompt.text for prompt in PROMPTS], str(files / "tiny-clip.json")
    clip = load_open_clip(
        architecture, files / "clip.safetensors", prompt_prefix="A photo depicts ", preprocessing=WAY
    ).score(drawn, texts)
    hps = load_open_clip(architecture, files / "hps.safetensors").score(drawn, texts)
    # Images decoded in other batches may differ by a level of 256 in a pixel: 7e-5 of a score. Another order of prompts
    # or no prefix is noticed.
    assert images.loc["near", "clip_score"].to_numpy() == pytest.approx(clip.numpy(), abs=5e-4)
    assert images.loc["near", "hps"].to_numpy() == pytest.approx(hps.numpy(), abs=5e-4)


@pytest.mark.parametrize(
    "on", [ALL, {}, *({name: value} for name, value in ALL.items())], ids=lambda on: "+".join(on) or "nothing"
)
def test_tables_hold_what_was_measured_and_nothing_else(measure, on):
    quality = measure(**on)
    summary, paired, table = summarise(quality)
    assert summary["clip_score"].notna().all() == ("clip" in on) != summary["clip_score"].isna().all()
    for name in ("fid", "kid", "precision", "recall"):
        assert summary[name].notna().all() == ("fidelity" in on) != summary[name].isna().all()
    assert summary[["prompt_accuracy", "all_correct", "prompt_accuracy_change"]].isna().all(axis=None)
    assert np.isfinite(summary[["nll", "speedup", "tokens_equal_autoregressive"]].to_numpy(float)).all()
    measured = {"nll", "pixel_mse", "speedup"} | ({"clip_score"} if "clip" in on else set())
    assert measured <= set(paired["metric"]) and not {"prompt_accuracy", "feature_distance"} & set(paired["metric"])
    assert "nan" not in table
    assert ("hps" in quality[0]) == ("hps" in on) == ("hps" in quality[1])
    of_quality = [metric for metric in METRICS if metric.over != DECODING and not metric.is_distance]
    assert {metric.key for metric in of_quality if metric.column in quality[0]} == {None, *on}
    absent = {metric.key for metric in of_quality if metric.column not in quality[0]}
    assert absent == {*OFF, "fidelity"} - (set(on) - {"fidelity"})  # the classifier's distances have other names
    described = [name for name in quality[0] if name.endswith(("_extractor", "_weights_sha256"))]
    assert len(described) == 2 * sum({"fidelity": 2, "clip": 1, "hps": 1}[name] for name in on)


def test_the_attribute_classifier_needs_held_out_images(models, records):
    reader = AttributeClassifier(AttributeClassifierConfig(width=8, num_features=8)).eval()
    measuring = MetricModels(**models, of_sets={"fidelity": ClassifierFidelity(reader)})
    with pytest.raises(ValueError, match=r"which only data\.source .* have; .* metrics\.fidelity to null"):
        measure_all(records, PROMPTS, None, measuring, settings=FIDELITY_SETTINGS, **PLACE)


def test_what_the_embedded_world_chooses_is_what_is_put_together_by_hand(tmp_path, models, records):
    source = SceneSource(0, image_size=48, num_train=16)
    torch.manual_seed(0)
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("tokenizer", "attribute_classifier", "clip", "target")}
    save_model(paths["tokenizer"], models["tokenizer"])
    save_model(paths["attribute_classifier"], AttributeClassifier(AttributeClassifierConfig(width=8, num_features=8)))
    clip = ClipModel(ClipConfig(source.vocabulary, True, embed_dim=8, width=4, text_width=32, text_layers=1))
    save_model(paths["clip"], clip, {"num_steps": 1})
    save_model(paths["target"], models["target_model"])
    own = {"fidelity": "attribute_classifier", "clip": "own", "prompt_accuracy": True}
    metrics = MetricChoices(**{**OFF, **own, "published": NOTHING})
    files, encoder = {name: str(path) for name, path in paths.items()}, models["text_encoder"]
    loaded = load_metric_models(paths["tokenizer"], paths["target"], encoder, files, metrics, "cpu", 4)
    scorer = ClipScorer.from_checkpoint(paths["clip"], device="cpu")
    reader = load_model(paths["attribute_classifier"], AttributeClassifier)
    scores, comparisons = (ClipScore(scorer), AccuracyScore(reader)), {"fidelity": ClassifierFidelity(reader)}
    direct = MetricModels(loaded.tokenizer, loaded.target_model, encoder, 4, scores, comparisons)
    rows = [
        measure_all(records, PROMPTS, source, measuring, settings=FIDELITY_SETTINGS, **PLACE)[0]
        for measuring in (direct, loaded)
    ]
    hashes = [name for name in rows[0] if name.endswith("_weights_sha256")]
    assert len(hashes) == 4 and rows[0][hashes].isna().all(axis=None)
    expected = hashlib.sha256(paths["clip"].read_bytes()).hexdigest()
    assert set(rows[1]["clip_weights_sha256"]) == {expected} and rows[1][hashes].notna().all(axis=None)
    pd.testing.assert_frame_equal(rows[0].drop(columns=hashes), rows[1].drop(columns=hashes), check_exact=True)
    assert rows[0]["method_id"].tolist()[-2:] == ["real", "reconstruction"]


def test_prompts_are_known_by_ids_texts_and_order():
    hashes = {
        hash_prompts(prompts)["prompts_sha256"]
        for prompts in (PROMPTS, PROMPTS[:-1], PROMPTS[::-1], [Prompt("coco-0", "another"), *PROMPTS[1:]])
    }
    assert len(hashes) == 4 and all(len(value) == 64 for value in hashes)
