"""Figure (j): where a decoding step's time goes, one stacked bar per method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from lantern_pipeline.figures import style
from lantern_pipeline.measure.speed import BASELINE
from lantern_pipeline.tables.summary import select_headline

# of a step -> name, colour, and how far its interval lies from the middle of the bar
PARTS = {
    "draft": ("drafting", style.SKY_BLUE, -0.25),
    "target": ("target forward", style.BLUE, -0.15),
    "score": ("guidance, filter, noise", style.GREEN, -0.05),
    "verify": ("verification", style.ORANGE, 0.05),
    "commit": ("commit", style.PURPLE, 0.15),
    "other": ("other", style.GREY, 0.25),
}
ROW_HEIGHT = 0.2  # inches


def draw_step_time(steps: pd.DataFrame, summary: pd.DataFrame, settings: Mapping[str, Any]) -> Figure:
    """Draws the mean milliseconds of a step at batch 1, stacked over its parts.

    A figure of page width. The text behind a bar is its length in ms and in steps of autoregressive decoding; thin
    lines are 95 % intervals of the part that ends there. `steps`: latency/steps.csv, one row per method and part.
    """
    names = select_headline(summary, settings).set_index("method_id")["label"]
    times = steps.groupby("method_id", sort=False)["milliseconds"]
    totals, behind = times.sum(), times.cumsum() - steps["milliseconds"]
    ends = (behind + steps[["milliseconds", "milliseconds_high"]].max(axis=1)).groupby(steps["method_id"]).max()
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, 0.95 + ROW_HEIGHT * len(totals))
        axes = figure.subplots()
        _draw_bars(axes, steps, list(totals.index))
        for place, (method_id, total) in enumerate(totals.items()):
            text = f"{total:#.3g} ms = {total / totals[BASELINE]:.2f} ×"
            look = {"textcoords": "offset points", "fontsize": 7.5, "va": "center"}
            axes.annotate(text, (ends[method_id], place), (6, 0), **look)
        axes.axvline(totals[BASELINE], color=style.BLACK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
        style.name_rows(axes, [names.get(method_id, method_id) for method_id in totals.index])
        axes.set_xlim(0, 1.3 * ends.max())
        axes.set_xlabel("milliseconds per step at batch 1; ×: in steps of autoregressive decoding (dashed)")
        axes.grid(visible=False, axis="y")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=6, handlelength=1.0)
        return figure


def _draw_bars(axes: Axes, steps: pd.DataFrame, method_ids: list[str]) -> None:
    begin, places = np.zeros(len(method_ids)), np.arange(len(method_ids))
    for part, (label, colour, offset) in PARTS.items():
        rows = steps[steps["part"] == part].set_index("method_id").reindex(method_ids)
        length = rows["milliseconds"].fillna(0).to_numpy(float)
        if not length.any():
            continue
        axes.barh(places, length, left=begin, height=0.72, color=colour, edgecolor="white", linewidth=0.5, label=label)
        begin, shown = begin + length, length > 0
        look = {"fmt": "none", "ecolor": style.BLACK, "elinewidth": 0.9, "zorder": 4}
        ends = style.half_widths(rows, "milliseconds")[:, shown]
        _, _, (lines,) = axes.errorbar(begin[shown], places[shown] + offset, xerr=ends, **look)
        lines.set_path_effects([withStroke(linewidth=2, foreground="white")])
