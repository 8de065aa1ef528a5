"""How methods look to readers: labels, colours and markers, the same in every table, figure and page.

A label depends on the method alone, not on what stands beside it: its preset's name, in brackets the parts in which it
departs from that preset, then its parameters, as in "LANTERN (chain9, sjd) k 20, δ 0.1".
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from lantern.methods import PARAMETERS, PRESET_ROWS, PRESETS, PresetRow, load_class
from lantern_pipeline.data.tables import method_columns

# Labels and colours of the presets, of a variant of LANTERN's, and of a method of published numbers only. "LANTERN
# chain" is the formula of LANTERN's paper, a chain of sampled drafts. Preset `lantern` is its authors' code, a tree.
_ROWS = {
    **PRESET_ROWS,
    "lantern_chain": PresetRow(
        "LANTERN chain", {**PRESETS["lantern"], "tree": "chain5", "drafts": "sampled"}, "#882255", "h"
    ),
    "pjd": PresetRow("PJD", {}, "#AA7744", "*"),
}
# Of methods whose row has none, and of custom methods. No row has one of these colours.
SPARE_COLOURS = ("#661100", "#44AA99", "#BBCC33", "#DDCC77")
SPARE_MARKER = "h"
CEILING_NAMES = {"real": "real images", "reconstruction": "reconstructions"}
WORDS = tuple(name for name, parameter in PARAMETERS.items() if parameter.choices)
PARTS = ("tree", "drafts", "acceptance", "residual", "neighbours", *WORDS)
SYMBOLS = {name: parameter.symbol for name, parameter in PARAMETERS.items() if name not in WORDS}
STATIC_TREE = "chain3"  # what "static" in a preset stands for in a label: config.yaml's draft_tree.static
# What labels leave unsaid: of every method, then of the preset that it is made of.
_USUAL = {"residual": "paper", "neighbours": "l2_normalised"}
_USUAL_SJD = {"coupling": "none", "labels": "point"}


def preset_of(method: str) -> str:
    """The preset that a name is or begins with ("lantern" of "lantern_sjd"); the name itself where there is none."""
    known = [name for name in PRESETS if method == name or method.startswith(f"{name}_")]
    return max(known, key=len, default=method)


def method_name(method: str) -> str:
    """Return a method's name in words, without its parts."""
    if method in CEILING_NAMES:
        return CEILING_NAMES[method]
    row = _ROWS.get(method) or _ROWS.get(preset_of(method))
    return row.label if row else method.replace("_", " ")


def method_colour(method: str) -> str:
    """Return the colour of a method, the same in every figure. A method without a row gets one by its name."""
    own = _ROWS[method].colour if method in _ROWS else ""
    return own or SPARE_COLOURS[sum(method.encode()) % len(SPARE_COLOURS)]


def method_marker(method: str) -> str:
    """Return the marker of a method, so that colour is not the only sign."""
    own = _ROWS[method].marker if method in _ROWS else ""
    return own or SPARE_MARKER


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
    declared = [getattr(load_class(name), "parameters", {}) for name in sorted(parts) if ":" in name]
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
    usual: dict[str, object] = {"acceptance": "exact", **_USUAL}
    if method.get("drafts") == "sjd":
        usual |= _USUAL_SJD
    if base in _ROWS:
        usual |= dict(_ROWS[base].parts)
    if usual.get("tree") == "static":
        usual["tree"] = STATIC_TREE
    return base, usual


def _is_told(method: Mapping[str, object], name: str, usual: Mapping[str, object]) -> bool:
    return name in method and not pd.isna(method[name]) and method[name] != usual.get(name)
