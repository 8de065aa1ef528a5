"""Figure (l): published speed-ups next to this run's, in separate panels, because models, GPUs and data differ.

The column grade of published_results.csv states where a number was found: P in the abstract of the paper, S in a
summary by others, R in the README of its code, T in another paper that measured the method again.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from lantern_pipeline.figures import style
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.comparisons import read_published, select_published
from lantern_pipeline.tables.method_labels import method_name
from lantern_pipeline.tables.summary import MetricsSection, select_headline

ROW_HEIGHT = 0.17  # inches
MARKER = {"markersize": 5.5, "markeredgewidth": 1.4}
OVERLAP = 0.3  # if two speed-ups differ by less than this, their markers hide each other
SHIFT = 0.27  # distance to which such markers are moved apart, in lines


def draw_published(summary: pd.DataFrame, settings: MetricsSection, published: pd.DataFrame | None = None) -> Figure:
    """Draw speed-ups as dots, published ones on the left and this run's on the right, with page width.

    The left panel has one line per paper, model and temperature, the right panel one line per method. Bars are 95 %
    intervals, which published numbers do not have. `published` None is the table of `read_published`.
    """
    theirs = select_published(read_published() if published is None else published, "speedup")
    theirs = theirs.assign(setting=[_setting(row) for _, row in theirs.iterrows()])
    shifts = theirs.groupby("setting")["speedup"].transform(_shifts)
    headline = select_headline(summary, settings)
    ours = headline[headline["speedup"].notna() & (headline["method_id"] != BASELINE)]
    lines = list(theirs["setting"].unique())
    with style.paper_style():
        # A published line has two lines of text. 0.95 inches are left for titles, axes and legend.
        figure = style.new_figure(style.PAGE_WIDTH, 0.95 + ROW_HEIGHT * max(2 * len(lines), len(ours)))
        left, right = figure.subplots(1, 2)
        figure.set_layout_engine("constrained", wspace=0.15)
        for method, dots in theirs.groupby("method", sort=False):
            places = shifts[dots.index] + [lines.index(setting) for setting in dots["setting"]]
            look = {**style.method_look(str(method)), **MARKER, "label": method_name(str(method))}
            left.errorbar(dots["speedup"], places, linestyle="none", **look)
        style.name_rows(left, lines, fontsize=7.5)
        style.draw_rows(right, ours, "speedup", elinewidth=1.1, **MARKER)
        # Both panels have the same scale, which shows 1 even if all methods are slower.
        limit = 1.06 * max(theirs["speedup"].max(), ours["speedup_high"].max(), ours["speedup"].max(), 1.0)
        for axes, title in ((left, "published (other models and GPUs)"), (right, "this run")):
            axes.set_title(title, loc="left")
            axes.axvline(1, **style.AT_BASELINE)
            axes.set(xlim=(0, limit), xlabel="speed-up (times)")
        handles, labels = left.get_legend_handles_labels()
        # `lines[0]` of what `errorbar` returns is the line with the markers.
        figure.legend([dots.lines[0] for dots in handles], labels, loc="outside lower center", ncols=4)
        return figure


def _shifts(speedups: pd.Series) -> pd.Series:
    """Return how far each marker on a line is moved, in lines, so that markers do not hide each other."""
    ordered = speedups.sort_values(kind="stable")
    # A gap of OVERLAP or more to the next smaller speed-up begins a new group. A group is spread around its line,
    # so that a marker alone stays on it.
    near = ordered.groupby((ordered.diff() >= OVERLAP).cumsum())
    shifts = SHIFT * (near.cumcount() - (near.transform("size") - 1) / 2)
    return shifts[speedups.index]


def _setting(row: pd.Series) -> str:
    """Describe a published measurement in two lines: "VVS, A40" (source, GPU) and "LlamaGen-XL stage I, T 1"."""
    # "Up to" is no mean, and must not look like one.
    is_best_case = str(row["note"]).startswith("up to")
    first = [str(row["source"]), *(["best case"] if is_best_case else []), row["gpu"]]
    second = ["model not given" if pd.isna(row["model"]) else str(row["model"])]
    second += [] if pd.isna(row["temperature"]) else [f"T {row['temperature']:g}"]
    return ", ".join(word for word in first if pd.notna(word)) + "\n" + ", ".join(second)
