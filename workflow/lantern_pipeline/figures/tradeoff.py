"""Figure (b): what speed costs in quality. Speed-up and accepted length against likelihood and prompt accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.analysis.claims import ACCURACY_TOLERANCE
from lantern_pipeline.analysis.method_labels import PARTS, SYMBOLS, label_families, method_colour, method_marker
from lantern_pipeline.analysis.summary import select_headline
from lantern_pipeline.figures.style import GREY, PAGE_WIDTH, fitting_columns, half_widths, new_figure, paper_style
from lantern_pipeline.metrics.speed import BASELINE

SPEEDS = {"speedup": "speed-up over autoregressive (times)", "mean_accepted_length": "tokens per forward of the target"}
QUALITIES = {"nll": "NLL under the target\n(nats / token; lower is closer)", "prompt_accuracy": "prompt accuracy (%)"}
FACTORS = {"prompt_accuracy": 100.0}
GRID_ORDER = ("delta", "lambda_", "omega", "threshold", "h", "window", "k")  # the first that varies runs along a curve
BAND_LABEL = f"within {100 * ACCURACY_TOLERANCE:g} points of autoregressive"
LINES = ("-", "--", ":", "-.")
FILLS = ("full", "open", "bottom", "left")  # of the markers of a method's curves


@dataclass(frozen=True)
class Curve:
    """One method over its grid.

    Attributes:
        label: family and grid, for the legend.
        method: preset, which decides colour and marker.
        place: number among the curves of the same method, which decides line style and filling of the markers.
        rows: its rows of the table, in the order of the grid.
    """

    label: str
    method: str
    place: int
    rows: pd.DataFrame


def draw_tradeoff(summary: pd.DataFrame, settings: Mapping[str, Any]) -> Figure:
    """Draws 2 x 2 panels: columns are measures of speed, rows measures of quality.

    A figure of page width. Bars are 95 % intervals; methods without a grid are single points. `summary`: table of
    `lantern_pipeline.analysis.summary.build_summary`.
    """
    rows = select_headline(summary, settings)
    curves = split_curves(rows)
    baseline = rows[rows["method_id"] == BASELINE].iloc[0]
    # the band of prompt accuracy has an entry too
    num_columns = fitting_columns([BAND_LABEL, *(curve.label for curve in curves)])
    legend_rows = -(-(len(curves) + 1) // num_columns)
    with paper_style():
        figure = new_figure(PAGE_WIDTH, 4.6 + 0.17 * legend_rows)
        panels = figure.subplots(2, 2, sharex="col", sharey="row")
        for y, (quality, quality_title) in enumerate(QUALITIES.items()):
            for x, (speed, speed_title) in enumerate(SPEEDS.items()):
                axes = panels[y, x]
                _draw_baseline(axes, baseline, quality)
                for curve in curves:
                    _draw_curve(axes, curve, speed, quality)
                _note_missing(axes, rows, speed, quality)
                axes.set(xlabel=speed_title if y == 1 else None, ylabel=quality_title if x == 0 else None)
        handles, labels = panels[1, 1].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=num_columns, columnspacing=1.2, handlelength=2.2
        )
        return figure


def split_curves(rows: pd.DataFrame) -> list[Curve]:
    """Splits the headline rows into curves.

    A curve holds the rows of one family along the first parameter of GRID_ORDER that varies in it; further varying
    parameters (k beside delta, say) make further curves of the same colour.
    """
    rows = rows.assign(family=label_families(rows))
    keys = ["method", *PARTS]
    curves, counts = [], Counter()
    for _, family in rows.groupby(keys, sort=False, dropna=False):
        along = next((name for name in GRID_ORDER if family[name].nunique() > 1), None)
        others = [name for name in SYMBOLS if name != along]
        for _, curve in family.groupby(others, sort=True, dropna=False):
            curve, method = curve.sort_values(along) if along else curve, str(curve["method"].iloc[0])
            curves.append(Curve(_label(curve, along), method, counts[method], curve))
            counts[method] += 1
    return curves


def _label(curve: pd.DataFrame, along: str | None) -> str:
    """E.g. "LANTERN: k 20, δ 0.03–0.4"."""
    first, parts = curve.iloc[0], []
    for name, symbol in SYMBOLS.items():
        if name == along:
            parts.append(f"{symbol} {curve[name].min():g}–{curve[name].max():g}")
        elif not pd.isna(first[name]):
            parts.append(f"{symbol} {first[name]:g}")
    return f"{first['family']}: {', '.join(parts)}" if parts else str(first["family"])


def _draw_curve(axes: Axes, curve: Curve, speed: str, quality: str) -> None:
    colour, fill = method_colour(curve.method), FILLS[curve.place % len(FILLS)]
    x, y = (_values(curve.rows, name) for name in (speed, quality))
    bars = [half_widths(curve.rows, name, FACTORS.get(name, 1.0)) for name in (speed, quality)]
    axes.errorbar(
        x,
        y,
        xerr=bars[0],
        yerr=bars[1],
        fmt=method_marker(curve.method),
        linestyle=LINES[curve.place % len(LINES)] if len(x) > 1 else "none",
        color=colour,
        ecolor=(colour, 0.45),
        elinewidth=0.9,
        markersize=11 if curve.method == BASELINE else 6,
        fillstyle="full" if fill == "open" else fill,
        markerfacecolor="white" if fill == "open" else colour,
        markerfacecoloralt="white",
        markeredgecolor="white" if fill == "full" else colour,
        markeredgewidth=0.5 if fill == "full" else 1.0,
        label=curve.label,
        zorder=4 if curve.method == BASELINE else 3,
    )


def _draw_baseline(axes: Axes, baseline: pd.Series, quality: str) -> None:
    """Marks autoregressive decoding's quality, and the band of prompt accuracy that counts as kept."""
    level = _values(baseline.to_frame().T, quality)[0]
    if np.isnan(level):
        return
    axes.axhline(level, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    if quality == "prompt_accuracy":
        axes.axhspan(level - 100 * ACCURACY_TOLERANCE, level, color="#EEEEEE", zorder=0, linewidth=0, label=BAND_LABEL)


def _note_missing(axes: Axes, rows: pd.DataFrame, speed: str, quality: str) -> None:
    for name, reason in ((speed, "not timed on these prompts"), (quality, "prompts name no known attributes")):
        if rows[name].isna().all():
            axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", color=GREY)
            return


def _values(rows: pd.DataFrame, name: str) -> np.ndarray:
    """A column in the unit of the axis: (rows,)."""
    return FACTORS.get(name, 1.0) * rows[name].to_numpy(float)
