"""Figure (m): where in the image a method leaves the autoregressive image, and what that costs from there on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.analysis.method_labels import describe_parameters, method_colour, method_name
from lantern_pipeline.analysis.summary import preferred_rows, select_headline
from lantern_pipeline.figures.style import (
    BLACK,
    GREY,
    PAGE_WIDTH,
    draw_band,
    fitting_columns,
    new_figure,
    paper_style,
    require_columns,
)
from lantern_pipeline.metrics.speed import BASELINE

MEASURES = {"share_identical": "images without a difference so far (%)", "nll_excess": "NLL excess so far (nats)"}
FACTORS = {"share_identical": 100.0}
COLUMNS = (
    "method_id",
    "prompt_set",
    "temperature",
    "repeat",
    "position",
    *(name + end for name in MEASURES for end in ("", "_low", "_high")),
)
LINES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
WRAP = 28  # letters in a line of the legend


class Curve(NamedTuple):
    """A line of both panels: its label, its colour, its rows of the table by position."""

    label: str
    colour: str
    rows: pd.DataFrame


def draw_divergence(divergence: pd.DataFrame, summary: pd.DataFrame, settings: Mapping[str, Any]) -> Figure:
    """Draws the share of images still identical (left) and the cumulative NLL excess (right) over the position.

    A figure of page width: the first method of each preset; bands are 95 % intervals over prompts. Methods whose images
    never differ share a line. `divergence`: total_variation/divergence.csv, one row per method and position.
    """
    require_columns(divergence, COLUMNS, "total_variation/divergence.csv")
    headline = select_headline(summary, settings)
    keys, methods = headline.iloc[0], headline[headline["method_id"] != BASELINE].drop_duplicates("method")
    is_headline = (divergence["prompt_set"] == keys["prompt_set"]) & (divergence["temperature"] == keys["temperature"])
    rows = preferred_rows(divergence[is_headline])
    rows = rows[rows["method_id"].isin(methods["method_id"])]
    require_columns(rows, COLUMNS, "total_variation/divergence.csv (headline methods)")
    curves = _split_curves(rows, methods)
    num_columns = fitting_columns([line for curve in curves for line in curve.label.split("\n")])
    with paper_style():
        figure = new_figure(PAGE_WIDTH, 3.0 + 0.17 * -(-len(curves) // num_columns))
        for axes, name in zip(figure.subplots(1, 2), MEASURES, strict=True):
            for place, curve in enumerate(curves):
                _draw_curve(axes, curve, name, LINES[place % len(LINES)])
            _finish(axes, int(rows["position"].max()) + 1)
            axes.set_title(MEASURES[name], loc="left", fontsize=8.5)
        figure.axes[0].set_ylim(0, 104)
        figure.axes[1].axhline(0, color=GREY, linewidth=0.9, zorder=1)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        look = {"ncols": num_columns, "handlelength": 2.4, "columnspacing": 1.2}
        figure.legend(handles, labels, loc="outside lower center", **look)
        return figure


def _split_curves(rows: pd.DataFrame, methods: pd.DataFrame) -> list[Curve]:
    """One curve per method, those without any difference as one, the first."""
    curves, same = [], []
    for _, method in methods.iterrows():
        curve = rows[rows["method_id"] == method["method_id"]].sort_values("position")
        if curve.empty:
            continue
        name = method_name(str(method["method"]))
        if (curve["share_identical"] == 1).all():
            same.append((name, curve))
        else:
            label = f"{name} {describe_parameters(method)}".strip()
            curves.append(Curve(label, method_colour(str(method["method"])), curve))
    if same:
        names = textwrap.fill(", ".join(name for name, _ in same), WRAP)
        curves.insert(0, Curve(names, BLACK, same[0][1]))
    return curves


def _draw_curve(axes: Axes, curve: Curve, name: str, line: str) -> None:
    x, factor = curve.rows["position"].to_numpy(float), FACTORS.get(name, 1.0)
    value, low, high = (factor * curve.rows[name + end].to_numpy(float) for end in ("", "_low", "_high"))
    draw_band(axes, x, low, high, curve.colour)
    axes.plot(x, value, color=curve.colour, linestyle=line, label=curve.label)


def _finish(axes: Axes, num_tokens: int) -> None:
    """Puts a grid line at the beginning of each row of tokens, at most nine of them labelled."""
    side = round(num_tokens**0.5)
    is_square = side * side == num_tokens and side > 1
    begins = list(range(0, num_tokens + 1, side if is_square else max(1, num_tokens // 8)))
    begins = begins[:: -(-len(begins) // 9)]
    axes.set_xticks(begins)
    row_length = f" ({side} tokens a row)" if is_square else ""
    axes.set(xlim=(0, num_tokens - 1), xlabel=f"position in the image{row_length}")
