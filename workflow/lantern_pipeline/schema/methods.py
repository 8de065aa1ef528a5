"""Pydantic models that check the entries of config key `methods`.

Their fields are the parts and parameters of methods, with the bounds of Lantern's table of parameters. Each may have
one value or a list of values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from lantern.methods import MethodSpec
from lantern.parameters import PARAMETERS, Parameter
from lantern.registry import ACCEPTANCE, DRAFTS, NEIGHBOURS, PRESETS, RESIDUALS
from lantern_pipeline.schema.key_types import Integer, Name, Number, OneOrList, Section


def _parameter_type(parameter: Parameter) -> object:
    if parameter.choices:
        return Literal[parameter.choices]
    # Infinity stands for no bound.
    bounds = []
    if isfinite(parameter.low):
        bounds.append(Field(gt=parameter.low) if parameter.is_open else Field(ge=parameter.low))
    if isfinite(parameter.high):
        bounds.append(Field(le=parameter.high))
    return Annotated[Integer if parameter.is_integer else Number, *bounds]


_Temperature = Annotated[Number, Field(ge=0, le=100)]


class _OpenSection(Section):
    """A section that also accepts unknown keys, because a custom class may have any parameters."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, OneOrList[Any]]  # pydantic checks unknown keys with this type


@cache  # made at the first check, since installed packages add presets and parameters
def _models() -> tuple[type[Section], type[Section]]:
    rows = (*DRAFTS.values(), *ACCEPTANCE.values())
    added = {name: row.parameters[name] for row in rows for name in row.parameters if name not in PARAMETERS}
    types: dict[str, Any] = {
        "preset": OneOrList[Literal[tuple(PRESETS)]],
        "tree": OneOrList[str],
        "drafts": OneOrList[str],
        "acceptance": OneOrList[str],
        "residual": OneOrList[Literal[tuple(RESIDUALS)]],
        "neighbours": OneOrList[Literal[NEIGHBOURS]],
        **{name: OneOrList[_parameter_type(parameter)] for name, parameter in {**PARAMETERS, **added}.items()},
        "name": Name,
        "temperatures": Annotated[list[_Temperature], Field(min_length=1)],
    }
    keys: dict[str, Any] = {key: (kind, None) for key, kind in types.items()}
    return (
        create_model("MethodEntry", __base__=Section, __module__=__name__, **keys),
        create_model("CustomMethodEntry", __base__=_OpenSection, __module__=__name__, **keys),
    )


def entry_model(entry: dict[str, Any]) -> type[Section]:
    """Return the model of an entry, which is open if the entry or its preset names a custom class."""
    presets = entry["preset"] if isinstance(entry.get("preset"), list) else [entry.get("preset")]
    parts = [PRESETS[name].parts for name in presets if isinstance(name, str) and name in PRESETS]
    closed, open_for_more = _models()
    return open_for_more if any(own_classes([entry, *parts])) else closed


def check_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the checked values of an entry of config key `methods`. A wrong one raises pydantic's ValidationError."""
    checked = entry_model(entry).model_validate(entry)
    # In the given order, which decides the order of the methods if keys have lists of values. Keys that are not given
    # are left out, so that the preset decides them.
    return {key: getattr(checked, key) for key in entry}


def own_classes(values: object) -> Iterator[tuple[str, object]]:
    """Yield (key, value) of each "module:Class" that JSON values, such as a config, name as a part of a method."""
    rest: list[tuple[str, object]] = [("", values)]
    while rest:
        key, value = rest.pop()
        if isinstance(value, Mapping):
            rest += value.items()
        elif isinstance(value, list):
            rest += ((key, inner) for inner in value)  # a key may have a list of values
        elif key in ("drafts", "acceptance") and ":" in str(value):
            yield key, value


@dataclass(frozen=True)
class AblationPoint:
    """Method with sampling settings and a draft model, which is one row of the ablation's table.

    Attributes:
        sampling: config section `sampling` with the values that the point changes, such as top_k. No temperature.
        drafter_steps: number of training steps of the draft model. None for that of the run, or if there is none.
    """

    spec: MethodSpec
    temperature: float
    sampling: dict[str, Any]
    drafter_steps: int | None = None
