"""Figure (f): speed-up and mean accepted length of every method, with intervals, per temperature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from lantern_pipeline.figures import style
from lantern_pipeline.measure.speed import BASELINE
from lantern_pipeline.tables.method_labels import label_rows, method_colour
from lantern_pipeline.tables.summary import preferred_rows

ROW_HEIGHT, TITLE_HEIGHT, FOOT_HEIGHT = 0.175, 0.55, 0.2  # inches


def draw_speed_bars(summary: pd.DataFrame, settings: Mapping[str, Any]) -> Figure:
    """Draws horizontal bars: a row of panels per temperature, speed-up left, mean accepted length right.

    A figure of page width. Bars start at 0; thin lines are 95 % intervals; the dashed line is autoregressive decoding.
    """
    rows = summary[summary["prompt_set"] == settings["headline_prompt_set"]]
    groups = [(value, preferred_rows(group)) for value, group in rows.groupby("temperature")]
    sizes = [len(group) for _, group in groups]
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, TITLE_HEIGHT * len(groups) + ROW_HEIGHT * sum(sizes) + FOOT_HEIGHT)
        panels = figure.subplots(len(groups), 2, sharex="col", sharey="row", squeeze=False, height_ratios=sizes)
        for line, (temperature, group) in zip(panels, groups, strict=True):
            for axes, name in zip(line, style.SPEEDS, strict=True):
                _draw_panel(axes, group, name)
            line[0].set_title(_title(temperature, group), loc="left", fontsize=8)
            style.name_rows(line[0], label_rows(group))
        for axes, title in zip(panels[-1], style.SPEEDS.values(), strict=True):
            axes.set_xlabel(title)
            axes.set_xlim(0, axes.get_xlim()[1] * 1.12)  # room for the numbers
        return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, name: str) -> None:
    places, values, ends = range(len(rows)), rows[name].to_numpy(float), style.half_widths(rows, name)
    colours = [method_colour(str(method)) for method in rows["method"]]
    axes.barh(places, values, height=0.72, color=colours, alpha=0.85)
    axes.errorbar(values, places, xerr=ends, fmt="none", ecolor=style.BLACK, elinewidth=0.9, capsize=1.8)
    axes.axvline(1, **{**style.AT_BASELINE, "zorder": 3})
    axes.tick_params(labelbottom=True)
    axes.grid(visible=False, axis="y")
    for place, value, end in zip(places, values, ends[1], strict=True):
        text, start = ("not timed", 0.0) if pd.isna(value) else (f"{value:.2f}", value + end)
        look = {"textcoords": "offset points", "fontsize": 7.5, "va": "center", "zorder": 5}
        number = axes.annotate(text, (start, place), (4, 0), **look)
        number.set_path_effects([withStroke(linewidth=3, foreground="white")])


def _title(temperature: float, rows: pd.DataFrame) -> str:
    """Temperature, and how good the target is: an undertrained target makes every method look fast."""
    target = rows[rows["method_id"] == BASELINE].iloc[0]
    cross_entropy, accuracy = target["target_cross_entropy"], target["target_prompt_accuracy"]
    parts = [] if pd.isna(cross_entropy) else [f"cross-entropy {cross_entropy:.2f} nats / token"]
    parts += [] if pd.isna(accuracy) else [f"prompt accuracy {100 * accuracy:.0f} %"]
    return f"temperature {temperature:g}; target: {', '.join(parts) or 'quality unknown'}"
