"""Figure (p): what becomes of every method as its target learns: accepted length and likelihood over cross-entropy."""

from __future__ import annotations

from itertools import count

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator

from lantern_pipeline.analysis.method_labels import PARTS, SYMBOLS, label_rows, method_colour, method_marker
from lantern_pipeline.figures.style import PAGE_WIDTH, half_widths, new_figure, paper_style, require_columns, spread
from lantern_pipeline.metrics.speed import BASELINE

X = "target_cross_entropy"
MEASURES = {"mean_accepted_length": "tokens / forward", "nll": "NLL (nats / token)"}
COLUMNS = (
    *("method", "method_id", *PARTS, *SYMBOLS, "temperature", "target_steps", X),
    *(name + end for name in MEASURES for end in ("", "_low", "_high")),
)
LINES = ("-", "--", ":")
LABEL_HEIGHT = 0.058  # of a panel


def draw_targets(table: pd.DataFrame) -> Figure:
    """Draws tokens per forward (above) and NLL (below) over the target's held-out cross-entropy, better targets to the
    right: a line per method, named at its end.

    A figure of page width. Bars are 95 % intervals. Exact methods have autoregressive decoding's NLL but for chance,
    and no line below. `table`: ablations/target_steps.csv.
    """
    require_columns(table, COLUMNS, "ablations/target_steps.csv")
    rows = table.assign(label=label_rows(table)).sort_values(X, ascending=False, kind="stable")
    is_baseline = rows["method"] == BASELINE
    with paper_style():
        figure = new_figure(PAGE_WIDTH, 5.8)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.15, 1))
        for axes, name, shown in (
            (above, "mean_accepted_length", rows[~is_baseline]),
            (below, "nll", rows[is_baseline | ~rows["is_exact"].eq(True)]),
        ):
            _draw_panel(axes, shown, name)
            axes.set_ylabel(MEASURES[name])
        below.set_xlabel("cross-entropy of the target on held-out images (nats / token): better to the right")
        below.invert_xaxis()
        _name_targets(above, rows)
        return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    """Draws the lines of a panel and writes their names at their right ends, apart from each other."""
    places: dict[str, count] = {}
    ends = []
    for (method, _), line in rows.groupby(["method", "method_id"], sort=False):
        colour, style = method_colour(method), LINES[next(places.setdefault(method, count())) % len(LINES)]
        look = {"marker": method_marker(method), "color": colour, "ecolor": (colour, 0.45), "elinewidth": 0.9}
        axes.errorbar(line[X], line[name], yerr=half_widths(line, name), linestyle=style, linewidth=1.6, **look)
        ends.append((line[name].iloc[-1], line[X].iloc[-1], colour, line["label"].iloc[0]))
    axes.margins(y=0.08)
    low, high = axes.get_ylim()
    ends.sort(key=lambda end: end[0])
    heights = spread(np.array([(end[0] - low) / (high - low) for end in ends]), LABEL_HEIGHT)
    for (value, x, colour, label), height in zip(ends, heights, strict=True):
        axes.annotate(
            label,
            (x, value),
            (1.04, height),
            textcoords="axes fraction",
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 1.0, "relpos": (0, 0.5), "shrinkB": 4},
        )


def _name_targets(axes: Axes, rows: pd.DataFrame) -> None:
    """Writes above the panel after how many steps of training each target is taken."""
    targets = rows.drop_duplicates(X)
    names = ["trained" if pd.isna(steps) else f"{steps:,.0f}" for steps in targets["target_steps"]]
    top = axes.secondary_xaxis("top")
    top.xaxis.set_major_locator(FixedLocator(list(targets[X])))
    top.xaxis.set_major_formatter(FixedFormatter(names))
    top.get_xticklabels()[-1].set_horizontalalignment("left")  # the last ones stand close to each other
    top.set_xlabel("optimiser steps of the target")
