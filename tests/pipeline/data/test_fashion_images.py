"""Tests of Fashion-MNIST as an image source: border, captions, splits that never mix, a missing file."""

import pytest
import torch

from helpers.tiny_fashion import LEVELS, write_fashion
from lantern_pipeline.data.fashion_images import FashionSource
from lantern_pipeline.data.image_sources import make_source, make_world_source
from lantern_pipeline.world.fashion import HELD_OUT, attributes_of

SPLITS = ("train", "train_unseen", "val", "seen", "unseen")


@pytest.fixture
def folder(tmp_path):
    return write_fashion(tmp_path)


def data_of(folder, **others):
    return {"source": "fashion", "folder": str(folder), "image_size": 32, "num_train": 1000, "max_words": 4} | others


def test_photographs_get_a_black_border_and_equal_channels(folder):
    source = make_source(data_of(folder), seed=0)
    images = source.images("val", range(3))
    assert images.shape == (3, 3, 32, 32) and images.dtype == torch.float32
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(images[:, 0], images[:, 2])
    border = torch.ones(32, 32, dtype=torch.bool)
    border[2:-2, 2:-2] = False
    assert (images[:, :, border] == -1).all()
    # the first garment of the test half is dark and plain
    assert images[0, 0, 6:26, 8:24] == pytest.approx(2 * LEVELS["dark"] / 255 - 1)
    assert source.images("val", []).shape == (0, 3, 32, 32)


def test_the_training_half_trains_and_the_test_half_does_not(folder):
    source = FashionSource(folder, 32, 1000)
    numbers = {split: [item.number for item in source.items(split)] for split in SPLITS}
    assert sorted(numbers["train"] + numbers["train_unseen"]) == list(range(120))
    assert sorted(numbers["val"] + numbers["seen"] + numbers["unseen"]) == list(range(120))
    for split in SPLITS:  # the first pixel tells the halves apart
        mark = 1 if split.startswith("train") else 2
        found = source.images(split, range(len(numbers[split])))[:, 0, 2, 2]
        assert found == pytest.approx(2 * mark / 255 - 1)


def test_held_out_combinations_are_in_the_unseen_splits_only(folder):
    source = FashionSource(folder, 32, 1000)
    for split in SPLITS:
        garments = {tuple(attributes_of(text).values()) for text in source.captions(split, range(120))}
        assert garments == HELD_OUT if "unseen" in split else not garments & HELD_OUT


def test_prompts_are_captions_with_the_number_of_their_photograph(folder):
    source = FashionSource(folder, 32, 1000)
    prompts = source.prompts("seen", 3)
    assert [prompt.text for prompt in prompts] == source.captions("seen", range(3))
    assert [prompt.id for prompt in prompts] == [f"seen-{item.number:05d}" for item in source.items("seen")[:3]]


def test_num_train_limits_the_training_images_only(folder):
    source = FashionSource(folder, 32, 7)
    assert source.num_train == 7 and source.num_train_unseen == 20 and len(source.items("seen")) == 50


def test_the_attribute_classifier_learns_from_the_world_of_the_run(folder):
    world, source = make_world_source(data_of(folder), seed=0)
    assert world == "fashion" and isinstance(source, FashionSource)
    world, source = make_world_source(data_of(folder, source="folder"), seed=3)
    assert world == "scenes" and source.seed == 3


def test_a_missing_file_is_named_with_the_package_that_has_it(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz in .*apt-get install dataset-fashion-mnist"):
        make_source(data_of(folder), seed=0)
