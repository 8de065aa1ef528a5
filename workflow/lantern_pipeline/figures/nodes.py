"""Figure (s): tokens per forward pass of exact methods against the number of nodes of their draft tree."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from lantern_pipeline.figures import style
from lantern_pipeline.tables.nodes import DRAFTS, LENGTH, Trees, node_rows
from lantern_pipeline.tables.summary import MetricsSection, select_headline


def draw_nodes(summary: pd.DataFrame, settings: MetricsSection, trees: Trees) -> Figure:
    """Draw tokens per forward pass (left) and predicted speed-up on GPUs (right) against the size of the draft tree.

    There is one line per kind of drafts, with open markers if they need no draft model. Bars are 95 % intervals. Bands
    span the published step costs, from the highest to the lowest. The figure has page width.
    """
    rows = node_rows(select_headline(summary, settings), trees)
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, 3.0)
        left, right = figure.subplots(1, 2)
        for drafts, line in rows.groupby("drafts", sort=False):
            look = style.method_look(str(drafts), is_open=drafts == "jacobi")
            nodes = line["nodes"].to_numpy(float)
            bars = style.half_widths(line, LENGTH)
            left.errorbar(nodes, line[LENGTH], yerr=bars, label=DRAFTS[str(drafts)], **look)
            low, high = line["predicted_low"].to_numpy(float), line["predicted_high"].to_numpy(float)
            right.plot(nodes, low, nodes, high, color=look["color"], linewidth=0.9)
            style.draw_band(right, nodes, low, high, look["color"])
        for axes, title in ((left, "tokens / forward"), (right, "speed-up on GPUs (predicted)")):
            # Sizes grow by factors. The ticks are the measured sizes, without minor ones between them.
            axes.set_xscale("log")
            axes.set_xticks(sorted(set(rows["nodes"])), [str(number) for number in sorted(set(rows["nodes"]))])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set(xlabel="nodes of the draft tree", ylabel=title)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        return figure
