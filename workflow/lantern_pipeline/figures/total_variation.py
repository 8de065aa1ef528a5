"""Figure (h): total variation (TV) from the target against delta.

Delta is a parameter of relaxed acceptances that limits the relaxation. The figure shows whether it also bounds the TV
between the distribution of the emitted token and the target's distribution. `curves` is total_variation/curves.csv,
with one row per acceptance (column rule) and delta, all at the same nodes. `methods` is total_variation/methods.csv,
with one row per method, prompt set, temperature and repeat.
"""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from lantern_pipeline.figures import style
from lantern_pipeline.tables.summary import MetricsSection, preferred_rows, select_headline

# Column rule -> colour. Two rules of one colour are in different panels.
COLOURS = {
    "bounded": style.PURPLE,
    "top_one_child": style.GREEN,
    "top_children": style.VERMILLION,
    "top_official": style.BLACK,
    "sampled_paper": style.VERMILLION,
    "sampled_official": style.BLACK,
    "sampled_official_lumina": style.BLUE,
    "sampled_js": style.ORANGE,
}
UPPER_HEIGHT = 3.75  # inches
LOWEST = 1e-3  # lowest end that the axis of TVs may have
PANELS = ("sampled drafts", "deterministic (top) drafts")
WRAP = 58  # letters in a line of the legend


def draw_total_variation(
    curves: pd.DataFrame, methods: pd.DataFrame, summary: pd.DataFrame, settings: MetricsSection
) -> Figure:
    """Draw the TV of acceptances against delta (top), and the TV of each relaxed method of the run (bottom).

    At the top, a line with markers is the mean TV over nodes of draft trees, and a thin line the 95th percentile. Bands
    and bars are 95 % intervals. The figure has page width.
    """
    relaxed = _select_relaxed(methods, select_headline(summary, settings))
    positive = curves[curves["delta"] > 0]  # both axes are logarithmic
    lower_height = 0.85 + 0.17 * len(relaxed)  # inches
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, UPPER_HEIGHT + lower_height)
        (upper,), (lower,) = figure.subfigures(2, 1, squeeze=False, height_ratios=(UPPER_HEIGHT, lower_height))
        panels = upper.subplots(1, 2, sharex=True, sharey=True)
        is_sampled = positive["rule"].str.startswith("sampled")
        for axes, title, is_here in zip(panels, PANELS, (is_sampled, ~is_sampled), strict=True):
            _draw_curves(axes, positive, positive[is_here])
            axes.set_title(title, loc="left")
        panels[0].set_ylabel("TV from the target, per token")
        _draw_methods(lower.subplots(), relaxed)
        lower.legend(handles=_method_marks(relaxed), loc="outside lower center", ncols=3, handlelength=1.2)
        return figure


def _select_relaxed(methods: pd.DataFrame, headline: pd.DataFrame) -> pd.DataFrame:
    """Select relaxed methods with a TV or an upper bound of it, with label, method and delta of `headline`."""
    keys = headline.iloc[0]
    rows = methods[(methods["prompt_set"] == keys["prompt_set"]) & (methods["temperature"] == keys["temperature"])]
    # Kind "none": no TV was computed. Temperature 0 still has shares of substitutions, which are not drawn. The delta
    # is that of `headline`, so that the other column is dropped.
    rows = preferred_rows(rows)[lambda kept: kept["kind"] != "none"].drop(columns=["delta"], errors="ignore")
    names = headline.loc[~headline["is_exact"].eq(True), ["method_id", "label", "method", "delta"]]
    return names.merge(rows, on="method_id", how="inner")


