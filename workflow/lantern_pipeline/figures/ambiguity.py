"""Figure (c): histograms of the target's top-1 and top-10 probability (temperature 1, no top-k or top-p filter)."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.figures.style import COLUMN_WIDTH, PALETTE, new_figure, paper_style

NUM_BINS = 40
COLUMNS = {"top1": "probability of the best token", "top10": "probability of the ten best tokens"}
LINES = ("-", "--", "-.", ":")


def draw_ambiguity(ambiguity: pd.DataFrame) -> Figure:
    """Draw one panel per probability, with one histogram per guidance scale and column width.

    Vertical lines and the text above a panel show the means.

    Args:
        ambiguity: one row per guidance scale, image and code, with columns cfg_scale, top1 and top10.
    """
    with paper_style():
        figure = new_figure(COLUMN_WIDTH, 3.7)
        panels = figure.subplots(2, 1, sharex=True)
        for axes, (name, title) in zip(panels, COLUMNS.items(), strict=True):
            _draw_panel(axes, ambiguity, name)
            axes.set_xlabel(title)
            axes.tick_params(labelbottom=True)  # which `sharex` hides in the upper panel
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=min(3, len(labels)), handlelength=1.8)
        return figure


def _draw_panel(axes: Axes, ambiguity: pd.DataFrame, name: str) -> None:
    edges, means = np.linspace(0, 1, NUM_BINS + 1), []
    for place, (cfg_scale, rows) in enumerate(ambiguity.groupby("cfg_scale")):
        values = rows[name].to_numpy()
        # Shares of positions, so that guidance scales with different numbers of images can be compared.
        shares = 100 * np.histogram(values, edges)[0] / len(values)
        # Line styles as well, for readers who cannot distinguish the colours.
        colour, line = PALETTE[place % len(PALETTE)], LINES[place % len(LINES)]
        axes.stairs(shares, edges, color=colour, fill=True, alpha=0.18)
        axes.stairs(shares, edges, color=colour, linestyle=line, linewidth=1.3, label=f"guidance {cfg_scale:g}")
        axes.axvline(values.mean(), color=colour, linestyle=line, linewidth=0.9)
        means.append(f"{values.mean():.2f} (guidance {cfg_scale:g})")
    title = textwrap.fill(("mean " if len(means) == 1 else "means ") + ", ".join(means), 52)  # letters in a line
    axes.set_title(title, fontsize=8, loc="left", pad=3)
    axes.set(xlim=(0, 1), ylim=(0, None), ylabel="positions (%)")
