"""The picture of `lantern sample`: one prompt, one image per method, with target forwards and seconds under each."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from lantern_pipeline.figures.image_grid import wrap_prompt
from lantern_pipeline.figures.style import PAGE_WIDTH, new_figure, paper_style

COLUMNS = 6
CELL_HEIGHT = 1.65  # inches, titles included


def draw_side_by_side(prompt: str, images: np.ndarray, titles: Sequence[str], notes: Sequence[str]) -> Figure:
    """Draws images in rows of six.

    Args:
        prompt: title of the whole.
        images: (methods, S, S, 3) uint8, red, green, blue.
        titles: method of each image.
        notes: text under each image.

    Returns:
        A figure of page width.
    """
    rows = -(-len(images) // COLUMNS)
    with paper_style():
        figure = new_figure(PAGE_WIDTH, CELL_HEIGHT * rows + 0.3)
        figure.suptitle(wrap_prompt(prompt, 90, 4), fontsize=9, parse_math=False)
        for number, (pixels, title, note) in enumerate(zip(images, titles, notes, strict=True), start=1):
            axes = figure.add_subplot(rows, COLUMNS, number)
            axes.imshow(pixels, interpolation="nearest")
            axes.grid(False)
            axes.set(xticks=[], yticks=[])
            axes.set_title(textwrap.fill(title.replace("-", " "), 17), fontsize=7, pad=2)
            axes.set_xlabel(note, fontsize=7, labelpad=2)
        return figure
