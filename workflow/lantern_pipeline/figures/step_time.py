"""Figure (j): where a decoding step's time goes, one stacked bar per method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from lantern_pipeline.analysis.summary import select_headline
from lantern_pipeline.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PAGE_WIDTH,
    PURPLE,
    SKY_BLUE,
    half_widths,
    new_figure,
    paper_style,
    require_columns,
)
from lantern_pipeline.metrics.speed import BASELINE

COLUMNS = ("method_id", "part", "milliseconds", "milliseconds_low", "milliseconds_high")
PARTS = {
    "draft": ("drafting", SKY_BLUE),
    "target": ("target forward", BLUE),
    "score": ("guidance, filter, noise", GREEN),
    "verify": ("verification", ORANGE),
    "commit": ("commit", PURPLE),
    "other": ("other", GREY),
}
ROW_HEIGHT = 0.2  # inches
OFFSETS = (-0.25, -0.15, -0.05, 0.05, 0.15, 0.25)  # of the parts' intervals from the middle of the bar


def draw_step_time(steps: pd.DataFrame, summary: pd.DataFrame, settings: Mapping[str, Any]) -> Figure:
    """Draws the mean milliseconds of a step at batch 1, stacked over its parts.

    A figure of page width. The text behind a bar is its length in ms and in steps of autoregressive decoding; thin
    lines are 95 % intervals of the part that ends there. `steps`: latency/steps.csv, one row per method and part.
    """
    require_columns(steps, COLUMNS, "latency/steps.csv")
    unknown = sorted(set(steps["part"]) - set(PARTS))
    if unknown:
        raise ValueError(f"part in latency/steps.csv must be one of {', '.join(PARTS)}, got {', '.join(unknown)}")
    names = select_headline(summary, settings).set_index("method_id")["label"]
    totals = steps.groupby("method_id", sort=False)["milliseconds"].sum()
    behind = steps.groupby("method_id", sort=False)["milliseconds"].cumsum() - steps["milliseconds"]
    ends = (behind + steps[["milliseconds", "milliseconds_high"]].max(axis=1)).groupby(steps["method_id"]).max()
    labels = [names.get(method_id, method_id) for method_id in totals.index]
    with paper_style():
        figure = new_figure(PAGE_WIDTH, 0.95 + ROW_HEIGHT * len(labels))
        axes = figure.subplots()
        _draw_bars(axes, steps, list(totals.index))
        for place, total in enumerate(totals):
            text = f"{total:#.3g} ms"
            if BASELINE in totals.index:
                text += f" = {total / totals[BASELINE]:.2f} ×"
            axes.annotate(
                text, (ends[totals.index[place]], place), (6, 0), textcoords="offset points", fontsize=7.5, va="center"
            )
        if BASELINE in totals.index:
            axes.axvline(totals[BASELINE], color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
        axes.set_yticks(range(len(labels)), labels)
        axes.set(ylim=(len(labels) - 0.4, -0.6), xlim=(0, 1.3 * ends.max()))
        axes.set_xlabel("milliseconds per step at batch 1; ×: in steps of autoregressive decoding (dashed)")
        axes.grid(visible=False, axis="y")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=6, handlelength=1.0)
        return figure


def _draw_bars(axes: Axes, steps: pd.DataFrame, method_ids: list[str]) -> None:
    begin = np.zeros(len(method_ids))
    for offset, (part, (label, colour)) in zip(OFFSETS, PARTS.items(), strict=True):
        rows = steps[steps["part"] == part].set_index("method_id").reindex(method_ids)
        length = rows["milliseconds"].fillna(0).to_numpy(float)
        if not length.any():
            continue
        places = np.arange(len(method_ids))
        axes.barh(places, length, left=begin, height=0.72, color=colour, edgecolor="white", linewidth=0.5, label=label)
        begin = begin + length
        shown = length > 0
        ends = half_widths(rows, "milliseconds")[:, shown]
        _, _, (lines,) = axes.errorbar(
            begin[shown], places[shown] + offset, xerr=ends, fmt="none", ecolor=BLACK, elinewidth=0.9, zorder=4
        )
        lines.set_path_effects([withStroke(linewidth=2, foreground="white")])
