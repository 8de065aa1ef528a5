"""How methods look to human readers: their names in words, made from the columns of a table, colours and markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from lantern.methods import PRESETS, SJD_PARTS
from lantern_pipeline.data.tables import method_columns

_FALLBACK_COLOURS = ("#661100", "#44AA99", "#882255", "#DDCC77")


class Look(NamedTuple):
    """A method's name, colour and marker, the same in every table and figure."""

    name: str
    colour: str
    marker: str


# Colours of Okabe and Ito (2008), as in figures/style.py; then of Tol (2021), "muted".
METHODS = {
    "autoregressive": Look("autoregressive", "#000000", "*"),
    "eagle1": Look("EAGLE-1", "#7F7F7F", "s"),
    "eagle2": Look("EAGLE-2", "#56B4E9", "D"),
    "coupled": Look("coupled", "#0072B2", "P"),
    "lantern": Look("LANTERN", "#D55E00", "o"),
    "lantern_pp": Look("LANTERN++", "#E69F00", "^"),
    "proximity": Look("proximity", "#009E73", "v"),
    "bounded": Look("bounded", "#CC79A7", "X"),
    "jacobi": Look("Jacobi", "#332288", ">"),
    "hybrid": Look("hybrid", "#999933", "p"),
    "cool": Look("COOL-SD", "#AA4499", "<"),
    "sjd": Look("SJD", "#117733", "1"),
    "scd_gumbel": Look("SCD, Gumbel", "#88CCEE", "2"),
    "scd": Look("SCD", "#DDAA33", "3"),
    "sjd_pp": Look("SJD++", "#BB5566", "4"),
    "sjd_pac": Look("SJD-PAC", "#004488", "d"),
    "path_relax": Look("PathRelax", "#997700", "8"),
    "gsd": Look("GSD", "#661177", "H"),
    "zipar": Look("ZipAR", "#225522", "p"),
}
NAMES = {
    **{method: look.name for method, look in METHODS.items()},
    "real": "real images",
    "reconstruction": "reconstructions",
}
PARTS = ("tree", "drafts", "relaxation", "residual", "neighbours", *SJD_PARTS)
SYMBOLS = {
    "k": "k",
    "delta": "δ",
    "lambda_": "λ",
    "omega": "ω",
    "threshold": "τ",
    "h": "h",
    "p_max": "Δp",
    "d_max": "d²",
    "window": "w",
}


def preset_of(method: str) -> str:
    """The preset that a name is or begins with ("lantern" of "lantern_chain"); the name itself where there is none."""
    known = [name for name in NAMES if method == name or method.startswith(f"{name}_")]
    return max(known, key=len, default=method)


def method_name(method: str) -> str:
    """A method's name in words; one of the config's own that begins like a preset keeps the preset's spelling."""
    preset = preset_of(method)
    return NAMES.get(preset, preset.replace("_", " ")) + method.removeprefix(preset).replace("_", " ")


def method_colour(method: str) -> str:
    """The colour of a method, the same in every figure; a method of the user's own gets one by its name."""
    return METHODS[method].colour if method in METHODS else _FALLBACK_COLOURS[sum(method.encode()) % 4]


def method_marker(method: str) -> str:
    """The marker of a method, so that colour is not the only sign."""
    return METHODS[method].marker if method in METHODS else "h"


def describe_parameters(row: Mapping[str, Any]) -> str:
    """Writes a row's parameters, e.g. "k 20, δ 0.1"; an empty text where it has none but its preset's own."""
    usual = PRESETS.get(row.get("method"), {})
    told = [name for name in SYMBOLS if name in row and not pd.isna(row[name]) and row[name] != usual.get(name)]
    return ", ".join(f"{SYMBOLS[name]} {row[name]:g}" for name in told)


def label_families(table: pd.DataFrame) -> pd.Series:
    """Names the family of each row, the method without its grid of k, delta and lambda, on the table's index.

    Rows that share a method but differ in parts are told apart by these, "none" unsaid: "LANTERN (chain5, sampled)".
    """
    parts = table.reindex(columns=PARTS).astype(object).where(lambda found: found.notna() & (found != "none"), "")
    labels = pd.Series("", index=table.index, dtype=object)
    for method, rows in table.groupby("method", sort=False).groups.items():
        differing = [part for part in PARTS if parts.loc[rows, part].nunique() > 1]
        for row in rows:
            shown = [str(parts.loc[row, part]) for part in differing if parts.loc[row, part] != ""]
            labels[row] = method_name(str(method)) + (f" ({', '.join(shown)})" if shown else "")
    return labels


def label_rows(table: pd.DataFrame) -> pd.Series:
    """Names each row: its family and its parameters, e.g. "LANTERN k 20, δ 0.1"."""
    families = label_families(table)
    return pd.Series(
        [f"{families[i]} {describe_parameters(row)}".strip() for i, row in table.iterrows()], table.index, dtype=object
    )


def label_methods(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names methods, given as `MethodSpec.to_dict`, as `label_rows` does."""
    return list(label_rows(pd.DataFrame([method_columns(method) for method in methods]))) if methods else []
