"""Grids of images."""

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from figure_tables import assert_legible
from lantern_pipeline.figures.image_grid import PictureGrid, draw_pictures


def make_grid(**changes):
    fields = {
        "images": np.zeros((2, 3, 4, 4, 3), dtype=np.uint8),
        "row_titles": ["a small red ring on grass", "b"],
        "column_titles": ["original", "near\ncode", "far"],
        "notes": [["", "", ""], ["", "1 dB", "2 dB"]],
        "note_title": "PSNR",
    }
    return PictureGrid(**(fields | changes))


def test_titles_notes_and_images_are_drawn():
    figure = draw_pictures(make_grid())
    assert_legible(figure)
    assert len(figure.axes) == 6
    assert [axes.get_title() for axes in figure.axes[:3]] == ["original", "near\ncode", "far"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "", "", "1 dB", "2 dB"]
    assert "PSNR" in [text.get_text() for text in figure.texts]


@pytest.mark.parametrize(("side", "interpolation"), [(48, "nearest"), (256, "antialiased")])
def test_images_larger_than_their_cell_are_smoothed(side, interpolation):
    figure = draw_pictures(make_grid(images=np.zeros((2, 3, side, side, 3), dtype=np.uint8)))
    assert {axes.images[0].get_interpolation() for axes in figure.axes} == {interpolation}


def test_marked_tokens_are_outlined():
    marks = np.zeros((2, 3, 4), dtype=bool)
    marks[1, 2, 1] = True  # upper right token of two by two, two pixels a side
    figure = draw_pictures(make_grid(marks=marks))
    boxes = [[patch for patch in axes.patches if isinstance(patch, Rectangle)] for axes in figure.axes]
    assert [len(found) for found in boxes] == [0, 0, 0, 0, 0, 2]
    assert boxes[5][0].get_bbox().bounds == (1.5, -0.5, 2, 2)


def test_what_does_not_fit_is_rejected():
    with pytest.raises(ValueError, match="2 rows and 2 columns"):
        make_grid(column_titles=["a", "b"])
    with pytest.raises(ValueError, match=r"marks .* got shape \(2, 3, 5\)"):
        make_grid(marks=np.zeros((2, 3, 5), dtype=bool))
