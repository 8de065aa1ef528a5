"""Methods restored from rows of result tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import pandas as pd

from lantern.methods import MethodSpec
from lantern.registry import acceptance_of, drafts_of

_PARTS = ("tree", "drafts", "acceptance", "residual", "neighbours", "method_id")


def method_of(row: Mapping[str, Any]) -> MethodSpec:
    """Return the method of a row, without the paths of its tree."""
    parts = _filled(row, _PARTS)
    parameters = {**drafts_of(parts.get("drafts")).parameters, **acceptance_of(parts["acceptance"]).parameters}
    values = _filled(row, parameters)
    # A column of integers with an empty cell holds floats.
    parts |= {key: int(value) if parameters[key].is_integer else value for key, value in values.items()}
    return _make_method(name=row["method"], **parts)


def _filled(row: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key in keys if not pd.isna(value := row.get(key))}  # an empty cell is nan


@lru_cache(maxsize=1024)  # tables have several rows of a method
def _make_method(**values: Any) -> MethodSpec:
    return MethodSpec.from_dict(values)
