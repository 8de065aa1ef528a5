"""What several figures need: checks of their tables, which rows to draw, intervals, titles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lantern.records import GenerationRecords
from lantern_pipeline.analysis.method_labels import describe_parameters, label_families
from lantern_pipeline.metrics.speed import BASELINE


def require_columns(table: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    """Checks that a table can be drawn.

    Raises:
        ValueError: it has no rows, or lacks a column.
    """
    missing = [column for column in columns if column not in table.columns]
    if missing:
        raise ValueError(f"the table {name} lacks the columns {', '.join(missing)}; delete it and run its rule again")
    if table.empty:
        raise ValueError(f"the table {name} has no rows to draw; delete it and run its rule again")


def first_of_families(rows: pd.DataFrame) -> pd.DataFrame:
    """Keeps the first row of each family of methods, in the table's order, autoregressive decoding left out."""
    families = label_families(rows)
    return rows[~families.duplicated() & (rows["method_id"] != BASELINE)]


def half_widths(rows: pd.DataFrame, name: str, factor: float = 1.0) -> np.ndarray:
    """Lengths of the error bars below and above, (2, rows); 0 where there is no interval."""
    value, low, high = (factor * rows[name + end].to_numpy(float) for end in ("", "_low", "_high"))
    return np.nan_to_num(np.stack([value - low, high - value])).clip(min=0)


def draw_band(axes: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str) -> None:
    """Shades an interval around a curve."""
    axes.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0, zorder=1)


def first_of_each_preset(records: Mapping[str, GenerationRecords]) -> list[str]:
    """Method ids of the first method of each preset, autoregressive decoding first."""
    first: dict[str, str] = {BASELINE: BASELINE}
    for method_id, record in records.items():
        first.setdefault(record.metadata["method"]["name"], method_id)
    return list(first.values())


def column_titles(records: Sequence[GenerationRecords]) -> list[str]:
    """Family and parameters of each method, on lines of their own."""
    methods = [record.metadata["method"] for record in records]
    table = pd.DataFrame([{**method, "method": method["name"]} for method in methods])
    titles = []
    for family, (_, row) in zip(label_families(table), table.iterrows(), strict=True):
        name = family.replace(" ", "\n").replace("autoregressive", "auto-\nregressive")
        titles.append("\n".join(part for part in (name, describe_parameters(row)) if part))
    return titles
