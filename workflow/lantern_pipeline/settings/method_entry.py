"""The keys of an entry of config key `methods`, from the table of methods.

Read while Snakemake builds the workflow: no torch here.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from lantern.methods import NEIGHBOURS, PARAMETERS, PRESETS, RESIDUALS, Parameter
from lantern_pipeline.settings.key_types import Integer, Name, Number, OneOrList, Section


def _parameter_type(parameter: Parameter) -> object:
    """Return the type of a method's parameter, with its bounds."""
    if parameter.choices:
        return Literal[parameter.choices]
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
    """A section whose unknown keys hold a value or a list of values."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, OneOrList[Any]]


def _make_model(name: str, base: type[Section], words: str) -> type[Section]:
    """Return a model of entries, which has the keys of the table of methods."""
    keys: dict[str, Any] = {key: (kind, None) for key, kind in _KEYS.items()}
    return create_model(name, __base__=base, __module__=__name__, __doc__=words, **keys)


MethodEntry = _make_model(
    "MethodEntry",
    Section,
    "An entry of `methods`: a preset or a name, its parts and parameters; each a value or a list.",
)
CustomMethodEntry = _make_model(
    "CustomMethodEntry",
    _OpenSection,
    "An entry that names a user's own class, whose parameters only that class knows.",
)


def entry_model(entry: dict[str, Any]) -> type[Section]:
    """Return the model of an entry."""
    names_class = ":" in f"{entry.get('acceptance')}{entry.get('drafts')}"
    return CustomMethodEntry if names_class else MethodEntry


def check_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Check an entry by the table of methods.

    Returns:
        The entry with its keys in the order given, which is the order of the methods that it expands to.
    """
    checked = entry_model(entry).model_validate(entry)
    return {key: getattr(checked, key) for key in entry}
