"""Figure (r): tokens per forward of every method over the ambiguity of many targets."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.analysis.generality import COLUMNS, LENGTH, with_labels
from lantern_pipeline.analysis.method_labels import method_colour, method_marker
from lantern_pipeline.figures.style import (
    BLACK,
    GREY,
    PAGE_WIDTH,
    fitting_columns,
    half_widths,
    new_figure,
    paper_style,
    require_columns,
)
from lantern_pipeline.metrics.speed import BASELINE


def draw_generality(table: pd.DataFrame) -> Figure:
    """Draws tokens per forward of every method (left) and what relaxing gains (right) over one minus the probability of
    the target's ten best tokens, a marker per method and target; dashed lines are least-squares fits, for the eye.

    A figure of page width; targets are named on top. Bars are 95 % intervals. `table`: generality.csv.
    """
    require_columns(table, COLUMNS, "generality.csv")
    rows = with_labels(table)
    rows = rows[rows["method_id"] != BASELINE].assign(ambiguity=1 - table["top10"])
    with paper_style():
        figure = new_figure(PAGE_WIDTH, 4.4)
        left, right = figure.subplots(1, 2)
        for axes, name, title in ((left, LENGTH, "tokens / forward"), (right, "gain", "times the exact method's")):
            for _, line in rows[rows[name].notna()].groupby("method_id", sort=False):
                _draw_method(axes, line, name)
            axes.set_ylabel(title)
            axes.set_xlabel("1 - mass of the ten best tokens: more ambiguous to the right")
            _name_targets(axes, rows)
        right.axhline(1, color=BLACK, linewidth=0.7)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=fitting_columns(labels))
        return figure


def _draw_method(axes: Axes, line: pd.DataFrame, name: str) -> None:
    method = line["method"].iloc[0]
    colour = method_colour(method)
    is_exact = line["relaxation"].iloc[0] == "none"
    look = {"color": colour, "ecolor": (colour, 0.45), "elinewidth": 0.9, "marker": method_marker(method)}
    face = "white" if is_exact else colour
    axes.errorbar(
        line["ambiguity"],
        line[name],
        yerr=half_widths(line, name),
        linestyle="none",
        markerfacecolor=face,
        label=line["label"].iloc[0],
        **look,
    )
    if line["ambiguity"].nunique() > 1:
        ends = np.array([line["ambiguity"].min(), line["ambiguity"].max()])
        fit = np.polyfit(line["ambiguity"], line[name], 1)
        axes.plot(ends, np.polyval(fit, ends), color=colour, linestyle="--", linewidth=0.9, alpha=0.6)


def _name_targets(axes: Axes, rows: pd.DataFrame) -> None:
    """Names of the targets above the panel, at their places."""
    targets = rows.drop_duplicates("target")
    top = axes.secondary_xaxis("top")
    top.set_xticks(list(targets["ambiguity"]), list(targets["target"]), rotation=60, ha="left", fontsize=7, color=GREY)
