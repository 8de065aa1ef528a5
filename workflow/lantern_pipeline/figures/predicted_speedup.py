"""Figure (o): the speed-up that is predicted for trees of every size, here and on a machine whose cost is assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lantern_pipeline.analysis.method_labels import label_rows, method_colour
from lantern_pipeline.figures.style import BLACK, GREY, PAGE_WIDTH, new_figure, paper_style, require_columns

COLUMNS = ("method_id", "temperature", "cost", "mark", "num_nodes", "tokens_per_forward", "speedup")
ASSUMED = "assumed"
LINES = ("-", "--", ":", "-.")
# Published trees have the same size for several methods: their open marks show through each other.
MARK_LOOKS = {
    "tuned": lambda colour: {"markeredgecolor": "white"},
    "published": lambda colour: {"markerfacecolor": "none", "markeredgecolor": colour, "markeredgewidth": 1.5},
}
MARKS = {"tuned": ("o", "the tuned tree, chosen at batch 1"), "published": ("D", "the published tree")}


def draw_predicted_speedup(predicted: pd.DataFrame, settings: Mapping[str, Any]) -> Figure:
    """Draws a panel per cost: measured on this machine at batch 1 and at the generation batch, and assumed.

    A figure of page width. Curves are the best tree of every number of drafts; nothing in it was timed as a whole.
    `predicted`: table of `lantern_pipeline.analysis.tuned_trees`; `settings`: config section `tree_tuning`.
    """
    require_columns(predicted, COLUMNS, "trees/predicted.csv")
    runs = predicted.groupby(["method_id", "temperature"], sort=False)
    labels = _label_runs(runs.first().reset_index())
    costs = list(predicted["cost"].unique())
    with paper_style():
        figure = new_figure(PAGE_WIDTH, 3.1 + 0.17 * -(-(len(labels) + 2) // 3))
        figure.suptitle("Predicted speed-up: expected tokens per forward over the cost of a step", fontsize=9)
        panels = figure.subplots(1, len(costs), sharex=True, squeeze=False)[0]
        for axes, cost in zip(panels, costs, strict=True):
            for place, (_, rows) in enumerate(runs):
                _draw_run(axes, rows[rows["cost"] == cost], LINES[place % len(LINES)])
            axes.axhline(1, color=BLACK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0.5)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set(xlabel="drafts in the tree (n)", ylim=(0, None))
            axes.set_title(_title(cost, settings["cost"]), fontsize=8)
        panels[0].set_ylabel("predicted speed-up (times)")
        handles = [
            Line2D([], [], color=method_colour(rows["method"].iloc[0]), linestyle=LINES[place % len(LINES)])
            for place, (_, rows) in enumerate(runs)
        ]
        for name, (marker, _) in MARKS.items():
            handles.append(Line2D([], [], color=GREY, marker=marker, linestyle="none", **MARK_LOOKS[name](GREY)))
        texts = [*labels, *(text for _, text in MARKS.values())]
        figure.legend(handles, texts, loc="outside lower center", ncols=3, columnspacing=1.2, handlelength=2.6)
        return figure


def _draw_run(axes: Axes, rows: pd.DataFrame, line: str) -> None:
    """One method at a temperature: the best tree of every size, and its marked trees."""
    colour = method_colour(rows["method"].iloc[0])
    curve = rows[~rows["mark"].isin(MARKS)]
    axes.plot(curve["num_nodes"], curve["speedup"], color=colour, linestyle=line, marker="." if len(curve) < 20 else "")
    for name, (marker, _) in MARKS.items():
        marked = rows[rows["mark"] == name]
        look = {"color": colour, "markersize": 7, "zorder": 4, **MARK_LOOKS[name](colour)}
        axes.plot(marked["num_nodes"], marked["speedup"], marker, **look)


def _title(cost: str, assumed: Mapping[str, float]) -> str:
    """A panel's title: what its cost is, and where it is from."""
    if cost != ASSUMED:
        return f"this machine, {cost}\nstep times measured"
    parts = f"{assumed['base']:g} + {assumed['per_node']:g} n + {assumed['per_depth']:g} d"
    return f"step times ASSUMED:\n{parts}"


def _label_runs(first: pd.DataFrame) -> list[str]:
    """Names of the runs, with the temperature where a method runs at several."""
    return [
        f"{label}, T {temperature:g}" if first["temperature"].nunique() > 1 else label
        for label, temperature in zip(label_rows(first), first["temperature"], strict=True)
    ]
