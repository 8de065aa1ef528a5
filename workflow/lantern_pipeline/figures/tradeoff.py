"""Figure (b): the loss of quality at higher speed, as NLL and prompt accuracy against two measures of speed.

A *curve* has rows of the main results that differ in one parameter only, and a line connects them. `quality` and
`speed` are columns, and `factor` multiplies the quality.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.figures import style
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.claims import ACCURACY_TOLERANCE
from lantern_pipeline.tables.method_labels import PARTS, SYMBOLS, custom_parameters, label_families
from lantern_pipeline.tables.summary import MetricsSection, select_headline

# measure -> title, factor to the unit in the title
QUALITIES = {
    "nll": ("NLL under the target\n(nats / token;\nnearer the line is closer)", 1.0),
    "prompt_accuracy": ("prompt accuracy (%)", 100.0),
}
LINE_LABEL = "autoregressive decoding"
BAND_LABEL = f"within {100 * ACCURACY_TOLERANCE:g} points of autoregressive"
LINES = ("-", "--", ":", "-.")
FILLS = ("full", "open", "bottom", "left")  # of markers, one per curve of a method; the last two are half filled


def draw_tradeoff(summary: pd.DataFrame, settings: MetricsSection) -> Figure:
    """Draw one panel per entry of QUALITIES (rows) and `style.SPEEDS` (columns), with 95 % intervals and page width.

    A curve of one row is a point.
    """
    rows = select_headline(summary, settings)
    curves = split_curves(rows)
    num_columns = style.fitting_columns([LINE_LABEL, BAND_LABEL, *curves["curve"]])
    with style.paper_style():
        # Inches: 4.6 for the panels, 0.17 for a line of the legend. The number of lines is rounded up. The 2
        # entries besides the curves are LINE_LABEL and BAND_LABEL.
        figure = style.new_figure(style.PAGE_WIDTH, 4.6 + 0.17 * -(-(curves["curve"].nunique() + 2) // num_columns))
        panels = figure.subplots(2, 2, sharex="col", sharey="row")
        named = {}  # entries of the legend that occur in some panel
        for y, (quality, (quality_title, factor)) in enumerate(QUALITIES.items()):
            for x, (speed, speed_title) in enumerate(style.SPEEDS.items()):
                axes = panels[y, x]
                _draw_baseline(axes, rows, quality, factor)
                # `place` numbers the curves of one method.
                for _, curve in curves.groupby(["method", "place"], sort=False):
                    _draw_curve(axes, curve.dropna(subset=[speed, quality]), speed, quality, factor)
                _note_missing(axes, rows, speed, quality)
                axes.set(xlabel=speed_title if y == 1 else None, ylabel=quality_title if x == 0 else None)
                handles, labels = axes.get_legend_handles_labels()
                named |= dict(zip(labels, handles, strict=True))
        # A method may be missing in one panel, such as an untimed one, so that no panel has all entries.
        order = [label for label in (LINE_LABEL, BAND_LABEL, *curves["curve"].unique()) if label in named]
        look = {"ncols": num_columns, "columnspacing": 1.2, "handlelength": 2.2}
        figure.legend([named[label] for label in order], order, loc="outside lower center", **look)
        return figure


def split_curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Divide the main results into curves, each of one method with the same PARTS, such as tree and acceptance.

    The parameter that varies along a curve is the first with several values, in the order of SYMBOLS and then of
    custom parameters, and k only if no other has. Each value of a second parameter gives a curve: LANTERN with k 20 and
    k 100 and five deltas gives two curves of five points.

    Returns:
        The rows, sorted by curve and along each curve. Column `curve` is its name, such as "LANTERN: k 20, δ 0.03–0.4",
        and `place` its number among the curves of its method, from 0.
    """
    symbols = SYMBOLS | custom_parameters(rows)
    symbols = {name: symbol for name, symbol in symbols.items() if name in rows}  # an older table lacks new parameters
    grid_order = sorted(symbols, key=lambda name: name == "k")  # k last; the sort is stable
    rows = rows.assign(family=label_families(rows))
    curves, counts = [], Counter()
    for _, family in rows.groupby(["method", *PARTS], sort=False, dropna=False):
        along = next((name for name in grid_order if family[name].nunique() > 1), None)
        others = [name for name in symbols if name != along]
        for _, curve in family.groupby(others, sort=True, dropna=False):
            curve, method = curve.sort_values(along) if along else curve, str(curve["method"].iloc[0])
            curves.append(curve.assign(curve=_label(curve, along, symbols), place=counts[method]))
            counts[method] += 1
    return pd.concat(curves)


def _label(curve: pd.DataFrame, along: str | None, symbols: Mapping[str, str]) -> str:
    first, parts = curve.iloc[0], []
    for name, symbol in symbols.items():
        if name == along:  # both ends are equal if this curve has a single point
            parts.append(f"{symbol} {curve[name].min():g}–{curve[name].max():g}")
        elif not pd.isna(first[name]):
            parts.append(f"{symbol} {first[name]:g}")
    return f"{first['family']}: {', '.join(parts)}" if parts else str(first["family"])


def _draw_curve(axes: Axes, curve: pd.DataFrame, speed: str, quality: str, factor: float) -> None:
    if curve.empty:
        return
    # The curves of a method share a colour. Line style and fill of the markers distinguish them.
    method, place = curve["method"].iloc[0], curve["place"].iloc[0]
    fill, is_baseline = FILLS[place % len(FILLS)], method == BASELINE
    look = style.method_look(method, is_open=fill == "open") | {
        "linestyle": LINES[place % len(LINES)] if len(curve) > 1 else "none",
        "markersize": 11 if is_baseline else 6,
        "fillstyle": "full" if fill == "open" else fill,  # an open marker is a full one with a white face
        "markerfacecoloralt": "white",  # the other half of a half-filled marker
        "zorder": 4 if is_baseline else 3,
    }
    # A white edge separates markers that overlap.
    if fill == "full":
        look |= {"markeredgecolor": "white", "markeredgewidth": 0.5}
    bars = {"xerr": style.half_widths(curve, speed), "yerr": style.half_widths(curve, quality, factor)}
    axes.errorbar(curve[speed], factor * curve[quality], **bars, label=curve["curve"].iloc[0], **look)


def _draw_baseline(axes: Axes, rows: pd.DataFrame, quality: str, factor: float) -> None:
    """Draw the quality of autoregressive decoding as a line, for accuracy with a band of tolerated losses."""
    level = factor * rows.loc[rows["method_id"] == BASELINE, quality].iloc[0]
    if pd.isna(level):
        return
    axes.axhline(level, **style.AT_BASELINE, label=LINE_LABEL)
    if quality == "prompt_accuracy":
        kept = (level - factor * ACCURACY_TOLERANCE, level)
        axes.axhspan(*kept, color="#EEEEEE", zorder=0, linewidth=0, label=BAND_LABEL)


def _note_missing(axes: Axes, rows: pd.DataFrame, speed: str, quality: str) -> None:
    for name, reason in ((speed, "not timed on these prompts"), (quality, "prompts name no known attributes")):
        if rows[name].isna().all():
            axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", color=style.GREY)
            return  # a second text would be drawn over the first
