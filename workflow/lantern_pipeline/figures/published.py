"""Figure (l): published numbers beside this run's, in panels of their own: other models, GPUs and data.

The numbers are in published_results.csv. Its column grade tells where one was read: P the paper's abstract, S a summary
of the paper by others, R the README of its code, T another paper that measured the method again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_pipeline.analysis.method_labels import method_colour, method_marker, method_name
from lantern_pipeline.analysis.summary import select_headline
from lantern_pipeline.figures.style import GREY, PAGE_WIDTH, half_widths, new_figure, paper_style, require_columns
from lantern_pipeline.metrics.speed import BASELINE

COLUMNS = ("source", "gpu", "model", "temperature", "method", "speedup", "note")
SETTING = ("source", "gpu", "model", "temperature")  # what shares a line
ROW_HEIGHT = 0.17  # inches


def draw_published(published: pd.DataFrame, summary: pd.DataFrame, settings: Mapping[str, Any]) -> Figure:
    """Draws speed-ups as dots: published ones left, one line per number; this run's right, one line per family.

    A figure of page width; bars are 95 % intervals, which published numbers lack. Autoregressive decoding, 1 by
    definition, is the dashed line; nothing joins the panels. `published`: published_results.csv, one row per paper,
    model and method.
    """
    require_columns(published, COLUMNS, "published_results.csv")
    theirs = published[published["speedup"].notna() & (published["method"] != BASELINE)].reset_index(drop=True)
    headline = select_headline(summary, settings)
    ours = headline[headline["speedup"].notna() & (headline["method_id"] != BASELINE)].reset_index(drop=True)
    with paper_style():
        num_lines = max(2 * theirs.groupby(list(SETTING), dropna=False).ngroups, len(ours))
        figure = new_figure(PAGE_WIDTH, 0.95 + ROW_HEIGHT * num_lines)
        left, right = figure.subplots(1, 2)
        figure.get_layout_engine().set(wspace=0.15)
        _draw_published(left, theirs)
        _draw_ours(right, ours)
        limit = 1.06 * max(theirs["speedup"].max(), ours["speedup_high"].max(), ours["speedup"].max(), 1.0)
        for axes in (left, right):
            axes.axvline(1, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            axes.set(xlim=(0, limit), xlabel="speed-up (times)")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        return figure


def _draw_published(axes: Axes, rows: pd.DataFrame) -> None:
    """One line per paper, model and temperature, a dot per method."""
    settings = [_setting(row) for _, row in rows.iterrows()]
    lines = list(dict.fromkeys(settings))
    for method, dots in rows.assign(setting=settings).groupby("method", sort=False):
        places = [lines.index(setting) for setting in dots["setting"]]
        look = {"color": method_colour(str(method)), "marker": method_marker(str(method)), "markersize": 5.5}
        axes.plot(dots["speedup"], places, linestyle="none", label=method_name(str(method)), **look)
    _finish(axes, lines, "published (other models and GPUs)")


def _draw_ours(axes: Axes, rows: pd.DataFrame) -> None:
    bars = half_widths(rows, "speedup")
    for place, row in rows.iterrows():
        look = {"color": method_colour(row["method"]), "fmt": method_marker(row["method"]), "markersize": 5.5}
        xerr = bars[:, place : place + 1]
        axes.errorbar([row["speedup"]], [place], xerr=xerr, elinewidth=1.1, **look)
    _finish(axes, list(rows["label"]), "this run")


def _finish(axes: Axes, labels: list[str], title: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_yticks(range(len(labels)), labels, fontsize=7.5)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _setting(row: pd.Series) -> str:
    """E.g. "VVS, A40" above "LlamaGen-XL stage I, T 1"."""
    is_best_case = str(row["note"]).startswith("up to")
    first = [str(row["source"]), *(["best case"] if is_best_case else []), row["gpu"]]
    second = ["model not given" if pd.isna(row["model"]) else str(row["model"])]
    second += [] if pd.isna(row["temperature"]) else [f"T {row['temperature']:g}"]
    return ", ".join(word for word in first if pd.notna(word)) + "\n" + ", ".join(second)
