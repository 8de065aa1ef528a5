"""Figure (i): over the grid of tokens, where drafts are accepted and how long the steps are that begin there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.figures.image_grid import frame
from lantern_pipeline.figures.style import PAGE_WIDTH, column_titles, first_of_each_preset, new_figure, paper_style
from lantern_pipeline.measure.acceptance_map import AcceptanceMap, map_accepted
from lantern_pipeline.measure.speed import BASELINE

COLOUR_MAP = "viridis"  # rises in lightness, also for colour-blind readers
TITLE_LINE, LABEL_HEIGHT, FOOT_HEIGHT = 0.14, 0.25, 0.25  # inches
MIN_WIDTH = 4.0  # inches that the labels take


def draw_acceptance_map(records: Mapping[str, GenerationRecords], prompts: Sequence[Prompt], grid: int) -> Figure:
    """Draws the first method of every speculative preset; `records`: method_id -> records of one prompt set."""
    shown = [records[method_id] for method_id in first_of_each_preset(records) if method_id != BASELINE]
    if not shown:
        raise ValueError(f"the map of acceptance needs a speculative method, got {', '.join(records)}; add one")
    return draw_maps([map_accepted(found, grid) for found in shown], column_titles(shown))


def draw_maps(maps: Sequence[AcceptanceMap], titles: Sequence[str]) -> Figure:
    """Draws two rows of heat maps, one column per method, with one colour bar per row.

    A figure of page width at most. Cells without a value are grey: the first and the last token, which are never
    accepted drafts by how they are counted, and those where no step begins. The number under a map is the mean of its
    cells. `maps`: one per method, of equal grids. `titles`: methods, lines separated by a newline.
    """
    rows = {
        f"tokens that were accepted drafts (%); {maps[0].num_images} images per method": [
            100 * found.accepted_share for found in maps
        ],
        "tokens per step that begins here": [found.step_length.astype(float) for found in maps],
    }
    top = TITLE_LINE * max(title.count("\n") + title.count(", ") + 1 for title in titles)
    colours = mpl.colormaps[COLOUR_MAP].with_extremes(bad="#DDDDDD")
    with paper_style():
        cell = min(1.3, (PAGE_WIDTH - 0.6) / len(maps))
        heights = [LABEL_HEIGHT + top + cell + FOOT_HEIGHT, LABEL_HEIGHT + cell + FOOT_HEIGHT]
        figure = new_figure(max(0.6 + cell * len(maps), MIN_WIDTH), sum(heights))
        parts = figure.subfigures(2, 1, height_ratios=heights)
        for part, (label, values) in zip(parts, rows.items(), strict=True):
            line = part.subplots(1, len(maps), squeeze=False)[0]
            for value in values:
                value.flat[[0, -1]] = np.nan
            low, high = np.nanmin(values), np.nanmax(values)
            for axes, value in zip(line, values, strict=True):
                picture = axes.imshow(value, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
                frame(axes)
                axes.set_xlabel(f"mean {np.nanmean(value):#.3g}", fontsize=7.5, labelpad=2)
            bar = part.colorbar(picture, ax=list(line), ticks=MaxNLocator(4), fraction=0.05, aspect=8, pad=0.01)
            bar.outline.set_visible(False)
            part.suptitle(label, x=0.01, ha="left", fontsize=8.5)
        for axes, title in zip(parts[0].axes, titles, strict=False):  # the last one is the colour bar's
            axes.set_title(title.replace(", ", "\n"), fontsize=7.5, pad=3, linespacing=1.1)
        return figure
