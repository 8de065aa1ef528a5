"""Figure (d): how often a draft is accepted when it may count the mass of its k nearest codes, against k."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lantern_pipeline.figures import style

PANELS = {"sampled": "drafts sampled", "top": "most probable drafts"}
LINES = {"nearest codes": "-", "random codes": "--"}
# of the bounds in rising order; no bound is vermillion
COLOURS = (style.SKY_BLUE, style.BLUE, style.GREEN, style.ORANGE, style.PURPLE, style.GREY)
UNBOUNDED = float("inf")


def draw_aggregation(acceptance: pd.DataFrame) -> Figure:
    """Draws acceptance against k, sampled drafts left and top drafts right; a colour per bound delta.

    A figure of page width. Solid lines count the nearest codes, dashed lines random ones; bands are 95 % intervals; the
    grey line is the acceptance before aggregation. `acceptance`: total_variation/acceptance.csv; k = 0 is the
    acceptance before aggregation, an empty delta is no bound.
    """
    rows = acceptance.assign(delta=acceptance["delta"].fillna(UNBOUNDED))
    looks = {
        bound: {
            "color": style.VERMILLION if bound == UNBOUNDED else COLOURS[place % len(COLOURS)],
            "marker": style.MARKERS[place % len(style.MARKERS)],
        }
        for place, bound in enumerate(sorted(rows.loc[rows["k"] > 0, "delta"].unique()))
    }
    panels = [drafts for drafts in PANELS if (rows["drafts"] == drafts).any()]
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, 3.0)
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, drafts in zip(grid, panels, strict=True):
            _draw_panel(axes, rows[rows["drafts"] == drafts], looks)
        grid[0].set_ylabel("acceptance of one draft (%)")
        handles = [Line2D([], [], label=_bound(bound), **look) for bound, look in looks.items()]
        shown = dict.fromkeys(map(_kind, rows["neighbours"]))
        handles += [Line2D([], [], color=style.BLACK, linestyle=LINES[kind], label=kind) for kind in shown]
        handles.append(Line2D([], [], color=style.GREY, label="before (k = 0)"))
        figure.legend(handles=handles, loc="outside right center")
        return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, looks: dict[float, dict[str, str]]) -> None:
    is_start = rows["k"] == 0
    before = 100 * float(rows.loc[is_start, "acceptance"].iloc[0])
    axes.axhline(before, color=style.GREY, linewidth=1.2, zorder=1, label="before")
    axes.set_title(f"{PANELS[rows['drafts'].iloc[0]]} ({before:.1f} % at k = 0)", loc="left")
    for (kind, bound), curve in rows[~is_start].groupby(["neighbours", "delta"]):
        curve = pd.concat([rows[is_start].head(1), curve.sort_values("k")])
        x, look = curve["k"].to_numpy(float), {"linestyle": LINES[_kind(kind)], "markersize": 4, **looks[bound]}
        value, low, high = (100 * curve[f"acceptance{end}"].to_numpy(float) for end in ("", "_low", "_high"))
        style.draw_band(axes, x, low, high, look["color"])
        axes.plot(x, value, label=f"{kind}, {_bound(bound)}", **look)
    ticks = sorted(rows["k"].unique())
    axes.set_xscale("symlog", linthresh=min([k for k in ticks if k > 0], default=1), linscale=0.5)
    axes.set_xticks(ticks, _thin(ticks))
    axes.set_xticks([], minor=True)
    axes.set(xlabel="codes counted with the draft, k", xlim=(0, 1.1 * ticks[-1]), ylim=(0, None))


def _thin(ticks: list[float]) -> list[str]:
    """Labels of the ticks, those left empty that lie too close to the one before."""
    labels, last = [], 0.0
    for tick in ticks:
        is_shown = tick >= 1.7 * last
        labels.append(f"{tick:g}" if is_shown else "")
        last = tick if is_shown else last
    return labels


def _kind(neighbours: str) -> str:
    return "random codes" if neighbours == "random" else "nearest codes"


def _bound(bound: float) -> str:
    return "no bound" if bound == UNBOUNDED else f"mass ≤ δ = {bound:g}"
