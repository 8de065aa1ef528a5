"""Figure (q): speed against the distance of the emitted law from the target's, with a draft model and without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FormatStrFormatter

from lantern_pipeline.analysis.claims import place_rows
from lantern_pipeline.analysis.method_labels import method_colour, method_marker
from lantern_pipeline.analysis.summary import select_headline
from lantern_pipeline.figures.style import (
    GREY,
    PAGE_WIDTH,
    fitting_columns,
    half_widths,
    new_figure,
    paper_style,
)
from lantern_pipeline.figures.tradeoff import LINES, SPEEDS, Curve, split_curves
from lantern_pipeline.metrics.speed import BASELINE

HEIGHT, ROW_HEIGHT = 3.6, 0.17  # inches: of the upper panels, and of a line below or of the legend
TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1)
EXACT, UNKNOWN = "total variation 0", "total variation not known"
FILLS = {"trained draft model": "full", "no draft model": "none"}  # of markers


def draw_frontier(summary: pd.DataFrame, settings: Mapping[str, Any]) -> Figure:
    """Draws total variation from the target over speed-up (left) and tokens per forward (right), a line per method over
    its grid; below, at their speed alone, the rows that follow the target's law and those where it is not known.

    A figure of page width. Bars are 95 % intervals; the vertical axis is that of square roots. `summary`: table of
    `lantern_pipeline.analysis.summary.build_summary`.
    """
    curves = split_curves(place_rows(select_headline(summary, settings)))
    known = _where(curves, lambda distance: distance > 0)
    lists = {EXACT: _where(curves, lambda distance: distance == 0), UNKNOWN: _where(curves, pd.isna)}
    lists = {title: listed for title, listed in lists.items() if listed}
    num_columns = fitting_columns([*FILLS, *(curve.label for curve in known)])
    legend_rows = -(-(len(known) + len(FILLS)) // num_columns)
    heights = [HEIGHT, *(ROW_HEIGHT * (len(listed) + 1) for listed in lists.values())]
    with paper_style():
        figure = new_figure(PAGE_WIDTH, sum(heights) + ROW_HEIGHT * (legend_rows + 2))
        panels = figure.subplots(len(heights), 2, sharex="col", sharey="row", height_ratios=heights, squeeze=False)
        for x, (speed, title) in enumerate(SPEEDS.items()):
            _draw_known(panels[0, x], known, speed)
            for axes, listed in zip(panels[1:, x], lists.values(), strict=True):
                _draw_list(axes, listed, speed)
            panels[-1, x].set_xlabel(title)
        for axes, title in zip(panels[1:, 0], lists, strict=True):
            axes.set_title(title, loc="left", fontsize=8)
        panels[0, 0].set_ylabel("total variation from the target, per token")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        handles += [Line2D([], [], color=GREY, marker="o", linestyle="none", fillstyle=fill) for fill in FILLS.values()]
        options = {"loc": "outside lower center", "ncols": num_columns, "handlelength": 2.4}
        figure.legend(handles, [*labels, *FILLS], **options)
        return figure


def _where(curves: Sequence[Curve], holds: Callable[[pd.Series], pd.Series]) -> list[Curve]:
    """Curves of the rows for whose distance something holds."""
    parts = [replace(curve, rows=curve.rows[holds(curve.rows["distance"])]) for curve in curves]
    return [curve for curve in parts if len(curve.rows)]


def _draw_known(axes: Axes, curves: Sequence[Curve], speed: str) -> None:
    axes.set_yscale("function", functions=(lambda value: np.sqrt(np.clip(value, 0, None)), np.square))
    for curve in curves:
        line = LINES[curve.place % len(LINES)] if len(curve.rows) > 1 else "none"
        look = _look(curve) | {"linestyle": line, "label": curve.label}
        y = curve.rows["distance"].to_numpy(float)
        axes.errorbar(curve.rows[speed], y, xerr=half_widths(curve.rows, speed), **look)
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set_ylim(bottom=0)


def _draw_list(axes: Axes, curves: Sequence[Curve], speed: str) -> None:
    for place, curve in enumerate(curves):
        y = np.full(len(curve.rows), place)
        axes.errorbar(curve.rows[speed], y, xerr=half_widths(curve.rows, speed), linestyle="none", **_look(curve))
    axes.set_yticks(range(len(curves)), [curve.label for curve in curves])
    axes.set_ylim(len(curves) - 0.4, -0.6)


def _look(curve: Curve) -> dict[str, Any]:
    """Filled with a draft model, open without; larger markers tell a method's second curve from its first."""
    colour = method_colour(curve.method)
    return {
        "color": colour,
        "ecolor": (colour, 0.45),
        "marker": method_marker(curve.method),
        "markersize": 11 if curve.method == BASELINE else 9 if curve.place else 6,
        "markerfacecolor": colour if curve.rows["has_draft_model"].iloc[0] else "white",
        "markeredgecolor": colour,
        "elinewidth": 0.9,
        "clip_on": False,
    }
