"""Figure (m): where in the image a method leaves the autoregressive image, and what that costs from there on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.analysis.method_labels import method_colour
from lantern_pipeline.analysis.summary import preferred_rows, select_headline
from lantern_pipeline.figures.style import (
    GREY,
    PAGE_WIDTH,
    draw_band,
    first_of_families,
    new_figure,
    paper_style,
    require_columns,
)

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
LINES = ("-", "--", "-.", ":")


def draw_divergence(divergence: pd.DataFrame, summary: pd.DataFrame, settings: Mapping[str, Any]) -> Figure:
    """Draws the share of images still identical (left) and the cumulative NLL excess (right) over the position.

    A figure of page width: the first method of each family; bands are 95 % intervals over prompts. `divergence`:
    total_variation/divergence.csv, one row per method and position.
    """
    require_columns(divergence, COLUMNS, "total_variation/divergence.csv")
    headline = select_headline(summary, settings)
    keys, methods = headline.iloc[0], first_of_families(headline)
    is_headline = (divergence["prompt_set"] == keys["prompt_set"]) & (divergence["temperature"] == keys["temperature"])
    rows = preferred_rows(divergence[is_headline])
    rows = rows[rows["method_id"].isin(methods["method_id"])]
    require_columns(rows, COLUMNS, "total_variation/divergence.csv (headline methods)")
    with paper_style():
        figure = new_figure(PAGE_WIDTH, 3.5)
        for axes, name in zip(figure.subplots(1, 2), MEASURES, strict=True):
            for place, (_, method) in enumerate(methods.iterrows()):
                curve = rows[rows["method_id"] == method["method_id"]].sort_values("position")
                if not curve.empty:
                    _draw_curve(axes, curve, name, (method, LINES[place % len(LINES)]))
            _finish(axes, int(rows["position"].max()) + 1)
            axes.set_title(MEASURES[name], loc="left", fontsize=8.5)
        figure.axes[0].set_ylim(0, 104)
        figure.axes[1].axhline(0, color=GREY, linewidth=0.9, zorder=1)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, handlelength=2.4, columnspacing=1.2)
        return figure


def _draw_curve(axes: Axes, curve: pd.DataFrame, name: str, look: tuple[pd.Series, str]) -> None:
    (method, line), factor = look, FACTORS.get(name, 1.0)
    x, colour = curve["position"].to_numpy(float), method_colour(method["method"])
    value, low, high = (factor * curve[name + end].to_numpy(float) for end in ("", "_low", "_high"))
    draw_band(axes, x, low, high, colour)
    axes.plot(x, value, color=colour, linestyle=line, label=method["label"])


def _finish(axes: Axes, num_tokens: int) -> None:
    """Puts a grid line at the beginning of each row of tokens, at most nine of them labelled."""
    side = round(num_tokens**0.5)
    is_square = side * side == num_tokens and side > 1
    begins = list(range(0, num_tokens + 1, side if is_square else max(1, num_tokens // 8)))
    begins = begins[:: -(-len(begins) // 9)]
    axes.set_xticks(begins)
    row_length = f" ({side} tokens a row)" if is_square else ""
    axes.set(xlim=(0, num_tokens - 1), xlabel=f"position in the image{row_length}")
