"""Tests of the replay animation: its methods, when tokens appear, and that it fits a page."""

import numpy as np
import torch
from PIL import Image

from helpers.pages_data import PROMPTS, draw, make_timed
from lantern.prompts import Prompt
from lantern_pipeline.pages.race_animation import FRAMES, GAP, HEAD, WIDTH, _choose_methods, _state_at, draw_race

SQUARE = torch.arange(16).view(4, 4)


def test_tokens_appear_when_their_forward_has_ended():
    timed = make_timed()
    row = timed.method_ids.index("coupled")  # forwards of 1, 3, 4, 4 and 4 tokens, 100 ms each
    found = [_state_at(timed, row, now)[:2] for now in (0, 0.11, 0.25, 0.45, 9)]
    assert found == [(0, 0), (1, 1), (4, 2), (12, 4), (16, 5)]


def test_one_method_of_each_name_the_fastest_is_shown():
    timed = make_timed()
    for method in timed.metadata["methods"].values():
        method["name"] = "jacobi" if method["method_id"] in ("coupled", "near") else method["method_id"]
    assert _choose_methods(timed) == ["autoregressive", "near"]


def test_the_picture_moves_ends_with_the_whole_images_and_is_small(tmp_path):
    timed = make_timed()
    for method in timed.metadata["methods"].values():
        method["name"] = "jacobi" if method["method_id"] == "near" else method["name"]
    draw_race(tmp_path / "race.png", timed, PROMPTS[:1], draw, SQUARE)
    with Image.open(tmp_path / "race.png") as picture:
        assert picture.format == "PNG" and picture.n_frames <= FRAMES + 2
        shown = []
        for frame in (0, 1, picture.n_frames - 1):  # the first is for viewers in which nothing moves
            picture.seek(frame)
            shown.append(np.asarray(picture.convert("RGB"))[HEAD : HEAD + WIDTH])
    assert [(part == 0xDD).any() for part in shown] == [False, True, False]
    assert (tmp_path / "race.png").stat().st_size < 1_500_000


def test_a_wide_image_fills_in_the_order_of_its_tokens(tmp_path):
    """A smaller image of two codes comes first, and each of the two lines has six codes and an end."""
    timed, positions = make_timed(), torch.arange(2, 16).view(2, 7)[:, :6]
    draw_race(tmp_path / "race.png", timed, PROMPTS[:1], lambda codes: draw(codes[:, :12], shape=(2, 6)), positions)
    with Image.open(tmp_path / "race.png") as picture:
        cell = WIDTH // 6
        counts = []
        for frame in range(1, picture.n_frames):
            picture.seek(frame)
            image = np.asarray(picture.convert("L"))[HEAD : HEAD + 2 * cell, GAP : GAP + WIDTH]
            is_drawn = image[cell // 2 :: cell, cell // 2 :: cell] != 0xDD  # (lines, columns)
            counts.append(is_drawn.sum(1).tolist())
    # Autoregressive decoding has one token more in each tenth of a second: lines fill one after the other.
    assert sorted(counts) == counts and {tuple(found) for found in counts} == {
        *((column, 0) for column in range(7)),
        *((6, column) for column in range(1, 7)),
    }


def test_prompts_of_equal_text_are_told_apart(tmp_path):
    timed, drawn = make_timed(), []
    timed.metadata["methods"]["near"]["name"] = "jacobi"
    for prompt_id, factor in (("p1", 0.5), ("p2", 2.0)):  # of p0, the gain is the median
        row = list(zip(timed.prompt_ids, timed.method_ids, strict=True)).index((prompt_id, "autoregressive"))
        timed.step_seconds[row] *= factor
    prompts = [Prompt(prompt.id, "a red ring") for prompt in PROMPTS]
    draw_race(tmp_path / "race.png", timed, prompts, lambda codes: drawn.append(codes) or draw(codes), SQUARE)
    assert drawn[0][0].tolist() == [0] * 16  # the codes of p0 by autoregressive decoding
