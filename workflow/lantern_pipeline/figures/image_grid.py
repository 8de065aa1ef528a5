"""Grids of generated images: one row per prompt, one column per method, and a short text under each image."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TypedDict
from unicodedata import category

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.figures.style import GREY, PAGE_WIDTH, new_figure, paper_style

PROMPT_WIDTH = 1.12  # inches for the prompt texts
WRAP = 18  # letters in a line of prompt text
MAX_LINES = 8  # lines of prompt text; more would reach the next row
MIN_CELL, MAX_CELL = 0.7, 1.1  # inches: width of a column; a grid of many columns is wider than the page
NOTE_HEIGHT, GAP = 0.17, 0.03  # inches: space under a row of images, with notes and without
LINE_HEIGHT = 0.135  # inches from a line of prompt text to the next
SHARP = 128  # images up to this side in pixels are enlarged without smoothing, larger ones are shrunk with smoothing


def wrap_prompt(text: str, width: int = WRAP, max_lines: int = MAX_LINES) -> str:
    """Break a prompt into lines for a figure, and replace control characters.

    Args:
        text: the prompt.
        width: letters per line.
        max_lines: largest number of lines. A longer text is cut and ends in "…".
    """
    words = " ".join(text.split())
    visible = "".join("\N{REPLACEMENT CHARACTER}" if category(letter) == "Cc" else letter for letter in words)
    return "\n".join(textwrap.wrap(visible, width, max_lines=max_lines, placeholder=" …"))


class Pictures(TypedDict):
    """Arguments of `draw_pictures`, as a dict. The docstring of that function explains them."""

    images: np.ndarray
    row_titles: Sequence[str]
    column_titles: Sequence[str]
    notes: Sequence[Sequence[str]]
    note_title: str


def draw_pictures(
    images: np.ndarray,
    row_titles: Sequence[str],
    column_titles: Sequence[str],
    notes: Sequence[Sequence[str]],
    note_title: str,
) -> Figure:
    """Draw a grid of images. The figure is wider than a page only if it has more than eight columns.

    Args:
        images: the images by row and column, uint8 (rows, columns, height, width, 3).
        row_titles: the prompt of each row.
        column_titles: the method of each column.
        notes: for each row, the short texts under its images. An empty text leaves the place under the image blank.
        note_title: words that explain the notes, written to the left of the notes of the last row.
    """
    rows, columns = len(row_titles), len(column_titles)
    cell = min(MAX_CELL, max(MIN_CELL, (PAGE_WIDTH - PROMPT_WIDTH) / columns))
    top = 0.13 * max(title.count("\n") + 1 for title in column_titles) + 0.06  # inches
    feet = [NOTE_HEIGHT if any(line) else GAP for line in notes]
    width, height = PROMPT_WIDTH + cell * columns, top + cell * rows + sum(feet)
    with paper_style():
        figure = new_figure(width, height)
        figure.set_layout_engine("none")  # all lengths are computed here, so matplotlib must not change the layout
        for row in range(rows):
            bottom = (height - top - (row + 1) * cell - sum(feet[:row])) / height
            _write_lines(figure, wrap_prompt(row_titles[row]).split("\n"), bottom + cell / height / 2)
            if row == rows - 1 and any(notes[row]):
                place = ((PROMPT_WIDTH - 0.06) / width, bottom - 0.09 / height)
                figure.text(*place, note_title, ha="right", va="center")
            for column in range(columns):
                left = (PROMPT_WIDTH + column * cell + 0.025) / width
                axes = figure.add_axes((left, bottom, (cell - 0.05) / width, (cell - 0.05) / height))
                interpolation = "nearest" if images.shape[2] <= SHARP else "antialiased"
                axes.imshow(images[row, column], interpolation=interpolation)
                frame(axes)
                axes.set_xlabel(notes[row][column], fontsize=8, labelpad=1.5)
                if row == 0:
                    axes.set_title(column_titles[column], fontsize=8, pad=3, linespacing=1.1)
        return figure


def frame(axes: Axes) -> None:
    """Replace the ticks and the grid of axes by a thin frame."""
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.4, color=GREY)


def _write_lines(figure: Figure, lines: Sequence[str], middle: float) -> None:
    """Write a prompt next to its row of images.

    It is written line by line, because matplotlib's spacing of several lines depends on their letters.

    Args:
        figure: the figure.
        lines: lines of the prompt.
        middle: vertical middle of the row, as a fraction of the figure's height.
    """
    width, height = figure.get_size_inches()
    for number, line in enumerate(lines):
        y = middle + ((len(lines) - 1) / 2 - number) * LINE_HEIGHT / height
        # Without parse_math a "$" in a prompt would begin a formula.
        figure.text(0.03 / width, y, line, fontsize=8, va="center_baseline", parse_math=False)
