"""Figure (p): test of LANTERN's premise that nearest codes may replace each other, with random codes as a control."""

from __future__ import annotations

import itertools
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lantern_pipeline.figures import style
from lantern_pipeline.measure.premise import NONE
from lantern_pipeline.measure.registry import METRICS

# Metrics of the upper panels. In a panel, the first one that was measured is drawn.
OF_IMAGES = (("prompt_accuracy", "nll"), ("efficientnet_frechet_distance", "frechet_distance", "fid", "pixel_mse"))
# kind of other codes -> (style of its lines, text in the legend)
LINES: dict[str, tuple[Literal["-", "--"], str]] = {
    "l2_normalised": ("-", "nearest codes"),
    "random": ("--", "random codes"),
}
TITLES = {"acceptance": "acceptance of a draft", "tv_mean": "TV from the target, per token"}


def draw_premise(premise: pd.DataFrame) -> Figure:
    """Draw what changes if codes may be replaced by one of k nearest or random codes, against k, in four panels.

    The upper panels show the quality of images whose codes are all replaced. The lower ones show how often drafts are
    accepted and at what total variation, with one colour per delta. The figure has page width. `premise` is
    premise.csv, with one row per kind of other codes and per k.
    """
    metrics = {metric.column: metric for metric in METRICS}
    deltas = [name.removeprefix("acceptance_") for name in premise if name.startswith("acceptance_")]
    colours = dict(zip(deltas, itertools.cycle(style.PALETTE), strict=False))  # `cycle` has no end
    # The row without replacement, k = 0, which has exact acceptance at every delta. The target's numbers are equal in
    # all rows.
    first = premise.iloc[0]
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, 5.2)
        panels = figure.subplots(2, 2, sharex=True)
        for axes, names in zip(panels[0], OF_IMAGES, strict=True):
            name = next(name for name in names if name in premise)
            _draw_lines(axes, premise, name, style.BLACK, metrics[name].factor)
            # The unit gets a line of its own.
            axes.set_ylabel(metrics[name].title.replace(" (", "\n("))
        for axes, (name, title) in zip(panels[1], TITLES.items(), strict=True):
            for delta, colour in colours.items():
                _draw_lines(axes, premise, f"{name}_{delta}", colour)
            axes.set(ylabel=title, xlabel="number of codes to choose from, k")
        figure.suptitle(
            f"target: mean top-1 probability {first['target_top1']:.2f}, entropy {first['target_entropy']:.2f} nats, "
            f"exact acceptance of a draft {first[f'acceptance_{deltas[0]}']:.2f}",
            fontsize=8.5,
        )
        handles = [Line2D([], [], color=style.BLACK, linestyle=line, label=label) for line, label in LINES.values()]
        handles.append(Line2D([], [], label="no code replaced", **style.AT_BASELINE))
        handles += [Line2D([], [], color=colour, label=f"δ {delta}") for delta, colour in colours.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), handlelength=1.8)
        return figure


def _draw_lines(axes: Axes, premise: pd.DataFrame, name: str, colour: str, factor: float = 1.0) -> None:
    """Draw a column against k, one line per kind of other codes, and a horizontal line without replacement."""
    is_unchanged = premise["neighbours"] == NONE
    axes.axhline(factor * premise.loc[is_unchanged, name].iloc[0], **style.AT_BASELINE)
    for kind, (line, _) in LINES.items():
        rows = premise[premise["neighbours"] == kind].sort_values("k")
        x = rows["k"].to_numpy()
        axes.plot(x, factor * rows[name], color=colour, linestyle=line, marker="o", markersize=3.5, zorder=3)
        if f"{name}_low" in rows:
            style.draw_band(axes, x, factor * rows[f"{name}_low"], factor * rows[f"{name}_high"], colour)
    # k grows by factors, and only measured ks are ticks.
    ks = sorted(premise.loc[~is_unchanged, "k"].unique())
    axes.set_xscale("log")
    axes.set_xticks(ks, [f"{k:g}" for k in ks])
    axes.set_xticks([], minor=True)
