"""Tests of figures of images: the sample grid (a) and nearest codes (e)."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from helpers.figure_tables import AUTOREGRESSIVE, SAMPLED, Mosaic, make_records
from lantern.prompts import Prompt
from lantern_pipeline.figures import latent_proximity
from lantern_pipeline.figures.image_grid import LINE_HEIGHT, draw_pictures
from lantern_pipeline.figures.latent_proximity import select_proximity
from lantern_pipeline.figures.samples import select_samples

PROMPTS = [Prompt(f"p{i}", f"prompt {i}") for i in range(3)]
VOCAB = 8


@pytest.mark.parametrize(("side", "interpolation"), [(48, "nearest"), (256, "antialiased")])
def test_titles_notes_and_images_are_drawn(side, interpolation):
    images = np.random.default_rng(0).integers(0, 256, (2, 3, side, side, 3), np.uint8)
    notes = [["", "", ""], ["", "1 dB", "2 dB"]]
    figure = draw_pictures(images, ["a red ring", "b"], ["original", "near\ncode", "far"], notes, "PSNR")
    assert [axes.get_title() for axes in figure.axes] == ["original", "near\ncode", "far", "", "", ""]
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "", "", "1 dB", "2 dB"]
    assert [text.get_text() for text in figure.texts] == ["a red ring", "b", "PSNR"] and figure.get_figwidth() <= 7
    assert {axes.images[0].get_interpolation() for axes in figure.axes} == {interpolation}  # larger than a cell
    assert np.array_equal(figure.axes[5].images[0].get_array(), images[1, 2])


@pytest.mark.parametrize("shape", [(24, 36), (36, 24)])
def test_rows_are_as_high_as_their_images(shape):
    images = np.zeros((2, 3, *shape, 3), np.uint8)
    figure = draw_pictures(images, ["a red ring " * 20, "b"], ["x", "y", "z"], [["", "", ""]] * 2, "")
    width, height = figure.get_size_inches()
    for axes in figure.axes:
        place = axes.get_position()
        assert place.height * height / (place.width * width) == pytest.approx(shape[0] / shape[1], rel=0.05)
    lines = [text.get_text() for text in figure.texts]
    assert len(lines) == 1 + (5 if shape[0] < shape[1] else 8)  # of the first prompt, and the second one


@pytest.mark.parametrize("columns", [3, 10])
def test_the_prompts_of_two_rows_do_not_overlap(columns):
    images = np.zeros((2, columns, 8, 8, 3), np.uint8)
    figure = draw_pictures(images, ["a red ring " * 20] * 2, ["x"] * columns, [[""] * columns] * 2, "")
    heights = [figure.get_figheight() * text.get_position()[1] for text in figure.texts]  # from the top down
    assert all(upper - lower > 0.99 * LINE_HEIGHT for upper, lower in pairwise(heights))


def test_samples_pair_prompts_methods_and_lengths():
    codes = torch.tensor([0, 1, 4])[:, None].expand(3, 4)
    records = {
        "lantern-k20": make_records(SAMPLED, codes + 1, target_forwards=torch.tensor([2, 2, 1])),
        "again": make_records(SAMPLED, codes, target_forwards=torch.tensor([1, 1, 1])),
        "autoregressive": make_records(AUTOREGRESSIVE, codes, target_forwards=torch.tensor([4, 4, 4])),
    }
    grid = select_samples(records, PROMPTS, Mosaic(), {"sample_prompts": 2, "sample_methods": None})
    assert grid["row_titles"] == ["prompt 0", "prompt 1"]
    assert grid["column_titles"] == ["auto-\nregressive", "LANTERN\nchain5\nk 20, δ 0.1"]
    assert grid["notes"] == [["1.00", "2.00"], ["1.00", "2.00"]]
    assert grid["images"].shape == (2, 2, 4, 4, 3)
    assert grid["images"][:, :, 0, 0, 0].tolist() == [[0, 32], [32, 64]]  # a code is an eighth of 255
    chosen = select_samples(records, PROMPTS, Mosaic(), {"sample_prompts": 3, "sample_methods": ["again"]})
    assert chosen["notes"] == [["4.00"]] * 3


def test_samples_have_the_shape_of_the_images():
    """Each of two lines has three codes and an end, which is code 8."""
    tokens = torch.tensor([[0, 1, 2, 8, 3, 4, 5, 8]] * 3)
    records = {"autoregressive": make_records(AUTOREGRESSIVE, tokens)}
    settings = {"sample_prompts": 2, "sample_methods": None}
    images = select_samples(records, PROMPTS, Mosaic((2, 3)), settings)["images"]
    assert images[0, 0, ::2, ::2, 0].tolist() == [[0, 32, 64], [96, 128, 159]]


def test_near_codes_of_images_with_line_ends():
    tokens = torch.tensor([[7, 7, 0, 1, 2, 3, 4, 5]] * 3)  # after a smaller image of two codes
    table = (torch.arange(VOCAB)[:, None] + 1) % VOCAB
    grid = select_proximity(tokens, PROMPTS, Mosaic((2, 3)), table, num_rows=2, seed=0)
    assert grid["images"].shape == (2, 3, 4, 6, 3)
    assert grid["images"][0, 1, ::2, ::2, 0].tolist() == [[32, 64, 96], [128, 159, 191]]


def select(codes, columns, seed=0):
    # the n-th nearest code of c is c + n, modulo the vocabulary
    table = (torch.arange(VOCAB)[:, None] + torch.arange(1, columns + 1)) % VOCAB
    return select_proximity(codes, PROMPTS, Mosaic(), table, num_rows=2, seed=seed)


def test_every_token_is_replaced_and_psnr_is_over_all_images():
    grid = select(torch.zeros(3, 4, dtype=torch.int32), columns=7)
    assert grid["column_titles"] == ["original", "1st nearest\ncode", "7th nearest\ncode", "random\ncode"]
    assert grid["row_titles"] == ["prompt 0", "prompt 1"]
    assert (grid["images"][:, 0] == 0).all() and (grid["images"][:, 1] == 32).all()
    assert grid["notes"][0] == [""] * 4
    assert grid["notes"][1][:3] == ["", f"{-20 * math.log10(1 / 8):.1f} dB", f"{-20 * math.log10(7 / 8):.1f} dB"]
    assert grid["note_title"] == "PSNR, 3 images"


def test_random_codes_are_others_and_follow_the_seed():
    codes = torch.arange(12, dtype=torch.int32).reshape(3, 4) % VOCAB
    first, again, other = (select(codes, columns=1, seed=seed)["images"] for seed in (3, 3, 4))
    assert (first[:, -1] == again[:, -1]).all() and (first[:, -1] != other[:, -1]).any()
    assert (first[:, -1] != first[:, 0]).all()


def test_no_more_images_are_decoded_than_allowed(monkeypatch):
    codes = torch.tensor([[0] * 4, [1] * 4, [7] * 4])
    for allowed in (11, 1):  # never fewer than the rows that are shown
        monkeypatch.setattr(latent_proximity, "MOST_TOKENS", allowed)
        assert select(codes, columns=1)["note_title"] == "PSNR, 2 images"
