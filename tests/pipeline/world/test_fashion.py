"""Tests of the captions of Fashion-MNIST: grammar, attributes, the formulas of tone and pattern, their bounds."""

from itertools import product

import numpy as np
import pytest

from helpers.tiny_fashion import LEVELS, STRIPES, draw_garment
from lantern_models.text.words import split_words
from lantern_pipeline.data.fashion_files import DEBIAN_FOLDER, image_file
from lantern_pipeline.data.idx_files import read_idx
from lantern_pipeline.world.fashion import (
    CLASSES,
    HEADS,
    HELD_OUT,
    PATTERN_BOUND,
    PATTERNS,
    TONE_BOUNDS,
    TONES,
    VOCABULARY,
    attributes_of,
    caption,
    measure_garments,
    read_garments,
)

GARMENTS = list(product(TONES, PATTERNS, CLASSES))


def test_sixty_captions_name_their_attributes_in_known_words():
    captions = [caption(garment) for garment in GARMENTS]
    assert len(set(captions)) == 60
    assert [tuple(attributes_of(text).values()) for text in captions] == GARMENTS
    assert {word for text in captions for word in split_words(text)} == set(VOCABULARY)
    assert attributes_of("A dark patterned dress.") == {"tone": "dark", "pattern": "patterned", "class": "dress"}
    assert caption(("light", "plain", "trousers")) == "light plain trousers"


@pytest.mark.parametrize("text", ["", "a dress", "a plain dark dress", "a dark plain trousers", "a dark plain cat"])
def test_other_texts_name_no_attributes(text):
    assert attributes_of(text) is None


def test_held_out_combinations_leave_every_word_to_training():
    assert sorted(name for _, _, name in HELD_OUT) == sorted(CLASSES)
    kept = [garment for garment in GARMENTS if garment not in HELD_OUT]
    for position, values in enumerate(HEADS.values()):
        assert {garment[position] for garment in kept} == set(values)


def test_tone_and_pattern_are_read_off_the_pixels():
    images = np.stack([draw_garment(tone, pattern) for tone, pattern, _ in GARMENTS])
    labels = np.array([CLASSES.index(name) for _, _, name in GARMENTS])
    assert read_garments(images, labels) == GARMENTS


def test_brightness_and_contrast_by_hand():
    plain, striped = draw_garment("dark", "plain"), draw_garment("dark", "patterned")
    brightness, contrast = measure_garments(np.stack([plain, striped, np.zeros_like(plain)]))
    assert brightness == pytest.approx([LEVELS["dark"], LEVELS["dark"] + STRIPES / 2, 0])
    across, down = 18 * 13, 17 * 14  # pairs of neighbours inside 20 x 16 pixels without their rim
    assert contrast == pytest.approx([0, STRIPES * across / (across + down), 0])


@pytest.mark.skipif(not DEBIAN_FOLDER.is_dir(), reason="needs dataset-fashion-mnist")
def test_the_bounds_are_quantiles_of_the_training_half():
    images = read_idx(DEBIAN_FOLDER / image_file("train"), 3)
    parts = [measure_garments(images[start : start + 4096]) for start in range(0, len(images), 4096)]
    brightness, contrast = np.concatenate(parts, axis=1)
    assert np.quantile(brightness, [1 / 3, 2 / 3]) == pytest.approx(TONE_BOUNDS, abs=0.1)
    assert np.median(contrast) == pytest.approx(PATTERN_BOUND, abs=0.005)
