"""Tests of the replay animation: its methods, when tokens appear, and that it fits a page."""

import numpy as np
from PIL import Image

from helpers.pages_data import PROMPTS, draw, make_timed
from lantern_pipeline.pages.race_animation import FRAMES, HEAD, SIDE, _choose_methods, _state_at, draw_race


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
    draw_race(tmp_path / "race.png", timed, PROMPTS[:1], draw)
    with Image.open(tmp_path / "race.png") as picture:
        assert picture.format == "PNG" and picture.n_frames <= FRAMES + 2
        shown = []
        for frame in (0, 1, picture.n_frames - 1):  # the first is for viewers in which nothing moves
            picture.seek(frame)
            shown.append(np.asarray(picture.convert("RGB"))[HEAD : HEAD + SIDE])
    assert [(part == 0xDD).any() for part in shown] == [False, True, False]
    assert (tmp_path / "race.png").stat().st_size < 1_500_000
