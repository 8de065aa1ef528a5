"""Figure (t): tokens per forward pass of every method against the side of the grid, beside published numbers."""

from __future__ import annotations

from collections import Counter

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.figures import style
from lantern_pipeline.figures.tradeoff import LINES
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.comparisons import read_published, select_published
from lantern_pipeline.tables.generality import LENGTH
from lantern_pipeline.tables.method_labels import label_rows, method_name


def draw_grid_sizes(table: pd.DataFrame) -> Figure:
    """Draw tokens per forward pass against the side of the grid, measured (left) and published (right).

    The left panel has one line per method, with 95 % intervals, the right one a hollow marker per published number,
    with the models above it and arXiv numbers in the legend. The figure has page width. `table` is a generality.csv
    whose targets differ in their grid.
    """
    ours = table.assign(label=label_rows(table))
    ours = ours[ours["method_id"] != BASELINE].sort_values("grid_side", kind="stable")
    theirs = select_published(read_published(), LENGTH).dropna(subset="grid_side")
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, 5.0)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.4))
        _draw_measured(left, ours)
        _draw_published(right, theirs)
        left.set(xlabel="codes along a side, measured here", ylabel="tokens / forward")
        right.set_xlabel("codes along a side, published by others (other models)")
        labels = [label for axes in (left, right) for label in axes.get_legend_handles_labels()[1]]
        figure.legend(loc="outside lower center", ncols=style.fitting_columns(labels))
        return figure


def _draw_measured(axes: Axes, rows: pd.DataFrame) -> None:
    # Lines of each method so far: methods of one name share a colour, and differ in the style of their lines.
    counts = Counter()
    for (method, label), line in rows.groupby(["method", "label"], sort=False):
        look = {**style.method_look(str(method)), "linestyle": LINES[counts[method] % len(LINES)]}
        axes.errorbar(line["grid_side"], line[LENGTH], yerr=style.half_widths(line, LENGTH), label=label, **look)
        counts[method] += 1
    axes.set_xticks(rows["grid_side"].unique())


def _draw_published(axes: Axes, rows: pd.DataFrame) -> None:
    for (method, arxiv), dots in rows.groupby(["method", "arxiv"], sort=False):
        look = {**style.method_look(str(method), is_open=True), "linestyle": "none", "markersize": 6}
        axes.errorbar(dots["grid_side"], dots[LENGTH], label=f"{method_name(str(method))} ({arxiv})", **look)
    axes.set_xticks(rows["grid_side"].unique())
    # A model is named once, although several papers use it.
    style.name_places(axes, rows.drop_duplicates("model").set_index("model")["grid_side"])
