"""Page of the GPU check: all measurements as Markdown tables, next to predictions. It does not import torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_parts import PARTS

HIDDEN = ("part", "table", "name")
FIRST = ("is_right", "ms", "us")  # these columns come first
PREDICTED = "predicted_"  # prefix of the column that is placed after the one that it predicts
NOTE = (
    "Predictions are estimates for an H100 from counts of kernels, see docs/gpu.md. "
    "Times are medians over blocks after a warm-up; `low` and `high` are the shortest and the longest block. "
    "`is_right` is false if a graph gave other tokens than eager steps, or bfloat16 other images than steps of as many "
    "rows."
)


def write_page(path: Path, summary: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the page of the GPU check.

    Args:
        path: file of the page.
        summary: machine, commit, and how each part ended.
        rows: the measurements. Rows of the same part and table name form one table.
    """
    machine = ", ".join(f"{key} {value}" for key, value in summary["machine"].items())
    size = "; small models, which show that the code runs and nothing else" if summary["is_tiny"] else ""
    lines = ["# Check of a GPU", "", f"{machine or 'no part started'}; commit {summary['commit']}{size}.", "", NOTE, ""]
    lines += ["| part | state | seconds |", "|---|---|---:|"]
    for letter, found in summary["parts"].items():
        lines.append(f"| {letter}: {PARTS[letter].title} | {found['state']} | {found['seconds']} |")
    for letter in summary["parts"]:
        lines += ["", f"## {letter}. {PARTS[letter].title}"]
        tables: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["part"] == letter and row["table"] != "machine":
                tables.setdefault(row["table"], []).append(row)
        for name, found in tables.items():
            lines += ["", f"### {name}", "", *_table_of(found)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _table_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table of some measurements. A column is left out if no row has a value for it."""
    known = dict.fromkeys(key for row in rows for key, value in row.items() if key not in HIDDEN and value is not None)
    measured = [key for key in FIRST if key in known]
    measured += [key for key in known if key not in measured and not key.startswith(PREDICTED)]
    columns = [name for key in measured for name in (key, PREDICTED + key) if name in known]
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for row in rows:
        cells = [_cell(row.get(column)) for column in columns]
        lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return lines


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "/").replace("\n", " ")
