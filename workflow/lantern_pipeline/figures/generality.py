"""Figure (r): tokens per forward pass of every method against the ambiguity of the target, for many targets."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.figures import style
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.generality import LENGTH
from lantern_pipeline.tables.method_labels import label_rows


def draw_generality(table: pd.DataFrame) -> Figure:
    """Draw tokens per forward pass (left) and the gain of relaxed methods (right) against ambiguity, with page width.

    Gain and ambiguity are those of `tables.generality`, whose columns `table` has. Each method has one marker per
    target, which is open for exact methods. Bars are 95 % intervals. The targets are named above the panels.
    """
    rows = table.assign(label=label_rows(table), ambiguity=1 - table["top10"])
    rows = rows[rows["method_id"] != BASELINE]
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, 4.6)
        panels = figure.subplots(1, 2)
        titles = {LENGTH: "tokens / forward", "gain": "tokens / forward, times the exact method's"}
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            for _, line in rows[rows[name].notna()].groupby("method_id", sort=False):
                _draw_method(axes, line, name)
            axes.set_ylabel(title)
            axes.set_xlabel("ambiguity: 1 - mass of the ten best tokens")
            style.name_places(axes, rows.drop_duplicates("target").set_index("target")["ambiguity"])
        panels[1].axhline(1, color=style.BLACK, linewidth=0.7)  # the exact method itself
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=style.fitting_columns(labels))
        return figure


def _draw_method(axes: Axes, line: pd.DataFrame, name: str) -> None:
    first, x, bars = line.iloc[0], line["ambiguity"].to_numpy(float), style.half_widths(line, name)
    look = style.method_look(first["method"], is_open=bool(first["is_exact"]))
    axes.errorbar(x, line[name], yerr=bars, linestyle="none", label=first["label"], **look)
    # A least-squares line to guide the eye. The claim of a trend rests on Kendall's tau instead.
    if len(set(x)) > 1:  # one ambiguity determines no line
        ends = np.array([x.min(), x.max()])
        fit = np.polynomial.Polynomial.fit(x, line[name].to_numpy(float), 1)
        axes.plot(ends, fit(ends), color=look["color"], linestyle="--", linewidth=0.9, alpha=0.6)
