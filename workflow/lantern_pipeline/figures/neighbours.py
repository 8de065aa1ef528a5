"""Figure (g): does relaxing towards the nearest codes stray less than relaxing towards others, at equal speed?"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from lantern_pipeline.analysis.method_labels import method_name
from lantern_pipeline.figures.style import (
    BLUE,
    COLUMN_WIDTH,
    GREEN,
    GREY,
    ORANGE,
    PAGE_WIDTH,
    PURPLE,
    VERMILLION,
    half_widths,
    new_figure,
    paper_style,
    require_columns,
)

AXES = ("mean_accepted_length", "nll_change")
BOUNDS = ("delta", "lambda_")  # other values make other curves
COLUMNS = ("method", "neighbours", "k", *BOUNDS, *(name + end for name in AXES for end in ("", "_low", "_high")))
# kind -> label, colour, marker, its size. Kinds that order the codes alike coincide: their open markers nest.
LOOKS = {
    "l2_normalised": ("nearest, normalised l2", BLUE, "o", 9.0),
    "l2": ("nearest, raw l2", GREEN, "s", 7.0),
    "probability": ("co-varying probability", ORANGE, "^", 6.0),
    "random": ("random codes", VERMILLION, "X", 7.0),
}
OTHER = (PURPLE, "^", 6.0)


def draw_neighbours(table: pd.DataFrame) -> Figure:
    """Draws NLL change against accepted length: a curve over k per kind of neighbours, a panel per method.

    A figure of column width, or of page width where there is more than one method. Bars are 95 % intervals. `table`:
    ablations/neighbours.csv; rows without neighbours (exact methods) are left out.
    """
    require_columns(table, COLUMNS, "ablations/neighbours.csv")
    relaxed = table[table["neighbours"].notna()]
    require_columns(relaxed, COLUMNS, "ablations/neighbours.csv (rows with neighbours)")
    methods = list(relaxed["method"].unique())
    with paper_style():
        figure = new_figure(COLUMN_WIDTH if len(methods) == 1 else PAGE_WIDTH, 3.3)
        panels = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
        for axes, method in zip(panels, methods, strict=True):
            rows = relaxed[relaxed["method"] == method]
            for (kind, *_), curve in rows.groupby(["neighbours", *BOUNDS], sort=False, dropna=False):
                _draw_curve(axes, str(kind), curve.sort_values("k"))
            axes.axhline(0, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
            axes.set_title(method_name(method), loc="left")
            axes.set_xlabel("tokens per forward of the target")
            axes.margins(0.1)
        panels[0].set_ylabel("NLL change from autoregressive\n(nats / token)")
        shown = {}
        for axes in panels:
            shown |= {str(drawn.get_label()): drawn for drawn in axes.containers}
        look = {"ncols": 2 * len(methods), "handlelength": 1.6, "columnspacing": 0.9}
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", **look)
        return figure


def _draw_curve(axes: Axes, kind: str, curve: pd.DataFrame) -> None:
    label, colour, marker, size = LOOKS.get(kind, (kind.replace("_", " "), *OTHER))
    axes.errorbar(
        curve[AXES[0]],
        curve[AXES[1]],
        xerr=half_widths(curve, AXES[0]),
        yerr=half_widths(curve, AXES[1]),
        marker=marker,
        markersize=size,
        color=colour,
        ecolor=(colour, 0.4),
        elinewidth=0.9,
        markerfacecolor="white",
        linestyle="--" if kind == "random" else "-",
        label=label,
    )
    if kind == "random":
        _write_k(axes, curve.iloc[[0, -1]] if len(curve) > 1 else curve, colour, is_left=True)
    elif kind == "l2_normalised":  # the other orders of distance run close to it
        _write_k(axes, curve, colour, is_left=False)


def _write_k(axes: Axes, points: pd.DataFrame, colour: str, *, is_left: bool) -> None:
    for _, row in points.iterrows():
        text = axes.annotate(
            f"k {row['k']:g}",
            (row[AXES[0]], row[AXES[1]]),
            (-6, 5) if is_left else (7, -5),
            textcoords="offset points",
            fontsize=7,
            color=colour,
            ha="right" if is_left else "left",
            va="bottom" if is_left else "top",
            zorder=5,
        )
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
