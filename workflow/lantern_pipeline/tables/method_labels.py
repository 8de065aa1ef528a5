"""Labels, colours and markers of methods, which are the same in every table, figure and page.

A label depends on the method only, not on other methods in the same table. The name of the preset comes first. Tree,
drafts and acceptance follow in brackets if they differ from the preset. The tree is also told if a preset stands in
tables with trees of several sizes: "EAGLE-1 (static 57)", "LANTERN (dynamic 58)". The parameters come last. An example
is "LANTERN (chain9, sjd) k 20, δ 0.1".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from lantern.import_paths import load_class
from lantern.method_tables import PRESET_ROWS, PRESETS, PresetRow
from lantern.parameters import PARAMETERS
from lantern.tree_shapes import dynamic_options, is_dynamic
from lantern_pipeline.data.tables import method_columns

# Labels and colours of the presets and of "LANTERN chain", which applies the formula of LANTERN's paper to a chain of
# sampled drafts, while preset `lantern` is its authors' code with a tree.
_ROWS = {
    **PRESET_ROWS,
    "lantern_chain": PresetRow(
        "LANTERN chain", {**PRESETS["lantern"], "tree": "chain5", "drafts": "sampled"}, "#882255", "h"
    ),
}
# Colours and marker of methods without an entry in _ROWS, such as custom methods. No entry has one of these colours.
SPARE_COLOURS = ("#661100", "#44AA99", "#BBCC33", "#DDCC77")
SPARE_MARKER = "h"
CEILING_NAMES = {"real": "real images", "reconstruction": "reconstructions"}
WORDS = tuple(name for name, parameter in PARAMETERS.items() if parameter.choices)
PARTS = ("tree", "drafts", "acceptance", "residual", "neighbours", *WORDS)
OF_ANY_SIZE = ("jacobi", "hybrid")  # presets that stand in tables with several trees
SYMBOLS = {name: parameter.symbol for name, parameter in PARAMETERS.items() if name not in WORDS}
# Values that labels leave out because they are usual: for all methods, and in addition for methods with SJD drafts.
_USUAL = {"residual": "paper", "neighbours": "l2_normalised"}
_USUAL_SJD = {"coupling": "none", "labels": "point"}


def preset_of(method: str) -> str:
    """Return the name of the preset from which a method is derived: "lantern" for the method's name "lantern_sjd".

    If the method's name begins with no preset, return the name itself.
    """
    known = [name for name in PRESETS if method == name or method.startswith(f"{name}_")]
    return max(known, key=len, default=method)


def method_name(method: str) -> str:
    """Return a method's name in words, such as "LANTERN", without tree, drafts, acceptance and parameters."""
    if method in CEILING_NAMES:
        return CEILING_NAMES[method]
    row = _ROWS.get(method) or _ROWS.get(preset_of(method))
    return row.label if row else method.replace("_", " ")


def method_colour(method: str) -> str:
    """Return the colour of a method. If its preset has no colour, the method's name determines one."""
    own = _ROWS[method].colour if method in _ROWS else ""
    return own or SPARE_COLOURS[sum(method.encode()) % len(SPARE_COLOURS)]


def method_marker(method: str) -> str:
    """Return the matplotlib marker of a method, which helps readers who cannot distinguish the colours."""
    own = _ROWS[method].marker if method in _ROWS else ""
    return own or SPARE_MARKER


def label_family(method: Mapping[str, object]) -> str:
    """Write a method's label without parameters, such as "LANTERN (chain9, sjd)" for the tree chain9 and SJD drafts.

    Args:
        method: a row of a table.
    """
    base, usual = _base_of(method)
    if grown := re.fullmatch(rf"{base}_(\d+)", str(method.get("tree"))):  # a grown tree of these drafts, as hybrid_50
        name = f"{method_name(base)}, {grown[1]} nodes"
        usual = {**usual, "tree": method["tree"]}
    elif base == "lantern_chain" and (chain := re.fullmatch(r"chain(\d+)", str(method.get("tree")))):
        name = f"{method_name(base)}{chain[1]}"
        usual = {**usual, "tree": method["tree"]}
    else:
        name = method_name(base)
    parts = [_part_in_words(str(method[name])) for name in PARTS if _is_told(method, name, usual)]
    return name + (f" ({', '.join(parts)})" if parts else "")


def _part_in_words(part: str) -> str:
    if part == "naive_extend_57":  # the authors' static tree
        return "static 57"
    is_sized = is_dynamic(part) and part != "dynamic"
    return f"dynamic {dynamic_options(part).num_nodes}" if is_sized else part


def describe_parameters(method: Mapping[str, object]) -> str:
    """Write a method's parameters, such as "k 20, δ 0.1". Values that equal those of the preset are left out.

    Args:
        method: a row of a table, whose columns include the parameters.
    """
    usual = _base_of(method)[1]
    symbols = SYMBOLS | custom_parameters(pd.DataFrame([dict(method)]))
    told = [(symbol, method[name]) for name, symbol in symbols.items() if _is_told(method, name, usual)]
    return ", ".join(f"{symbol} {value:g}" for symbol, value in told)


def custom_parameters(rows: pd.DataFrame) -> dict[str, str]:
    """Return the parameters that a user's custom drafters and acceptances declare in addition to Lantern's.

    Args:
        rows: rows of a table. Custom classes are values "module:Class" of the columns drafts and acceptance.

    Returns:
        Name of the parameter -> symbol for labels.
    """
    parts = {str(name) for column in ("drafts", "acceptance") if column in rows for name in rows[column].unique()}
    declared = [getattr(load_class(name), "parameters", {}) for name in sorted(parts) if ":" in name]
    own = {name: parameter.symbol for parameters in declared for name, parameter in parameters.items()}
    return {name: symbol for name, symbol in own.items() if name not in PARAMETERS}


def label_method(method: Mapping[str, object]) -> str:
    """Write the label of a method: "LANTERN k 20, δ 0.1".

    Args:
        method: a row of a table, or a dict from `MethodSpec.to_dict`.
    """
    method = method if "method" in method else method_columns(method)
    return f"{label_family(method)} {describe_parameters(method)}".strip()


def label_families(table: pd.DataFrame) -> pd.Series:
    """Return the label without parameters (`label_family`) of each row's method, as a series with the table's index."""
    return pd.Series([label_family(row) for _, row in table.iterrows()], table.index, dtype=object)


def label_rows(table: pd.DataFrame) -> pd.Series:
    """Return the label (`label_method`) of each row's method, as a series with the index of `table`."""
    return pd.Series([label_method(row) for _, row in table.iterrows()], table.index, dtype=object)


def _base_of(method: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    """Return the name with which a method's label begins, and the values that the label need not state.

    If the name is that of a preset, these values are the preset's tree, drafts, acceptance and parameters. Otherwise
    these values are the defaults.

    Args:
        method: a row of a table.
    """
    base = preset_of(str(method["method"]))
    if base == "lantern" and method.get("drafts") == "sampled":
        base = "lantern_chain"
    usual: dict[str, object] = {"acceptance": "exact", **_USUAL}
    if method.get("drafts") == "sjd":
        usual |= _USUAL_SJD
    if base in _ROWS:
        usual |= dict(_ROWS[base].parts)
    if base in OF_ANY_SIZE:
        del usual["tree"]
    return base, usual


def _is_told(method: Mapping[str, object], name: str, usual: Mapping[str, object]) -> bool:
    return name in method and not pd.isna(method[name]) and method[name] != usual.get(name)
