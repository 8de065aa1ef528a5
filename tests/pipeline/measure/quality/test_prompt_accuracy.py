import math

import pytest
import torch

from helpers.paths import ROOT
from lantern.models.stored import load_model
from lantern.prompts import Prompt
from lantern_pipeline.measure.quality.prompt_accuracy import AccuracyScore, score_attributes
from lantern_pipeline.world.attribute_classifier import (
    AttributeClassifier,
    AttributeClassifierConfig,
    attribute_targets,
)
from lantern_pipeline.world.scenes import BACKGROUNDS, HEADS, Scene, caption
from lantern_pipeline.world.worlds import WORLDS

TWO = Scene(BACKGROUNDS[0], (("large", "red", "circle"), ("small", "blue", "square")), "left of")
ONE = Scene(BACKGROUNDS[1], (("small", "green", "triangle"),))


def targets_of(scenes):
    return attribute_targets(WORLDS["scenes"], [caption(scene) for scene in scenes])


def logits_that_read(scenes):
    """Return logits of an attribute classifier that reads exactly these scenes."""
    targets = targets_of(scenes)
    return {
        head: torch.nn.functional.one_hot(targets[head].clamp(min=0), len(HEADS[head])).float() * 5 for head in HEADS
    }


def test_right_images_score_one():
    share, is_all_correct = score_attributes(logits_that_read([TWO, ONE]), targets_of([TWO, ONE]))
    assert share.tolist() == [1.0, 1.0]
    assert is_all_correct.tolist() == [1.0, 1.0]


def test_by_hand():
    # two objects: background, layout and 2 x (size, colour, shape) = 8 attributes; wrong colour of the second and wrong
    # background
    seen = Scene(BACKGROUNDS[1], (("large", "red", "circle"), ("small", "white", "square")), "left of")
    # one object: 5 attributes, one wrong
    small = Scene(BACKGROUNDS[1], (("large", "green", "triangle"),))
    share, is_all_correct = score_attributes(logits_that_read([seen, small]), targets_of([TWO, ONE]))
    assert share.tolist() == pytest.approx([6 / 8, 4 / 5])
    assert is_all_correct.tolist() == [0.0, 0.0]


def test_the_same_relation_said_the_other_way_round_is_right():
    said = Scene(BACKGROUNDS[0], (("small", "blue", "square"), ("large", "red", "circle")), "right of")
    assert score_attributes(logits_that_read([TWO]), targets_of([said]))[0].tolist() == [1.0]


def test_objects_in_swapped_places_are_wrong():
    swapped = Scene(BACKGROUNDS[0], TWO.objects[::-1], "left of")
    share, _ = score_attributes(logits_that_read([swapped]), targets_of([TWO]))
    assert share.tolist() == pytest.approx([2 / 8])  # background and layout


def test_prompts_without_a_scene_are_nan_and_leave_the_others_alone():
    torch.manual_seed(0)
    accuracy = AccuracyScore(AttributeClassifier(AttributeClassifierConfig(width=8, num_features=16)).eval())
    images = torch.rand(3, 3, 48, 48) * 2 - 1
    known, free = [Prompt(name, caption(scene)) for name, scene in (("two", TWO), ("one", ONE))], Prompt("f", "a dog")
    mixed, alone = accuracy.score(images, [known[0], free, known[1]]), accuracy.score(images[[0, 2]], known)
    assert math.isnan(mixed["prompt_accuracy"][1])
    assert math.isnan(mixed["is_all_correct"][1])
    assert torch.equal(mixed["prompt_accuracy"][[0, 2]], alone["prompt_accuracy"])
    assert accuracy.score(images, [free] * 3)["prompt_accuracy"].isnan().all()


def test_every_world_is_read_by_the_classifier_that_is_shipped_for_it():
    captions = {"scenes": caption(ONE), "fashion": "a dark patterned dress"}
    for world, name in (("scenes", "embedded"), ("fashion", "fashion")):
        file = ROOT / "models" / name / "attribute_classifier.safetensors"
        classifier = load_model(file, AttributeClassifier, torch.float32)
        assert classifier.config.world == world
        size = classifier.config.image_size
        prompts = [Prompt(key, text) for key, text in captions.items()]
        scores = AccuracyScore(classifier).score(torch.zeros(2, 3, size, size), prompts)["prompt_accuracy"]
        assert [prompt.id for prompt, score in zip(prompts, scores, strict=True) if not score.isnan()] == [world]


def test_images_that_are_asked_for_nothing_score_nan():
    targets = {head: torch.full((1,), -1) for head in HEADS}
    assert all(score.isnan().all() for score in score_attributes(logits_that_read([TWO]), targets))
