"""Pydantic models that check the entries of config key `methods`.

Their fields are the parts and parameters of methods, with the bounds of Lantern's table of parameters. Each may have
one value or a list of values.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from lantern.import_paths import own_classes
from lantern.method_tables import NEIGHBOURS, PRESETS, RESIDUALS
from lantern.parameters import PARAMETERS, Parameter
from lantern_pipeline.settings.key_types import Integer, Name, Number, OneOrList, Section


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
_KEYS = {
    "preset": OneOrList[Literal[tuple(PRESETS)]],
    "tree": OneOrList[str],
    "drafts": OneOrList[str],
    "acceptance": OneOrList[str],
    "residual": OneOrList[Literal[RESIDUALS]],
    "neighbours": OneOrList[Literal[NEIGHBOURS]],
    **{name: OneOrList[_parameter_type(parameter)] for name, parameter in PARAMETERS.items()},
    "name": Name,
    "temperatures": Annotated[list[_Temperature], Field(min_length=1)],
}


class _OpenSection(Section):
    """A section that also accepts unknown keys, because a custom class may have any parameters."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, OneOrList[Any]]  # pydantic checks unknown keys with this type


def _make_model(name: str, base: type[Section], words: str) -> type[Section]:
    """Build a pydantic model of entries, with `words` as its docstring."""
    keys: dict[str, Any] = {key: (kind, None) for key, kind in _KEYS.items()}
    return create_model(name, __base__=base, __module__=__name__, __doc__=words, **keys)


MethodEntry = _make_model(
    "MethodEntry",
    Section,
    "An entry of `methods`: a preset or a name, parts and parameters. Each is a value or a list of values.",
)
CustomMethodEntry = _make_model(
    "CustomMethodEntry",
    _OpenSection,
    "An entry that names a custom class. Only that class knows its parameters.",
)


def entry_model(entry: dict[str, Any]) -> type[Section]:
    """Return `CustomMethodEntry` if an entry of config key `methods` names a custom class, else `MethodEntry`."""
    return CustomMethodEntry if any(own_classes(entry)) else MethodEntry


def check_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the checked values of an entry of config key `methods`. A wrong one raises pydantic's ValidationError."""
    checked = entry_model(entry).model_validate(entry)
    # In the given order, which decides the order of the methods if keys have lists of values. Keys that are not given
    # are left out, so that the preset decides them.
    return {key: getattr(checked, key) for key in entry}
