"""How methods look to readers: labels, colours and markers, the same in every table, figure and page.

A label depends on the method alone, not on what stands beside it: its preset's name, in brackets the parts in which it
departs from that preset, then its parameters, as in "LANTERN (chain9, sjd) k 20, δ 0.1".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from lantern.methods import PARAMETERS, PRESETS, load_class
from lantern_pipeline.data.tables import method_columns

_FALLBACK_COLOURS = ("#661100", "#44AA99", "#882255", "#DDCC77")


class Look(NamedTuple):
    """A method's name, colour and marker."""

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
    "lantern_chain": Look("LANTERN chain", "#882255", "h"),
    "lantern_pp": Look("LANTERN++", "#E69F00", "^"),
    "proximity": Look("proximity", "#009E73", "v"),
    "bounded": Look("bounded", "#CC79A7", "X"),
    "jacobi": Look("Jacobi", "#332288", ">"),
    "hybrid": Look("hybrid", "#999933", "p"),
    "cool": Look("COOL-SD", "#AA4499", "<"),
    "ensemble": Look("ensemble", "#6699CC", "x"),
    "mixing": Look("mixing", "#EE3377", "+"),
    "sjd": Look("SJD", "#117733", "1"),
    "scd_gumbel": Look("SCD, Gumbel", "#88CCEE", "2"),
    "scd": Look("SCD", "#DDAA33", "3"),
    "sjd_pp": Look("SJD++", "#BB5566", "4"),
    "sjd_pac": Look("SJD-PAC", "#004488", "d"),
    "path_relax": Look("PathRelax", "#997700", "8"),
    "gsd": Look("GSD", "#661177", "H"),
    "zipar": Look("ZipAR", "#225522", "p"),
    "pjd": Look("PJD", "#AA7744", "*"),  # published numbers alone
}
CEILING_NAMES = {"real": "real images", "reconstruction": "reconstructions"}
WORDS = tuple(name for name, parameter in PARAMETERS.items() if parameter.choices)
PARTS = ("tree", "drafts", "acceptance", "residual", "neighbours", *WORDS)
SYMBOLS = {name: parameter.symbol for name, parameter in PARAMETERS.items() if name not in WORDS}
STATIC_TREE = "chain3"  # what "static" in a preset stands for in a label: config.yaml's draft_tree.static
# What labels leave unsaid: of every method, then of the preset that it is made of. "LANTERN chain" is the formula of
# LANTERN's paper, a chain of sampled drafts, where preset `lantern` is the tree of the authors' code.
_USUAL = {"residual": "paper", "neighbours": "l2_normalised"}
_USUAL_SJD = {"coupling": "none", "labels": "point"}
_PRESETS = {**PRESETS, "lantern_chain": {**PRESETS["lantern"], "tree": "chain5", "drafts": "sampled"}}


def preset_of(method: str) -> str:
    """The preset that a name is or begins with ("lantern" of "lantern_sjd"); the name itself where there is none."""
    known = [name for name in PRESETS if method == name or method.startswith(f"{name}_")]
    return max(known, key=len, default=method)


def method_name(method: str) -> str:
    """A method's name in words, without its parts."""
    if method in METHODS:
        return METHODS[method].name
    preset = preset_of(method)
    return CEILING_NAMES.get(preset) or (METHODS[preset].name if preset in METHODS else method.replace("_", " "))


def method_colour(method: str) -> str:
    """The colour of a method, the same in every figure; a method of the user's own gets one by its name."""
    return METHODS[method].colour if method in METHODS else _FALLBACK_COLOURS[sum(method.encode()) % 4]


def method_marker(method: str) -> str:
    """The marker of a method, so that colour is not the only sign."""
    return METHODS[method].marker if method in METHODS else "h"


def label_family(method: Mapping[str, object]) -> str:
    """Names a method without its parameters: "LANTERN (chain9, sjd)". `method`: a row of a table."""
    base, usual = _base_of(method)
    parts = [str(method[name]) for name in PARTS if _is_told(method, name, usual)]
    return method_name(base) + (f" ({', '.join(parts)})" if parts else "")


def describe_parameters(method: Mapping[str, object]) -> str:
    """Writes a row's parameters, e.g. "k 20, δ 0.1"; an empty text where it has none but its preset's own."""
    usual = _base_of(method)[1]
    symbols = SYMBOLS | custom_parameters(pd.DataFrame([dict(method)]))
    told = [(symbol, method[name]) for name, symbol in symbols.items() if _is_told(method, name, usual)]
    return ", ".join(f"{symbol} {value:g}" for symbol, value in told)


def custom_parameters(rows: pd.DataFrame) -> dict[str, str]:
    """Names and symbols of the parameters that users' own classes in a table declare, besides those of ours."""
    parts = {str(name) for column in ("drafts", "acceptance") if column in rows for name in rows[column].unique()}
    declared = [load_class(name).parameters for name in sorted(parts) if ":" in name]
    own = {name: parameter.symbol for parameters in declared for name, parameter in parameters.items()}
    return {name: symbol for name, symbol in own.items() if name not in PARAMETERS}


def label_method(method: Mapping[str, object]) -> str:
    """Names a method: "LANTERN k 20, δ 0.1". `method`: a row of a table, or as `MethodSpec.to_dict` has it."""
    method = method if "method" in method else method_columns(method)
    return f"{label_family(method)} {describe_parameters(method)}".strip()


def label_families(table: pd.DataFrame) -> pd.Series:
    """`label_family` of each row, on the table's index."""
    return pd.Series([label_family(row) for _, row in table.iterrows()], table.index, dtype=object)


def label_rows(table: pd.DataFrame) -> pd.Series:
    """`label_method` of each row, on the table's index."""
    return pd.Series([label_method(row) for _, row in table.iterrows()], table.index, dtype=object)


def _base_of(method: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    """The name that a label begins with, and the parts and parameters that go unsaid with it."""
    base = preset_of(str(method["method"]))
    if base == "lantern" and method.get("drafts") == "sampled":
        base = "lantern_chain"
    usual = {"acceptance": "exact", **_USUAL, **(_USUAL_SJD if method.get("drafts") == "sjd" else {})}
    usual |= _PRESETS.get(base, {})
    return base, usual | ({"tree": STATIC_TREE} if usual.get("tree") == "static" else {})


def _is_told(method: Mapping[str, object], name: str, usual: Mapping[str, object]) -> bool:
    return name in method and not pd.isna(method[name]) and method[name] != usual.get(name)
