"""Figure (q): speed against total variation from the target, for methods with and without a draft model."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FormatStrFormatter

from lantern_pipeline.figures import style
from lantern_pipeline.figures.tradeoff import LINES, split_curves
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.claims import add_distance
from lantern_pipeline.tables.summary import MetricsSection, select_headline

HEIGHT, ROW_HEIGHT = 3.6, 0.17  # inches: height of the upper panels, and of a line of the lists or of the legend
TICKS = (0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1)
# whether a method has a draft model -> (text in the legend, fill of its markers)
FILLS: dict[bool, tuple[str, Literal["full", "none"]]] = {
    True: ("trained draft model", "full"),
    False: ("no draft model", "none"),
}


def draw_frontier(summary: pd.DataFrame, settings: MetricsSection) -> Figure:
    """Draw total variation against speed-up (left) and against tokens per forward pass (right), with page width.

    The total variation may be an upper bound (`add_distance`). A line connects the rows of one curve (`split_curves`).
    Methods whose total variation is 0 or unknown are listed below the panels with their speed. Bars are 95 % intervals
    of the speed.
    """
    rows = split_curves(add_distance(select_headline(summary, settings)))
    distance = rows["distance"]
    known = rows[distance > 0]
    # A distance of 0 would put all exact methods on one line, where they hide each other.
    lists = {"total variation 0": rows[distance == 0], "total variation not known": rows[distance.isna()]}
    lists = {title: listed for title, listed in lists.items() if len(listed)}
    fills = [fill for has_draft_model, fill in FILLS.items() if (rows["has_draft_model"] == has_draft_model).any()]
    num_columns = style.fitting_columns([*(name for name, _ in fills), *known["curve"]])
    # A list has a title above its lines.
    heights = [HEIGHT, *(ROW_HEIGHT * (listed["curve"].nunique() + 1) for listed in lists.values())]
    legend_rows = -(-(known["curve"].nunique() + len(fills)) // num_columns)  # rounded up
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, sum(heights) + ROW_HEIGHT * (legend_rows + 2))
        panels = figure.subplots(len(heights), 2, sharex="col", sharey="row", height_ratios=heights, squeeze=False)
        for x, (speed, title) in enumerate(style.SPEEDS.items()):
            _draw_curves(panels[0, x], known, speed)
            _scale(panels[0, x])
            for axes, listed in zip(panels[1:, x], lists.values(), strict=True):
                # In a list, the vertical position is the number of the curve.
                _draw_curves(axes, listed.assign(distance=pd.factorize(listed["curve"])[0]), speed, is_list=True)
                style.name_rows(axes, listed["curve"].unique())
            panels[-1, x].set_xlabel(title)
        for axes, title in zip(panels[1:, 0], lists, strict=True):
            axes.set_title(title, loc="left", fontsize=8)
        panels[0, 0].set_ylabel("total variation from the target, per token")
        # Methods of the lists have their names beside them, and need no entry. Both upper panels have the same curves.
        handles, _ = panels[0, 1].get_legend_handles_labels()
        handles += [
            Line2D([], [], fillstyle=fill, label=name, color=style.GREY, marker="o", linestyle="none")
            for name, fill in fills
        ]
        options = {"loc": "outside lower center", "ncols": num_columns, "handlelength": 2.4}
        figure.legend(handles=handles, **options)
        return figure


def _draw_curves(axes: Axes, rows: pd.DataFrame, speed: str, is_list: bool = False) -> None:
    """Draw one marker per row, at its speed and its column `distance`."""
    # `place` numbers the curves of one method.
    for (method, place), curve in rows.groupby(["method", "place"], sort=False):
        look = style.method_look(method, is_open=not curve["has_draft_model"].iloc[0])
        look["linestyle"] = "none" if is_list or len(curve) == 1 else LINES[place % len(LINES)]
        # Small markers for the first curve of a method, large ones for the others, which have the same colour.
        look["markersize"] = 11 if method == BASELINE else 9 if place else 6
        bars, y = style.half_widths(curve, speed), curve["distance"].to_numpy(float)
        # Without clipping, a marker on the edge of the panel is whole.
        axes.errorbar(curve[speed], y, xerr=bars, label=curve["curve"].iloc[0], clip_on=False, **look)


def _scale(axes: Axes) -> None:
    # Square root and its inverse: small total variations are spread, and 0 exists, unlike on a logarithmic axis. The
    # margins are below 0, where there is no root.
    axes.set_yscale("function", functions=(lambda value: np.sqrt(np.clip(value, 0, None)), np.square))
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.set_ylim(bottom=0)
