"""The keys of an entry of config key `methods`, from the table of methods.

Read while Snakemake builds the workflow: no torch here.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from lantern.methods import NEIGHBOURS, PARAMETERS, PRESETS, RESIDUALS, Parameter
from lantern_pipeline.settings.key_types import Integer, Name, Number, Section, value_or_list


def _parameter_type(parameter: Parameter) -> Any:
    """Return the type of a method's parameter, with its bounds."""
    if parameter.choices:
        return Literal[parameter.choices]
    bounds = {"gt" if parameter.is_open else "ge": parameter.low, "le": parameter.high}
    finite = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
    return Annotated[Integer if parameter.is_integer else Number, Field(**finite)]


_Temperature = Annotated[Number, Field(ge=0, le=100)]
_KEYS = {
    "preset": value_or_list(Literal[tuple(PRESETS)]),
    "tree": value_or_list(str),
    "drafts": value_or_list(str),
    "acceptance": value_or_list(str),
    "residual": value_or_list(Literal[RESIDUALS]),
    "neighbours": value_or_list(Literal[NEIGHBOURS]),
    **{name: value_or_list(_parameter_type(parameter)) for name, parameter in PARAMETERS.items()},
    "name": Name,
    "temperatures": Annotated[list[_Temperature], Field(min_length=1)],
}
MethodEntry = create_model(
    "MethodEntry", __base__=Section, __module__=__name__, **{name: (kind, None) for name, kind in _KEYS.items()}
)
MethodEntry.__doc__ = "An entry of `methods`: a preset or a name, its parts and parameters; each a value or a list."


class CustomMethodEntry(MethodEntry):
    """An entry that names a user's own class, whose parameters only that class knows."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, value_or_list(Any)]


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
