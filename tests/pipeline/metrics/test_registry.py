"""A config chooses what is measured; what a choice needs and does not have is an error before anything runs."""

import copy
from pathlib import Path

import pytest

from lantern_pipeline.downloads.entries import parse_entries
from lantern_pipeline.metrics.registry import (
    check_choices,
    chosen,
    metric_files,
    needs_reference,
    published_files,
    published_weights,
    trained_models,
)

OWN = {"fidelity": "attribute_classifier", "clip": "own", "prompt_accuracy": True, "hps": False}
WEIGHTS = ("inception", "vgg16", "clip", "hps")
ENTRY = {"url": "https://example.org/weights.pth", "files": {"weights.pth": None}}
RESOURCES = parse_entries({name: ENTRY for name in ("inception_v3", "vgg", "openai", "hps_v2_1", "coco")})


def published(**changes):
    values = {
        "inception": "inception_v3",
        "vgg16": "vgg",
        "clip": "openai",
        "hps": "hps_v2_1",
        "reference": {"name": "coco", "images": "coco", "statistics": None},
        **changes,
    }
    return {"fidelity": "inception", "clip": "openai", "prompt_accuracy": False, "hps": True, "published": values}


def sentence_for(metrics, resources=RESOURCES):
    with pytest.raises(ValueError) as caught:
        check_choices(metrics, resources)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_embedded_world_trains_what_measures_and_needs_nothing_else():
    check_choices(OWN, {})
    assert trained_models(OWN) == ("attribute_classifier", "clip")
    assert published_weights(OWN) == {} and not needs_reference(OWN)
    trained = {"attribute_classifier": "r.safetensors", "clip": "c.safetensors"}
    assert metric_files(OWN, trained, {}, "unused") == trained


def test_published_metrics_need_weights_and_train_nothing():
    metrics = published()
    check_choices(metrics, RESOURCES)
    assert trained_models(metrics) == ()
    assert tuple(published_weights(metrics)) == WEIGHTS and needs_reference(metrics)
    assert metric_files(metrics, {}, RESOURCES, "reference/features.safetensors") == {
        "inception_weights": "resources/inception_v3.json",
        "vgg16_weights": "resources/vgg.json",
        "clip_weights": "resources/openai.json",
        "hps_weights": "resources/hps_v2_1.json",
        "reference": "reference/features.safetensors",
    }


def test_every_metric_can_be_switched_off():
    off = {"fidelity": None, "clip": None, "prompt_accuracy": False, "hps": False, "published": {}}
    check_choices(off, {})
    assert chosen(off) == {} and metric_files(off, {}, {}, "unused") == {}
    for metric in ("fidelity", "clip", "hps"):
        metrics = {**published(), metric: None}
        check_choices(metrics, RESOURCES)
        assert len(published_weights(metrics)) == {"fidelity": 2, "clip": 3, "hps": 3}[metric]


@pytest.mark.parametrize("key", WEIGHTS)
def test_weights_that_are_not_named_or_not_known_are_an_error(key):
    user = {"inception": "fidelity", "vgg16": "fidelity"}.get(key, key)
    sentence = sentence_for(published(**{key: None}))
    assert f"metrics.published.{key} names no file, which metrics.{user} needs" in sentence
    assert f"switch off metrics.{user}" in sentence
    sentence = sentence_for(published(**{key: "weights/nowhere.pth"}))
    assert f"metrics.published.{key}" in sentence and "nowhere.pth" in sentence


def test_weights_that_are_off_are_not_asked_for():
    metrics = {**published(hps=None, clip=None), "hps": False, "clip": None}
    check_choices(metrics, RESOURCES)


def test_a_file_of_the_users_is_taken(tmp_path):
    (tmp_path / "weights.pth").touch()
    metrics = published(inception=str(tmp_path / "weights.pth"))
    check_choices(metrics, RESOURCES)
    found = metric_files(metrics, {}, RESOURCES, "unused")["inception_weights"]
    assert Path(found) == tmp_path / "weights.pth"


@pytest.mark.parametrize(
    "reference, message",
    [
        (
            {"name": "a", "images": None, "statistics": None},
            "either images (a folder) or statistics (a file), got neither",
        ),
        ({"name": "a", "images": "coco", "statistics": "coco"}, "got images and statistics"),
        ({"name": None, "images": "coco", "statistics": None}, "reference.name must name the set of real images"),
        ({"name": "a", "images": "nowhere/at/all", "statistics": None}, "metrics.published.reference.images"),
    ],
)
def test_a_reference_is_one_named_place(reference, message):
    assert message in sentence_for(published(reference=reference))


def test_stored_statistics_are_read_where_they_are():
    metrics = published(reference={"name": "coco", "images": None, "statistics": "coco"})
    check_choices(metrics, RESOURCES)
    assert metric_files(metrics, {}, RESOURCES, "unused")["reference"] == "resources/coco.json"


def test_what_can_be_looked_at_beforehand_comes_from_elsewhere():
    assert published_files(OWN, {}) == {}
    found = published_files(published(), RESOURCES)
    assert {"inception_weights", "vgg16_weights", "clip_weights", "hps_weights", "reference_images"} == set(found)
    stored = published(reference={"name": "coco", "images": None, "statistics": "coco"})
    assert published_files(stored, RESOURCES)["reference_statistics"] == "resources/coco.json"


def test_an_unknown_way_to_measure_is_named():
    metrics = copy.deepcopy(published())
    metrics["fidelity"] = "dino"
    assert "metrics.fidelity must be one of attribute_classifier, inception, null, got 'dino'" in sentence_for(metrics)
