"""Draw docs/overview.png: what exact and relaxed methods gain and cost here, and what papers claim.

python docs/overview.py
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from lantern_pipeline.data.tables import read_table
from lantern_pipeline.figures import style
from lantern_pipeline.figures.tradeoff import split_curves
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.claims import needs_draft_model
from lantern_pipeline.tables.comparisons import read_published, select_published
from lantern_pipeline.tables.method_labels import method_name
from lantern_pipeline.tables.nodes import DRAFTS, LENGTH, node_rows

DOCS = Path(__file__).resolve().parent
TITLES = ("Exact methods", "Relaxed methods", "As published")

# Place of the name of each curve: number of a point, shift from it in points, and alignment.
NAMES = {"jacobi": (-1, (2, -14), "right"), "hybrid": (-1, (-4, 6), "right"), "hybrid_head": (0, (-6, 24), "left")}


def draw_overview(nodes: pd.DataFrame, peers: pd.DataFrame, published: pd.DataFrame, path: Path) -> None:
    """Draw tokens per forward pass in three panels.

    The first panel shows exact methods against the nodes of their draft tree. The second shows relaxed methods against
    the negative log-likelihood (NLL) that they add. The third shows numbers of papers, which state no NLL.

    Args:
        nodes: docs/nodes.csv.
        peers: docs/peers.csv.
        published: table of published numbers, as `read_published` returns it.
        path: image file to write.
    """
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, 4.4)
        exact, relaxed, claimed = figure.subplots(1, 3, width_ratios=(1, 1.3, 0.9))
        _draw_exact(exact, node_rows(nodes))
        _draw_relaxed(relaxed, peers[peers["temperature"] == 1])
        _draw_claims(claimed, published)
        for axes, title in zip((exact, relaxed, claimed), TITLES, strict=True):
            axes.set_title(title, loc="left")
        _, labels = relaxed.get_legend_handles_labels()
        figure.legend(loc="outside lower center", ncols=style.fitting_columns(labels))
        style.save_figure(figure, [path])


def _draw_exact(axes: Axes, rows: pd.DataFrame) -> None:
    for drafts, line in rows.groupby("drafts", sort=False):
        look = style.method_look(str(drafts), is_open=drafts == "jacobi")
        axes.errorbar(line["nodes"], line[LENGTH], yerr=style.half_widths(line, LENGTH), **look)
        number, offset, side = NAMES[str(drafts)]
        point = line.iloc[number]
        place = (point["nodes"], point[LENGTH])
        axes.annotate(DRAFTS[str(drafts)], place, offset, textcoords="offset points", ha=side)
    numbers = sorted(set(rows["nodes"]) - {10, 12})
    axes.set_xscale("log")
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="nodes of the draft tree", ylabel="tokens / forward", ylim=(1, 5))


def _draw_relaxed(axes: Axes, rows: pd.DataFrame) -> None:
    baseline = rows.loc[rows["method"] == BASELINE, "nll"].iloc[0]
    rows = split_curves(rows[rows["is_exact"].eq(False)])
    for (method, _), line in rows.groupby(["method", "place"], sort=False):
        look = style.method_look(str(method), is_open=not needs_draft_model(line).iloc[0])
        axes.errorbar(
            line["nll"] - baseline,
            line[LENGTH],
            yerr=style.half_widths(line, LENGTH),
            label=line["curve"].iloc[0],
            **look,
        )
    axes.axvline(0, **style.AT_BASELINE)
    axes.set(xlabel="NLL added (nats / token)", xlim=(-0.1, 1.6), ylim=(1, 5))  # SSD without rounds is far outside


def _draw_claims(axes: Axes, published: pd.DataFrame) -> None:
    rows = select_published(published, LENGTH).sort_values(LENGTH, ascending=False).drop_duplicates("method")
    axes.plot(rows[LENGTH], range(len(rows)), "o", color=style.GREY)
    style.name_rows(axes, map(method_name, rows["method"]))
    axes.set_xscale("log")
    ticks = (1, 2, 4, 8)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="tokens / forward, at most")


if __name__ == "__main__":
    tables = {name: read_table(DOCS / f"{name}.csv") for name in ("nodes", "peers")}
    draw_overview(tables["nodes"], tables["peers"], read_published(), DOCS / "overview.png")
