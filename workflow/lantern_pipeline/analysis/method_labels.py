"""Names of methods for human readers, made from the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

NAMES = {
    "autoregressive": "autoregressive",
    "eagle1": "EAGLE-1",
    "eagle2": "EAGLE-2",
    "lantern": "LANTERN",
    "lantern_pp": "LANTERN++",
    "coupled": "coupled",
    "proximity": "proximity",
    "bounded": "bounded",
    "real": "real images",
    "reconstruction": "reconstructions",
}
PARTS = ("tree", "drafts", "relaxation", "residual", "neighbours")
SYMBOLS = {"k": "k", "delta": "δ", "lambda_": "λ"}


def method_columns(method: Mapping[str, Any]) -> dict[str, Any]:
    """Turns a method's parts (`MethodSpec.to_dict`) into columns of a table: its `name` is the column `method`."""
    return {("method" if name == "name" else name): value for name, value in method.items()}


def _name(method: str) -> str:
    """A preset's name; a method of the config's own that begins like a preset keeps the preset's spelling."""
    known = [name for name in NAMES if method == name or method.startswith(f"{name}_")]
    preset = max(known, key=len, default="")
    return (NAMES.get(preset, "") + method.removeprefix(preset).replace("_", " ")).strip()


def describe_parameters(row: Mapping[str, Any]) -> str:
    """Writes a row's parameters, e.g. "k 20, δ 0.1"; an empty text where it has none."""
    given = [(symbol, row[name]) for name, symbol in SYMBOLS.items() if name in row and not pd.isna(row[name])]
    return ", ".join(f"{symbol} {value:g}" for symbol, value in given)


def label_families(table: pd.DataFrame) -> pd.Series:
    """Names the family of each row: the method without its grid of k, delta and lambda.

    Rows that share a preset but differ in their parts (tree, drafts, neighbours, ...) are told apart by the parts that
    differ.

    Args:
        table: columns method and PARTS, one row per method.

    Returns:
        Names, on the table's index: "LANTERN", or "LANTERN (chain5, sampled)".
    """
    parts = table[list(PARTS)].astype(object).where(table[list(PARTS)].notna(), "")
    labels = pd.Series("", index=table.index, dtype=object)
    for method, rows in table.groupby("method", sort=False).groups.items():
        name = _name(str(method))
        differing = [part for part in PARTS if parts.loc[rows, part].nunique() > 1]
        for row in rows:
            shown = [str(parts.loc[row, part]) for part in differing if parts.loc[row, part] != ""]
            labels[row] = f"{name} ({', '.join(shown)})" if shown else name
    return labels


def label_rows(table: pd.DataFrame) -> pd.Series:
    """Names each row: its family and its parameters, e.g. "LANTERN k 20, δ 0.1"."""
    families = label_families(table)
    return pd.Series(
        [f"{families[i]} {describe_parameters(row)}".strip() for i, row in table.iterrows()], table.index, dtype=object
    )
