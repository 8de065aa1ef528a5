"""Figure (i): over the grid of tokens, where drafts are accepted and how long the steps are that begin there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.figures.style import (
    GREY,
    PAGE_WIDTH,
    column_titles,
    first_of_each_preset,
    new_figure,
    paper_style,
)
from lantern_pipeline.metrics.acceptance_map import AcceptanceMap, map_accepted
from lantern_pipeline.metrics.speed import BASELINE

COLOUR_MAP = "viridis"  # rises in lightness, also for colour-blind readers
LABELS = ("tokens that were accepted drafts (%)", "tokens per step that begins here")
TITLE_LINE, LABEL_HEIGHT, FOOT_HEIGHT = 0.14, 0.25, 0.25  # inches
MIN_WIDTH = 4.0  # inches that the labels take


def draw_acceptance_map(records: Mapping[str, GenerationRecords], prompts: Sequence[Prompt], grid: int) -> Figure:
    """Draws the first method of every speculative preset; `records`: method_id -> records of one prompt set."""
    shown = [records[method_id] for method_id in first_of_each_preset(records) if method_id != BASELINE]
    return draw_maps([map_accepted(found, grid) for found in shown], column_titles(shown))


def draw_maps(maps: Sequence[AcceptanceMap], titles: Sequence[str]) -> Figure:
    """Draws two rows of heat maps, one column per method, with one colour bar per row.

    A figure of page width at most. Cells without a value are grey: the first and the last token, and those where no
    step begins. The number under a map is the mean of its cells. `maps`: one per method, of equal grids. `titles`:
    methods, lines separated by a newline.
    """
    shapes = {found.accepted_share.shape for found in maps}
    if len(shapes) != 1 or len(maps) != len(titles):
        raise ValueError(
            f"the maps must have one title each and one grid, got {len(maps)} maps, {len(titles)} titles and the grids "
            f"{sorted(shapes)}; run a speculative method, all with one tokenizer"
        )
    labels = (f"{LABELS[0]}; {maps[0].num_images} images per method", LABELS[1])
    shares = [_hide_ends(100 * found.accepted_share) for found in maps]
    lengths = [_hide_ends(found.step_length) for found in maps]
    top = TITLE_LINE * max(title.count("\n") + title.count(", ") + 1 for title in titles)
    with paper_style():
        cell = min(1.3, (PAGE_WIDTH - 0.6) / len(maps))
        heights = [LABEL_HEIGHT + top + cell + FOOT_HEIGHT, LABEL_HEIGHT + cell + FOOT_HEIGHT]
        figure = new_figure(max(0.6 + cell * len(maps), MIN_WIDTH), sum(heights))
        rows = figure.subfigures(2, 1, height_ratios=heights)
        for row, values, label in zip(rows, (shares, lengths), labels, strict=True):
            line = row.subplots(1, len(maps), squeeze=False)[0]
            limits = (np.nanmin(values), np.nanmax(values))
            pictures = [_draw_map(axes, value, limits) for axes, value in zip(line, values, strict=True)]
            bar = row.colorbar(pictures[0], ax=list(line), ticks=MaxNLocator(4), fraction=0.05, aspect=8, pad=0.01)
            bar.outline.set_visible(False)
            row.suptitle(label, x=0.01, ha="left", fontsize=8.5)
        for axes, title in zip(rows[0].axes, titles, strict=False):  # the last one is the colour bar's
            axes.set_title(title.replace(", ", "\n"), fontsize=7.5, pad=3, linespacing=1.1)
        return figure


def _hide_ends(values: np.ndarray) -> np.ndarray:
    """Leaves out the first and the last token, which are never accepted drafts by how they are counted."""
    shown = values.astype(float)
    shown.flat[[0, -1]] = np.nan
    return shown


def _draw_map(axes: Axes, values: np.ndarray, limits: tuple[float, float]) -> AxesImage:
    colours = mpl.colormaps[COLOUR_MAP].with_extremes(bad="#DDDDDD")
    picture = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(f"mean {np.nanmean(values):#.3g}", fontsize=7.5, labelpad=2)
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.4, color=GREY)
    return picture
