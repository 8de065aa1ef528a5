"""Figure (n): ablations, one panel each: what every variant gains in accepted length and what it strays."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from lantern_pipeline.analysis.method_labels import PARTS, SYMBOLS, method_colour, method_marker, method_name
from lantern_pipeline.figures.style import GREY, PAGE_WIDTH, half_widths, new_figure, paper_style, require_columns
from lantern_pipeline.metrics.speed import BASELINE

MEASURES = {"mean_accepted_length": "tokens / forward", "nll_change": "NLL change\n(nats / token)"}
# number that a variant may differ in -> how a value is written
NUMBERS: dict[str, Callable[[float], str]] = {
    **{name: f"{symbol} {{:g}}".format for name, symbol in SYMBOLS.items()},
    "temperature": "T {:g}".format,
    "cfg_scale": "guidance {:g}".format,
    "top_k": lambda value: f"top-k {value:g}" if value else "all codes",
    "drafter_steps": lambda value: "as trained" if pd.isna(value) else f"{value:g} steps",
    "target_steps": lambda value: "whole target" if pd.isna(value) else f"target of {value:g} steps",
}
COLUMNS = (
    "ablation",
    "method",
    *PARTS,
    *NUMBERS,
    *(name + end for name in MEASURES for end in ("", "_low", "_high")),
)
ROW_HEIGHT, TITLE_HEIGHT, FOOT_HEIGHT = 0.155, 0.31, 0.45  # inches
WRAP = 24  # letters in a line of a label
Panel = tuple[str, pd.DataFrame]  # an ablation's name and its variants


def draw_ablations(table: pd.DataFrame) -> Figure:
    """Draws one panel per ablation in two columns: accepted length left and NLL change right, a line per variant.

    A figure of page width. Bars are 95 % intervals; all panels share their scales. `table`: the tables ablations/*.csv,
    one below the other; autoregressive rows, which are 1 and 0, are left out.
    """
    require_columns(table, COLUMNS, "ablations/*.csv")
    variants = table[table["method"] != BASELINE]
    require_columns(variants, COLUMNS, "ablations/*.csv (methods with drafts)")
    panels = [(str(name), _label(rows)) for name, rows in variants.groupby("ablation", sort=False)]
    sides = _share_out(panels)
    limits = {name: _limits(variants, name) for name in MEASURES}
    with paper_style():
        tallest = max(sum(TITLE_HEIGHT + _height(rows) for _, rows in side) for side in sides)
        figure = new_figure(PAGE_WIDTH, tallest + FOOT_HEIGHT)
        for part, side in zip(figure.subfigures(1, len(sides), squeeze=False)[0], sides, strict=True):
            _draw_side(part, side, tallest, limits)
        return figure


def _label(rows: pd.DataFrame) -> pd.DataFrame:
    """Sorts the variants of one ablation by method and parts, and adds a column `label`: what differs, in words."""
    shown = rows.assign(**{part: rows[part].astype(object).where(rows[part].notna(), "none") for part in PARTS})
    shown = shown.sort_values(["method", *PARTS], key=lambda column: column.map(_order(column)), kind="stable")
    # what differs between the variants of a method; what differs between methods is the methods' nature
    differing = shown.groupby("method")[[*PARTS, *NUMBERS]].nunique(dropna=False) > 1
    is_alone = shown["method"].nunique() == 1
    labels = []
    for _, row in shown.iterrows():
        words, varying = [] if is_alone else [method_name(row["method"])], differing.loc[row["method"]]
        words += [str(row[part]).replace("_", " ") for part in PARTS if varying[part]]
        words += [NUMBERS[name](row[name]) for name in NUMBERS if varying[name] and _is_told(name, row[name])]
        labels.append(textwrap.fill(", ".join(words) or method_name(row["method"]), WRAP))
    return shown.assign(label=labels)


def _order(column: pd.Series) -> dict[str, int]:
    """Value -> place of its first appearance."""
    return {value: place for place, value in enumerate(column.unique())}


def _is_told(name: str, value: float) -> bool:
    """Whether a number says something: an empty one does for models only, which then are the run's own."""
    return name in ("drafter_steps", "target_steps") or not pd.isna(value)


def _title(name: str, rows: pd.DataFrame) -> str:
    methods = rows["method"].unique()
    of = f" ({method_name(methods[0])})" if len(methods) == 1 and methods[0] != name else ""
    return name.replace("_", " ") + of


def _height(rows: pd.DataFrame) -> float:
    """Inches that the lines of a panel take."""
    return ROW_HEIGHT * len(rows) * (int(rows["label"].str.count("\n").max()) + 1)


def _share_out(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Splits the panels, in order, into a left and a right side of heights as equal as can be."""
    if len(panels) == 1:
        return [list(panels)]
    heights = [TITLE_HEIGHT + _height(rows) for _, rows in panels]
    cut = min(range(1, len(panels)), key=lambda i: max(sum(heights[:i]), sum(heights[i:])))
    return [list(panels[:cut]), list(panels[cut:])]


def _draw_side(part: SubFigure, side: Sequence[Panel], height: float, limits: dict[str, tuple[float, float]]) -> None:
    """Draws panels below each other; what the other side is taller stays empty."""
    heights = [_height(rows) for _, rows in side]
    empty = height - sum(heights) - TITLE_HEIGHT * len(side)
    grid = part.add_gridspec(len(side) + 1, 2, height_ratios=[*heights, max(empty, 1e-3)])
    for line, (name, rows) in enumerate(side):
        for column, measure in enumerate(MEASURES):
            axes = part.add_subplot(grid[line, column])
            _draw_panel(axes, rows, measure)
            axes.set_xlim(limits[measure])
            axes.tick_params(labelleft=column == 0, labelbottom=line == len(side) - 1)
            if line == len(side) - 1:
                axes.set_xlabel(MEASURES[measure])
            if column == 0:
                axes.set_title(_title(name, rows), loc="left", fontsize=8.5)


def _draw_panel(axes: Axes, rows: pd.DataFrame, measure: str) -> None:
    bars = half_widths(rows, measure)
    for place, (_, row) in enumerate(rows.iterrows()):
        colour = method_colour(row["method"])
        look = {"fmt": method_marker(row["method"]), "color": colour, "ecolor": (colour, 0.7), "markersize": 4}
        axes.errorbar([row[measure]], [place], xerr=bars[:, place : place + 1], elinewidth=1.3, **look)
    axes.axvline(1 if measure == "mean_accepted_length" else 0, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_yticks(range(len(rows)), rows["label"])
    axes.set_ylim(len(rows) - 0.4, -0.6)


def _limits(rows: pd.DataFrame, name: str) -> tuple[float, float]:
    """Ends of an axis that hold every value, every interval, and autoregressive decoding."""
    at_baseline = 1.0 if name == "mean_accepted_length" else 0.0
    values = rows[[name, f"{name}_low", f"{name}_high"]]
    low, high = min(values.min().min(), at_baseline), max(values.max().max(), at_baseline)
    return low - 0.06 * (high - low), high + 0.06 * (high - low)