def _draw_curves(axes: Axes, everything: pd.DataFrame, rows: pd.DataFrame) -> None:
    deltas, floor = np.sort(everything["delta"].unique()), _set_scales(axes, everything)
    # A curve above this line is not bounded by its delta.
    axes.plot(deltas, deltas, color=style.GREY, linewidth=4, alpha=0.5, zorder=0, solid_capstyle="butt", label="TV = δ")
    for place, (rule, curve) in enumerate(rows.groupby("rule", sort=False)):
        curve, colour = curve.sort_values("delta"), COLOURS.get(str(rule), style.GREY)
        x = curve["delta"].to_numpy()
        mean, low, high, p95 = (curve[f"tv_{end}"].clip(floor) for end in ("mean", "mean_low", "mean_high", "p95"))
        style.draw_band(axes, x, low, high, colour)
        axes.plot(x, p95, color=colour, linewidth=0.8, linestyle=":", zorder=2)
        marker, label = style.MARKERS[place % len(style.MARKERS)], textwrap.fill(curve["label"].iloc[0], WRAP)
        axes.plot(x, mean, color=colour, marker=marker, markersize=4.5, label=label, zorder=3)
    # One entry for all thin lines, in grey, since each has the colour of its acceptance.
    axes.plot([], [], color=style.GREY, linewidth=0.8, linestyle=":", label="95th percentile over nodes")
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), handlelength=1.8, labelspacing=0.3, fontsize=7.5)


def _set_scales(axes: Axes, everything: pd.DataFrame) -> float:
    """Make both axes of an upper panel logarithmic, and return the lower end of the vertical axis."""
    deltas, distances = np.sort(everything["delta"].unique()), everything["tv_mean"].to_numpy()
    # `everything` has the curves of both panels, which share their scales. The floor is half of the smallest
    # delta or TV above 0, but at least LOWEST. Smaller TVs are drawn there.
    floor = max(LOWEST, 0.5 * min(deltas.min(), distances[distances > 0].min(initial=1.0)))
    axes.set(xscale="log", yscale="log", xlabel="parameter δ")
    axes.set(xlim=(deltas.min() / 1.15, deltas.max() * 1.15), ylim=(floor, max(1.05, deltas.max())))
    axes.set_xticks(deltas, [f"{value:g}" for value in deltas])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return floor


def _draw_methods(axes: Axes, methods: pd.DataFrame) -> None:
    """Draw one line per relaxed method: a dot at its TV, open if it is an upper bound, and a tick at its delta."""
    axes.set_title("this run's relaxed methods, over the tokens that they met", loc="left")
    axes.set_xlabel("TV from the target, per token (mean)")
    style.name_rows(axes, methods["label"])
    axes.grid(visible=False, axis="y")
    for place, (_, row) in enumerate(methods.iterrows()):
        # Drafts with the target's noise. Coupling inequality: TV <= P(emitted token != target's sample).
        is_coupling = row["kind"] == "coupling"
        name, colour = "substitution_rate" if is_coupling else "tv_mean", style.method_look(row["method"])["color"]
        look = {"color": colour, "markerfacecolor": "white" if is_coupling else colour, "elinewidth": 1.0}
        axes.errorbar([row[name]], [place], xerr=style.half_widths(row.to_frame().T, name), fmt="o", **look)
        if not pd.isna(row["delta"]):
            axes.plot([row["delta"]], [place], marker="|", color=style.BLACK, markersize=10, markeredgewidth=1.6)
    axes.set_xlim(left=0)


def _method_marks(methods: pd.DataFrame) -> list[Line2D]:
    """Return the legend entries of the markers that occur in the lower panel."""
    is_coupling = methods["kind"] == "coupling"
    measured, bound, delta = (
        Line2D([], [], marker=marker, linestyle="none", color=colour)
        for marker, colour in (("o", style.GREY), ("o", style.GREY), ("|", style.BLACK))
    )
    measured.set_label("measured TV")
    bound.set(label="share of substituted tokens, which TV is at most", markerfacecolor="white")
    delta.set(label="parameter δ", markersize=9, markeredgewidth=1.6)
    known = [(~is_coupling, measured), (is_coupling, bound), (methods["delta"].notna(), delta)]
    return [line for is_drawn, line in known if is_drawn.any()]
