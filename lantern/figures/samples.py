"""Figure (a): the same prompts and the same noise through every method, with the accepted length under each image."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from lantern.figures.style import GREY, PAGE_WIDTH, new_figure, paper_style
from lantern.metrics.labels import describe_parameters, label_families
from lantern.metrics.speed import BASELINE
from lantern.prompts import Prompt
from lantern.records import GenerationRecords

PROMPT_WIDTH = 1.12  # inches for the prompt texts
WRAP = 18  # letters in a line of prompt text
MIN_CELL, MAX_CELL = 0.7, 1.1  # inches; a grid of many columns grows wider than the page


@dataclass(frozen=True)
class SampleGrid:
    """What the figure shows.

    Attributes:
        images: (rows, columns, S, S, 3) uint8, red, green, blue.
        row_titles: prompt of each row.
        column_titles: method of each column, lines separated by a newline.
        notes: text under each image, rows x columns.
    """

    images: np.ndarray
    row_titles: Sequence[str]
    column_titles: Sequence[str]
    notes: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        rows, columns = len(self.row_titles), len(self.column_titles)
        if self.images.shape[:2] != (rows, columns) or [len(line) for line in self.notes] != [columns] * rows:
            raise ValueError(
                f"a sample grid of {rows} rows and {columns} columns needs as many images and notes, got images of "
                f"shape {self.images.shape} and notes of lengths {[len(line) for line in self.notes]}"
            )


def select_samples(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    tokenizer: nn.Module,
    *,
    settings: Mapping[str, Any],
) -> SampleGrid:
    """Decodes the first prompts' images of some methods.

    Args:
        records: method_id -> records of one prompt set and temperature, in the order of `prompts`.
        prompts: the prompt set.
        tokenizer: image tokenizer with `decode`.
        settings: config section `figures`: sample_prompts, rows (the first so many prompts, not a choice);
            sample_methods, columns as method ids (None takes autoregressive and then the first method of every preset).

    Returns:
        A `SampleGrid`.

    Raises:
        ValueError: a method without records; names the known ones.
    """
    num_prompts = settings["sample_prompts"]
    chosen = settings["sample_methods"] or _first_of_each_preset(records)
    for method_id in chosen:
        if method_id not in records:
            raise ValueError(f"figures.sample_methods: no records of {method_id!r}; there are {', '.join(records)}")
    columns = []
    with torch.inference_mode():
        for method_id in chosen:
            codes = records[method_id].codes[:num_prompts].long().to(next(tokenizer.parameters()).device)
            columns.append(tokenizer.decode(codes).float().cpu())
    images = torch.stack(columns, dim=1)  # (rows, columns, 3, S, S)
    pixels = ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    accepted = [records[i].codes.shape[1] / records[i].target_forwards[:num_prompts].double() for i in chosen]
    return SampleGrid(
        images=pixels.permute(0, 1, 3, 4, 2).numpy(),
        row_titles=[prompt.text for prompt in prompts[:num_prompts]],
        column_titles=_column_titles([records[i].metadata["method"] for i in chosen]),
        notes=[[f"{column[row]:.2f}" for column in accepted] for row in range(len(images))],
    )


def draw_samples(grid: SampleGrid) -> Figure:
    """Draws a sample grid: rows are prompts, columns methods; numbers under the images are tokens per target forward.

    Args:
        grid: what to show.

    Returns:
        A figure of page width at most, unless there are more than eight columns.
    """
    rows, columns = len(grid.row_titles), len(grid.column_titles)
    cell = min(MAX_CELL, max(MIN_CELL, (PAGE_WIDTH - PROMPT_WIDTH) / columns))
    title_lines = max(title.count("\n") + 1 for title in grid.column_titles)
    top, note = 0.13 * title_lines + 0.06, 0.17  # inches
    width, height = PROMPT_WIDTH + cell * columns, top + (cell + note) * rows
    with paper_style():
        figure = new_figure(width, height)
        figure.set_layout_engine("none")  # every length is known: no layout to solve
        for row in range(rows):
            bottom = (height - top - (row + 1) * (cell + note) + note) / height
            text = textwrap.fill(grid.row_titles[row], WRAP, break_long_words=False)
            middle = bottom + cell / height / 2
            figure.text(0.03 / width, middle, text, fontsize=8, va="center", linespacing=1.15)
            if row == rows - 1:
                place = ((PROMPT_WIDTH - 0.06) / width, bottom - 0.09 / height)
                figure.text(*place, "tokens / forward", ha="right", va="center")
            for column in range(columns):
                left = (PROMPT_WIDTH + column * cell + 0.025) / width
                axes = figure.add_axes((left, bottom, (cell - 0.05) / width, (cell - 0.05) / height))
                _draw_image(axes, grid.images[row, column], grid.notes[row][column])
                if row == 0:
                    axes.set_title(grid.column_titles[column], fontsize=8, pad=3, linespacing=1.1)
        return figure


def _draw_image(axes: Axes, pixels: np.ndarray, note: str) -> None:
    axes.imshow(pixels, interpolation="nearest")
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.4, color=GREY)
    axes.set_xlabel(note, fontsize=8, labelpad=1.5)


def _first_of_each_preset(records: Mapping[str, GenerationRecords]) -> list[str]:
    first: dict[str, str] = {BASELINE: BASELINE}
    for method_id, record in records.items():
        first.setdefault(record.metadata["method"]["name"], method_id)
    return list(first.values())


def _column_titles(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Family and parameters of each method, on lines of their own."""
    table = pd.DataFrame([{**method, "method": method["name"]} for method in methods])
    families = label_families(table)
    titles = []
    for family, (_, row) in zip(families, table.iterrows(), strict=True):
        name = family.replace(" ", "\n").replace("autoregressive", "auto-\nregressive")
        titles.append("\n".join(part for part in (name, describe_parameters(row)) if part))
    return titles
