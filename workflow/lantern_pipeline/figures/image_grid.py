"""Grids of generated images: rows are prompts, columns methods or variants, a note under each image."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from unicodedata import category

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lantern_pipeline.figures.style import GREY, PAGE_WIDTH, new_figure, paper_style

PROMPT_WIDTH = 1.12  # inches for the prompt texts
WRAP = 18  # letters in a line of prompt text
MAX_LINES = 8  # of prompt text; more would reach the next row
MIN_CELL, MAX_CELL = 0.7, 1.1  # inches; a grid of many columns grows wider than the page
NOTE_HEIGHT, GAP = 0.17, 0.03  # inches under a row of images, with notes and without
LINE_HEIGHT = 0.135  # inches from a line of prompt text to the next
SHARP = 128  # pixels a side up to which images are enlarged, pixel by pixel; larger ones are shrunk, hence smoothed


@dataclass(frozen=True)
class PictureGrid:
    """What a grid of images shows.

    Attributes:
        images: (rows, columns, S, S, 3) uint8, red, green, blue.
        row_titles: prompt of each row.
        column_titles: text over each column, lines separated by a newline.
        notes: text under each image, rows x columns; may be empty.
        note_title: what the notes say, written left of the last row's.
        marks: (rows, columns, tokens) bool, tokens to outline, row by row of a square grid; None for none.
    """

    images: np.ndarray
    row_titles: Sequence[str]
    column_titles: Sequence[str]
    notes: Sequence[Sequence[str]]
    note_title: str
    marks: np.ndarray | None = None

    def __post_init__(self) -> None:
        rows, columns = len(self.row_titles), len(self.column_titles)
        if self.images.shape[:2] != (rows, columns) or [len(line) for line in self.notes] != [columns] * rows:
            raise ValueError(
                f"a grid of {rows} rows and {columns} columns needs as many images and notes, got images of "
                f"shape {self.images.shape} and notes of lengths {[len(line) for line in self.notes]}"
            )
        marked = (rows, columns, 1) if self.marks is None else self.marks.shape
        if marked[:2] != (rows, columns) or math.isqrt(marked[2]) ** 2 != marked[2]:
            raise ValueError(f"marks of {rows} x {columns} images must be square grids of tokens, got shape {marked}")


def wrap_prompt(text: str, width: int = WRAP, max_lines: int = MAX_LINES) -> str:
    """Breaks a prompt into lines for a figure: `max_lines` at most, a cut marked, control characters replaced."""
    words = " ".join(text.split())
    visible = "".join("\N{REPLACEMENT CHARACTER}" if category(letter) == "Cc" else letter for letter in words)
    return "\n".join(textwrap.wrap(visible, width, max_lines=max_lines, placeholder=" …"))


def draw_pictures(grid: PictureGrid) -> Figure:
    """Draws a grid of images.

    A figure of page width at most, unless there are more than eight columns.
    """
    rows, columns = len(grid.row_titles), len(grid.column_titles)
    cell = min(MAX_CELL, max(MIN_CELL, (PAGE_WIDTH - PROMPT_WIDTH) / columns))
    top = 0.13 * max(title.count("\n") + 1 for title in grid.column_titles) + 0.06  # inches
    feet = [NOTE_HEIGHT if any(line) else GAP for line in grid.notes]
    width, height = PROMPT_WIDTH + cell * columns, top + cell * rows + sum(feet)
    with paper_style():
        figure = new_figure(width, height)
        figure.set_layout_engine("none")  # every length is known: no layout to solve
        for row in range(rows):
            bottom = (height - top - (row + 1) * cell - sum(feet[:row])) / height
            _write_lines(figure, wrap_prompt(grid.row_titles[row]).split("\n"), bottom + cell / height / 2)
            if row == rows - 1 and any(grid.notes[row]):
                place = ((PROMPT_WIDTH - 0.06) / width, bottom - 0.09 / height)
                figure.text(*place, grid.note_title, ha="right", va="center")
            for column in range(columns):
                left = (PROMPT_WIDTH + column * cell + 0.025) / width
                axes = figure.add_axes((left, bottom, (cell - 0.05) / width, (cell - 0.05) / height))
                _draw_image(axes, grid.images[row, column], grid.notes[row][column])
                if grid.marks is not None:
                    _outline(axes, grid.marks[row, column], len(grid.images[row, column]))
                if row == 0:
                    axes.set_title(grid.column_titles[column], fontsize=8, pad=3, linespacing=1.1)
        return figure


def _write_lines(figure: Figure, lines: Sequence[str], middle: float) -> None:
    """Writes a prompt beside its row, line by line: matplotlib's own lines lie apart by what letters they hold."""
    width, height = figure.get_size_inches()
    for number, line in enumerate(lines):
        y = middle + ((len(lines) - 1) / 2 - number) * LINE_HEIGHT / height
        # Without parse_math a "$" in a prompt would begin a formula.
        figure.text(0.03 / width, y, line, fontsize=8, va="center_baseline", parse_math=False)


def _draw_image(axes: Axes, pixels: np.ndarray, note: str) -> None:
    axes.imshow(pixels, interpolation="nearest" if len(pixels) <= SHARP else "antialiased")
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.4, color=GREY)
    axes.set_xlabel(note, fontsize=8, labelpad=1.5)


def _outline(axes: Axes, is_marked: np.ndarray, size: int) -> None:
    """Outlines tokens: black on a wider white line, to be seen on any colour."""
    side = math.isqrt(len(is_marked))
    length = size / side  # pixels
    for token in np.flatnonzero(is_marked):
        corner = (token % side * length - 0.5, token // side * length - 0.5)  # pixels are centred on whole numbers
        for colour, width in (("white", 1.8), ("black", 0.8)):
            axes.add_patch(Rectangle(corner, length, length, fill=False, edgecolor=colour, linewidth=width))
