"""Methods restored from rows of result tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import pandas as pd

from lantern.methods import MethodSpec
from lantern.registry import acceptance_of, drafts_of
from lantern.tree_shapes import is_dynamic

_PARTS = ("tree", "drafts", "acceptance", "residual", "neighbours", "method_id")


def method_of(row: Mapping[str, Any]) -> MethodSpec:
    """Return the method of a row, or of a `MethodSpec.to_dict`, without the paths of its tree."""
    parts = _filled(row, _PARTS)
    parameters = {**drafts_of(parts.get("drafts")).parameters, **acceptance_of(parts["acceptance"]).parameters}
    values = _filled(row, parameters)
    # A column of integers with an empty cell holds floats.
    parts |= {key: int(value) if parameters[key].is_integer else value for key, value in values.items()}
    return _make_method(row["method"] if "method" in row else row["name"], tuple(parts.items()))


def _filled(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key in keys if not pd.isna(value := row.get(key))}  # an empty cell is nan


@lru_cache(maxsize=1024)  # tables have several rows of a method
def _make_method(name: str, parts: tuple[tuple[str, Any], ...]) -> MethodSpec:
    known = dict(parts)
    # Neither rows nor `to_dict` have the paths of a static tree, which only the config may know.
    shape = None if is_dynamic(known.get("tree") or "") else ()
    return MethodSpec.of(name, tree_shape=shape, **known)
