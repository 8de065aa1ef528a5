"""Labels of methods, which are the same in every table, figure and page.

A label depends on the method only, not on other methods in the same table. It has the name of the preset, in brackets
the tree, drafts and acceptance that differ from the preset, and last the parameters that do:
"LANTERN (chain9, sjd) k 20, δ 0.1". Presets OF_ANY_SIZE always state their tree: "Jacobi (chain9)". The authors' trees
have short names: "EAGLE-1 (static 57)", "LANTERN (dynamic 58)". Presets `is_unverified` say so: "SSD (unverified) r 0".

A `method` is a row of a table, unless it is a str: the name from column method.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from lantern.parameters import PARAMETERS
from lantern.registry import PRESETS, PresetRow, acceptance_of, drafts_of
from lantern.tree_shapes import dynamic_options, is_dynamic
from lantern_pipeline.data.tables import method_columns

# "LANTERN chain" applies the formula of LANTERN's paper to a chain of sampled drafts, while preset `lantern` is its
# authors' code with a tree.
_CHAIN = "lantern_chain"
_CHAIN_ROW = PresetRow("LANTERN chain", {**PRESETS["lantern"].parts, "tree": "chain5", "drafts": "sampled"})
CEILING_NAMES = {"real": "real images", "reconstruction": "reconstructions"}
# Parameters whose values are words. Labels state them as parts, the others with their symbols.
WORDS = tuple(name for name, parameter in PARAMETERS.items() if parameter.choices)
PARTS = ("tree", "drafts", "acceptance", "residual", "neighbours", *WORDS)
OF_ANY_SIZE = ("jacobi", "hybrid")  # presets that tables have with trees of several sizes
SYMBOLS = {name: parameter.symbol for name, parameter in PARAMETERS.items() if name not in WORDS}
# Values that labels leave out because they are usual: for all methods, and in addition for methods with SJD drafts.
_USUAL = {"residual": "paper", "neighbours": "l2_normalised"}
_USUAL_SJD = {"coupling": "none", "labels": "point"}


def preset_of(method: str) -> str:
    """Return the longest preset with which a method's name begins, "lantern" for "lantern_sjd", or the name itself."""
    known = [name for name in PRESETS if method == name or method.startswith(f"{name}_")]
    return max(known, key=len, default=method)


def method_name(method: str) -> str:
    """Return a method's name in words, such as "LANTERN", without tree, drafts, acceptance and parameters."""
    if method in CEILING_NAMES:
        return CEILING_NAMES[method]
    row = _row_of(method) or _row_of(preset_of(method))
    return row.label if row else method.replace("_", " ")


def _row_of(name: str) -> PresetRow | None:
    return _CHAIN_ROW if name == _CHAIN else PRESETS.get(name)


def label_family(method: Mapping[str, object]) -> str:
    """Write a method's label without parameters, such as "LANTERN (chain9, sjd)"."""
    base, usual = _base_of(method)
    if grown := re.fullmatch(rf"{base}_(\d+)", str(method.get("tree"))):  # a grown tree of these drafts, as hybrid_50
        name = f"{method_name(base)}, {grown[1]} nodes"
        # The name states the tree, and as a usual part it does not stand in the brackets again.
        usual = {**usual, "tree": method["tree"]}
    # "LANTERN chain5": the length is part of the name, not a word in brackets.
    elif base == _CHAIN and (chain := re.fullmatch(r"chain(\d+)", str(method.get("tree")))):
        name = f"{method_name(base)}{chain[1]}"
        usual = {**usual, "tree": method["tree"]}
    else:
        name = method_name(base)
    parts = ["unverified"] if (row := _row_of(base)) and row.is_unverified else []
    parts += [_part_in_words(str(method[name])) for name in PARTS if _is_told(method, name, usual)]
    return name + (f" ({', '.join(parts)})" if parts else "")


def _part_in_words(part: str) -> str:
    if part == "naive_extend_57":  # the authors' static tree
        return "static 57"
    is_sized = is_dynamic(part) and part != "dynamic"
    return f"dynamic {dynamic_options(part).num_nodes}" if is_sized else part


def describe_parameters(method: Mapping[str, object]) -> str:
    """Write a method's parameters, such as "k 20, δ 0.1". Values that equal those of the preset are left out."""
    usual = _base_of(method)[1]
    symbols = SYMBOLS | custom_parameters(pd.DataFrame([dict(method)]))
    told = [(symbol, method[name]) for name, symbol in symbols.items() if _is_told(method, name, usual)]
    return ", ".join(f"{symbol} {value:g}" for symbol, value in told)


def custom_parameters(rows: pd.DataFrame) -> dict[str, str]:
    """Return name -> symbol of the parameters that drafters and acceptances outside Lantern add, in rows of a table."""
    kinds = {"drafts": drafts_of, "acceptance": acceptance_of}
    names = sorted((name, kind) for kind in kinds if kind in rows for name in rows[kind].dropna().unique())
    own = {key: parameter.symbol for name, kind in names for key, parameter in kinds[kind](name).parameters.items()}
    return {key: symbol for key, symbol in own.items() if key not in PARAMETERS}


def label_method(method: Mapping[str, object]) -> str:
    """Write the label of a method, a row of a table or a dict from `MethodSpec.to_dict`."""
    # The dict has key `name` instead of `method`.
    method = method if "method" in method else method_columns(method)
    return f"{label_family(method)} {describe_parameters(method)}".strip()


def label_families(table: pd.DataFrame) -> pd.Series:
    """Return `label_family` of each row, with the table's index."""
    return pd.Series([label_family(row) for _, row in table.iterrows()], table.index, dtype=object)


def label_rows(table: pd.DataFrame) -> pd.Series:
    """Return `label_method` of each row, with the table's index."""
    return pd.Series([label_method(row) for _, row in table.iterrows()], table.index, dtype=object)


def _base_of(method: Mapping[str, object]) -> tuple[str, Mapping[str, object]]:
    """Return the name with which a method's label begins, and the values that the label need not state."""
    base = preset_of(str(method["method"]))
    # The paper's formula is for sampled drafts, so that these drafts mean the paper's LANTERN, not its code.
    if base == "lantern" and method.get("drafts") == "sampled":
        base = _CHAIN
    usual: dict[str, object] = {"acceptance": "exact", **_USUAL}
    if method.get("drafts") == "sjd":
        usual |= _USUAL_SJD
    if row := _row_of(base):
        usual |= row.parts
    # Without a usual tree, every tree is told.
    if base in OF_ANY_SIZE:
        del usual["tree"]
    return base, usual


def _is_told(method: Mapping[str, object], name: str, usual: Mapping[str, object]) -> bool:
    return name in method and not pd.isna(method[name]) and method[name] != usual.get(name)
