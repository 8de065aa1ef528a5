"""Tests of the attribute classifier: canonical targets, accuracies by eye, features independent of the batch."""

import pytest
import torch

from lantern.models.stored import load_model, save_model
from lantern_pipeline.world.attribute_classifier import (
    AttributeClassifier,
    AttributeClassifierConfig,
    attribute_matches,
    attribute_targets,
    evaluate_attribute_classifier,
)
from lantern_pipeline.world.scenes import HEADS, caption, sample_scene
from lantern_pipeline.world.worlds import WORLDS

SHAPES = WORLDS["scenes"]


def perfect_logits(targets):
    return {name: torch.nn.functional.one_hot(index.clamp(min=0), len(HEADS[name])) for name, index in targets.items()}


def test_targets_are_canonical_and_leave_out_what_a_scene_does_not_have():
    texts = [
        "a large red circle right of a small blue square on grass",
        "a small blue square left of a large red circle on grass",
        "a small white ring on night",
    ]
    targets = attribute_targets(SHAPES, texts)
    assert all(torch.equal(targets[name][0], targets[name][1]) for name in HEADS)
    named = {name: [HEADS[name][i] if i >= 0 else None for i in column.tolist()] for name, column in targets.items()}
    assert named["colour_0"] == ["blue", "blue", "white"] and named["shape_1"] == ["circle", "circle", None]
    assert named["layout"] == ["horizontal", "horizontal", "single"]
    is_match, is_applicable = attribute_matches(perfect_logits(targets), targets)
    assert is_applicable.tolist() == [[True] * 8] * 2 + [[True] * 5 + [False] * 3]
    assert torch.equal(is_match, is_applicable)


def test_accuracy_counts_right_answers():
    scenes = [sample_scene(0, i, "train") for i in range(40)]

    captions = [caption(scene) for scene in scenes]

    class AlwaysWrongAboutBackgrounds:
        config = AttributeClassifierConfig()

        def features(self, images):
            return images

        def read_features(self, images):
            logits = perfect_logits(attribute_targets(SHAPES, captions))
            return {**logits, "background": logits["background"].roll(1, dims=-1)}

    result = evaluate_attribute_classifier(AlwaysWrongAboutBackgrounds(), torch.zeros(40, 1), captions)
    assert result["accuracy_background"] == 0 and result["accuracy_all"] == 0
    assert all(result[f"accuracy_{name}"] == 1 for name in HEADS if name != "background")
    applicable = sum(5 + 3 * (len(scene.objects) - 1) for scene in scenes)
    assert result["accuracy"] == pytest.approx(1 - 40 / applicable)


def test_features_do_not_depend_on_the_batch_and_come_back_from_a_file(tmp_path):
    torch.manual_seed(0)
    model, images = AttributeClassifier(AttributeClassifierConfig(width=8)).eval(), torch.rand(5, 3, 48, 48)
    features = model.features(images)
    assert features.shape == (5, 128) and features.dtype == torch.float32
    assert torch.allclose(features[2:3], model.features(images[2:3]), atol=1e-5)
    save_model(tmp_path / "model.safetensors", model)
    assert torch.equal(load_model(tmp_path / "model.safetensors", AttributeClassifier).features(images), features)
