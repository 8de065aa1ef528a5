"""Figure (n): ablations, with one panel per ablation that shows tokens per forward pass and change of NLL.

A row of the table is a *variant*, a method with certain settings. NLL is the negative log-likelihood of the tokens
under the target.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.figure import Figure, SubFigure

from lantern_pipeline.figures.style import AT_BASELINE, PAGE_WIDTH, draw_rows, new_figure, paper_style
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.method_labels import PARTS, SYMBOLS, custom_parameters, method_name

# measure -> title, value for autoregressive decoding
MEASURES = {"tokens_per_forward": ("tokens / forward", 1.0), "nll_change": ("NLL change\n(nats / token)", 0.0)}
# column of a number in which variants may differ -> function that writes a value
NUMBERS: dict[str, Callable[[float], str]] = {
    **{name: f"{symbol} {{:g}}".format for name, symbol in SYMBOLS.items()},
    "temperature": "T {:g}".format,
    "cfg_scale": "guidance {:g}".format,
    "top_k": lambda value: f"top-k {value:g}" if value else "all codes",  # 0 is no filter
    "drafter_steps": lambda value: "as trained" if pd.isna(value) else f"{value:g} steps",
}
ROW_HEIGHT, TITLE_HEIGHT, FOOT_HEIGHT = 0.155, 0.31, 0.45  # inches
WRAP = 24  # letters in a line of a label
Panel = tuple[str, pd.DataFrame]  # name of an ablation, and the rows of its variants


def draw_ablations(table: pd.DataFrame) -> Figure:
    """Draw the panels in two columns, with page width and one line per variant.

    Tokens per forward pass are on the left of a panel, the change of NLL is on its right. All panels share their
    scales. Bars are 95 % intervals. `table` has the tables ablations/*.csv, concatenated.
    """
    # Autoregressive decoding has 1 token per forward pass and no change by definition: a dashed line, no row.
    variants = table[table["method"] != BASELINE]
    panels = [(str(name), _label(rows)) for name, rows in variants.groupby("ablation", sort=False)]
    heights = [TITLE_HEIGHT + _height(rows) for _, rows in panels]
    # Split the panels, in order, into a left and a right column whose heights are as equal as possible. A single panel
    # has no split (`default`), and the empty right column is dropped.
    cut = min(range(1, len(panels)), key=lambda i: max(sum(heights[:i]), sum(heights[i:])), default=1)
    sides = [side for side in (panels[:cut], panels[cut:]) if side]
    tallest = max(sum(heights[:cut]), sum(heights[cut:]))
    limits = {name: _limits(variants, name) for name in MEASURES}
    with paper_style():
        figure = new_figure(PAGE_WIDTH, tallest + FOOT_HEIGHT)
        for part, side in zip(figure.subfigures(1, len(sides), squeeze=False)[0], sides, strict=True):
            _draw_side(part, side, tallest, limits)
        return figure


def _label(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows of one ablation by method and parts, and add the column `label` that names a row in the figure."""
    # "none" instead of nan: labels show it, and `factorize` would put nan first.
    shown = rows.assign(**{part: rows[part].astype(object).where(rows[part].notna(), "none") for part in PARTS})
    # In the order of first appearance.
    shown = shown.sort_values(["method", *PARTS], key=lambda column: pd.factorize(column)[0], kind="stable")
    numbers = NUMBERS | {name: f"{symbol} {{:g}}".format for name, symbol in custom_parameters(rows).items()}
    # A label shows the parts that differ between variants of one method, not those that differ between methods. An
    # empty number counts as a value (`dropna`), so that it differs from the others.
    differing = shown.groupby("method")[[*PARTS, *numbers]].nunique(dropna=False) > 1
    is_alone = shown["method"].nunique() == 1
    labels = []
    for _, row in shown.iterrows():
        words, varying = [] if is_alone else [method_name(row["method"])], differing.loc[row["method"]]
        words += [str(row[part]).replace("_", " ") for part in PARTS if varying[part]]
        words += [numbers[name](row[name]) for name in numbers if varying[name] and _is_told(name, row[name])]
        labels.append(textwrap.fill(", ".join(words) or method_name(row["method"]), WRAP))
    return shown.assign(label=labels)


def _is_told(name: str, value: float) -> bool:
    # An empty number is not told, except in drafter_steps, where it means the draft model of the run.
    return name == "drafter_steps" or not pd.isna(value)


def _title(name: str, rows: pd.DataFrame) -> str:
    methods = rows["method"].unique()
    # "ablation (method)", if all variants are of one method that the ablation is not named after.
    of = f" ({method_name(methods[0])})" if len(methods) == 1 and methods[0] != name else ""
    return name.replace("_", " ") + of


def _height(rows: pd.DataFrame) -> float:
    # Inches of a panel without its title. All its rows are as high as the label with the most lines.
    return ROW_HEIGHT * len(rows) * (int(rows["label"].str.count("\n").max()) + 1)


def _draw_side(part: SubFigure, side: Sequence[Panel], height: float, limits: dict[str, tuple[float, float]]) -> None:
    """Draw the panels of one column. `height` is that of the taller column, in inches."""
    heights = [_height(rows) for _, rows in side]
    empty = height - sum(heights) - TITLE_HEIGHT * len(side)
    # The last row is empty and fills a shorter column, so that a line is as high in both. Matplotlib does not apply the
    # constrained layout if a ratio is 0.
    grid = part.add_gridspec(len(side) + 1, 2, height_ratios=[*heights, max(empty, 1e-3)])
    for line, (name, rows) in enumerate(side):
        is_last = line == len(side) - 1
        for column, (measure, (title, at_baseline)) in enumerate(MEASURES.items()):
            axes = part.add_subplot(grid[line, column])
            draw_rows(axes, rows, measure, markersize=4, elinewidth=1.3)
            axes.axvline(at_baseline, **AT_BASELINE)
            axes.set_xlim(limits[measure])
            axes.tick_params(labelleft=column == 0, labelbottom=is_last)
            axes.set_xlabel(title if is_last else "")
            axes.set_title("" if column else _title(name, rows), loc="left", fontsize=8.5)


def _limits(rows: pd.DataFrame, name: str) -> tuple[float, float]:
    """Return the ends of an axis that shows all values, intervals, and the value of autoregressive decoding."""
    # The baseline's value stands first: `min` and `max` skip a nan (no interval) that is not the first value.
    values = [MEASURES[name][1], *rows[[name, f"{name}_low", f"{name}_high"]].stack()]
    margin = 0.06 * (max(values) - min(values))
    return min(values) - margin, max(values) + margin
