"""Tests of the shapes dataset: determinism, captions, the held-out split, and what the pixels must show."""

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
    caption,
    parse_caption,
    render,
    sample_scene,
)


def sample(number, seed=0, split="train"):
    return [sample_scene(seed, i, split) for i in range(number)]


def test_scenes_and_images_are_pure_functions_of_seed_and_index_whatever_their_batch():
    scenes, indices = sample(150), list(range(150))  # more than one chunk
    assert scenes == sample(150) and scenes[:6] != sample(6, seed=4)
    images = render(scenes, 0, indices)
    assert torch.equal(images[:6], render(scenes[:6], 0, range(6)))
    assert not torch.equal(images[:6], render(scenes[:6], 4, range(6)))
    for i in (0, 1, 70, 149):
        assert torch.equal(images[i], render([scenes[i]], 0, [i])[0])
    assert torch.equal(images[100:117], render(scenes[100:117], 0, indices[100:117]))


def test_images_are_256_levels_between_minus_one_and_one():
    images = render(sample(12, seed=1, split="seen"), 1, range(12), image_size=32)
    assert images.shape == (12, 3, 32, 32) and images.dtype == torch.float32
    assert images.min() >= -1 and images.max() <= 1
    levels = (images + 1) * 127.5
    assert torch.allclose(levels, levels.round(), atol=1e-4)


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_captions_round_trip_and_held_out_combinations_never_leak(split):
    for scene in sample(1000, seed=5, split=split):
        text = caption(scene)
        assert parse_caption(text) == scene
        assert set(text.split()) <= set(VOCABULARY) and len(text.split()) <= 16
        assert bool({item[1:] for item in scene.objects} & HELD_OUT) == (split == "unseen")


def test_training_scenes_cover_every_word_and_combination():
    scenes = sample(2000, seed=2)
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
    for relation, axis, sign in (("left of", 1, 1), ("below", 0, -1)):
        scene = parse_caption(f"a large red circle {relation} a large blue square on sand")
        images = render([scene] * 20, 0, range(20))
        red = (images[:, 0] - images[:, 2] > 0.9) & (images[:, 1] < -0.3)
        blue = images[:, 2] - images[:, 0] > 0.6
        for is_red, is_blue in zip(red, blue, strict=True):
            red_at, blue_at = (found.nonzero()[:, axis].float().mean() for found in (is_red, is_blue))
            assert sign * (blue_at - red_at) > 10


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


def test_two_of_five_scenes_have_a_single_object():
    single = [len(sample_scene(0, i, "train").objects) == 1 for i in range(500)]
    assert 0.35 < sum(single) / 500 < 0.55  # some pairs are sampled again, because they are of one kind or held out
