"""Grids of generated images: one row per prompt, one column per method, and a short text under each image.

All lengths are computed here in inches, and passed to matplotlib as fractions of the figure.
"""

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
MAX_LINES = 8  # lines of prompt text that fit beside a row as high as MAX_CELL
MIN_CELL, MAX_CELL = 0.7, 1.1  # inches: width of a column
NOTE_HEIGHT, GAP = 0.17, 0.03  # inches: space under a row of images, with notes and without
LINE_HEIGHT = 0.135  # inches from a line of prompt text to the next
SHARP = 128  # pixels: images whose longer side is above this are drawn with smoothing


def wrap_prompt(text: str, width: int = WRAP, max_lines: int = MAX_LINES) -> str:
    """Break a prompt into lines of `width` letters, at most `max_lines`, and replace control characters."""
    words = " ".join(text.split())
    visible = "".join("\N{REPLACEMENT CHARACTER}" if category(letter) == "Cc" else letter for letter in words)
    return "\n".join(textwrap.wrap(visible, width, max_lines=max_lines, placeholder=" …"))


class Pictures(TypedDict):
    """Arguments of `draw_pictures`, as a dict."""

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
        images: uint8 (rows, columns, height, width, 3).
        row_titles: prompts, which are broken into lines here.
        column_titles: methods, already broken into lines.
        notes: for each row, the texts under its images. A row of empty texts takes less space.
        note_title: words that explain the notes, written to the left of the notes of the last row.
    """
    rows, columns = len(row_titles), len(column_titles)
    cell = min(MAX_CELL, max(MIN_CELL, (PAGE_WIDTH - PROMPT_WIDTH) / columns))
    top = 0.13 * max(title.count("\n") + 1 for title in column_titles) + 0.06  # inches, 0.13 per line of a title
    shape = images.shape[2:4]
    tall = cell * shape[0] / shape[1]  # inches: a row without its notes
    # A row that is lower than MAX_CELL has room for fewer lines of the prompt.
    max_lines = max(1, int(MAX_LINES * min(1, tall / MAX_CELL)))
    feet = [NOTE_HEIGHT if any(line) else GAP for line in notes]
    width, height = PROMPT_WIDTH + cell * columns, top + tall * rows + sum(feet)
    with paper_style():
        figure = new_figure(width, height)
        figure.set_layout_engine("none")  # the constrained layout would move the axes
        for row in range(rows):
            # Lower edge of the row. Rows go down, matplotlib's fractions go up.
            bottom = (height - top - (row + 1) * tall - sum(feet[:row])) / height
            lines = wrap_prompt(row_titles[row], max_lines=max_lines).split("\n")
            _write_lines(figure, lines, bottom + tall / height / 2)
            if row == rows - 1 and any(notes[row]):
                place = ((PROMPT_WIDTH - 0.06) / width, bottom - 0.09 / height)
                figure.text(*place, note_title, ha="right", va="center")
            for column in range(columns):
                left = (PROMPT_WIDTH + column * cell + 0.025) / width  # the gap between images is 0.05 inches
                axes = figure.add_axes((left, bottom, (cell - 0.05) / width, (tall - 0.05) / height))
                # Smoothing blurs the pixels of small images, but without it large ones show moiré.
                interpolation = "nearest" if max(shape) <= SHARP else "antialiased"
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
    """Write a prompt around the vertical middle of its row, a fraction of the figure's height."""
    width, height = figure.get_size_inches()
    # Line by line, because matplotlib's spacing of several lines depends on their letters.
    for number, line in enumerate(lines):
        y = middle + ((len(lines) - 1) / 2 - number) * LINE_HEIGHT / height
        # Without parse_math a "$" in a prompt would begin a formula.
        figure.text(0.03 / width, y, line, fontsize=8, va="center_baseline", parse_math=False)
