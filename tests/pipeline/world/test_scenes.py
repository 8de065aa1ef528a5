"""The embedded world: purity, captions, the held-out split, and what the pixels must show."""

import pytest
import torch

from lantern_pipeline.world.scenes import (
    BACKGROUNDS,
    COLOURS,
    HELD_OUT,
    RELATIONS,
    SHAPES,
    SIZES,
    VOCABULARY,
    Scene,
    caption,
    parse_caption,
    render,
    sample_scene,
)


def test_scene_and_image_are_pure_functions_of_seed_and_index():
    scenes = [sample_scene(3, i, "train") for i in range(6)]
    assert scenes == [sample_scene(3, i, "train") for i in range(6)]
    assert scenes != [sample_scene(4, i, "train") for i in range(6)]
    images = render(scenes, 3, range(6))
    assert torch.equal(images, render(scenes, 3, range(6)))
    assert not torch.equal(images, render(scenes, 4, range(6)))


def test_image_does_not_depend_on_its_batch():
    indices = list(range(150))  # more than one chunk
    scenes = [sample_scene(0, i, "train") for i in indices]
    together = render(scenes, 0, indices)
    for i in (0, 1, 70, 149):
        assert torch.equal(together[i], render([scenes[i]], 0, [i])[0])
    assert torch.equal(together[100:117], render(scenes[100:117], 0, indices[100:117]))


def test_images_are_256_levels_between_minus_one_and_one():
    images = render([sample_scene(1, i, "seen") for i in range(12)], 1, range(12), image_size=32)
    assert images.shape == (12, 3, 32, 32) and images.dtype == torch.float32
    assert images.min() >= -1 and images.max() <= 1
    levels = (images + 1) * 127.5
    assert torch.allclose(levels, levels.round(), atol=1e-4)


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_captions_round_trip_and_use_only_the_vocabulary(split):
    for index in range(400):
        scene = sample_scene(5, index, split)
        text = caption(scene)
        assert parse_caption(text) == scene
        assert set(text.split()) <= set(VOCABULARY)
        assert Scene.from_dict(scene.to_dict()) == scene
        assert len(text.split()) <= 16


def test_held_out_combinations_never_leak():
    for index in range(2000):
        for split in ("train", "seen"):
            assert not {item[1:] for item in sample_scene(7, index, split).objects} & HELD_OUT
        assert {item[1:] for item in sample_scene(7, index, "unseen").objects} & HELD_OUT


def test_training_scenes_cover_every_word_and_combination():
    scenes = [sample_scene(2, i, "train") for i in range(2000)]
    kinds = {item for scene in scenes for item in scene.objects}
    assert len(kinds) == len(SIZES) * (len(COLOURS) * len(SHAPES) - len(HELD_OUT))
    assert {scene.background for scene in scenes} == set(BACKGROUNDS)
    assert {scene.relation for scene in scenes} == {None, *RELATIONS}


def test_canonical_scene_puts_left_or_top_object_first_and_draws_the_same_image():
    scene = parse_caption("a large red circle right of a small blue square on grass")
    mirrored = parse_caption("a small blue square left of a large red circle on grass")
    assert scene.canonical() == mirrored == mirrored.canonical()
    assert torch.equal(render([scene], 0, [9]), render([mirrored], 0, [9]))


def test_objects_lie_where_the_caption_says_in_the_colour_it_says():
    texts = [f"a large red circle {relation} a large blue square on sand" for relation in ("left of", "below")]
    indices = range(20)
    for text, axis in zip(texts, (1, 0), strict=True):
        images = render([parse_caption(text)] * 20, 0, indices)
        red = (images[:, 0] - images[:, 2] > 0.9) & (images[:, 1] < -0.3)
        blue = images[:, 2] - images[:, 0] > 0.6
        for is_red, is_blue in zip(red, blue, strict=True):
            red_at = is_red.nonzero()[:, axis].float().mean()
            blue_at = is_blue.nonzero()[:, axis].float().mean()
            assert (red_at < blue_at - 10) if axis == 1 else (red_at > blue_at + 10)


def test_backgrounds_differ_in_detail_from_image_to_image():
    for background in BACKGROUNDS:
        scene = parse_caption(f"a small red circle on {background}")
        first, second = render([scene, scene], 0, [0, 1])[:, :, :10, :10]
        assert (first - second).abs().mean() > 0.02, background


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a large crimson circle on grass", "unknown word 'crimson'.*red, yellow"),
        ("a large circle red on grass", "is not of the form"),
        ("a large red circle left a small blue square on grass", "is not of the form"),
        ("a large red circle", "is not of the form"),
        ("", "is not of the form"),
    ],
)
def test_bad_captions_are_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        parse_caption(text)


def test_bad_arguments_are_rejected():
    with pytest.raises(ValueError, match="split must be one of train, seen, unseen, got 'test'"):
        sample_scene(0, 0, "test")
    with pytest.raises(ValueError, match="same length, got 1 and 2"):
        render([sample_scene(0, 0, "train")], 0, [0, 1])
