"""Types of config keys that several sections use, such as a share or a list of unique names, and words of errors."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

# pydantic adds these tags, which show how a value was read, to the location of an error. They are no part of the key.
ONE_VALUE, LIST_OF_VALUES = "<value>", "<list>"


class Section(BaseModel):
    """A section of the config. Every key without a default must be given, and unknown keys are errors."""

    # defer_build, because only RunConfig and method entries need a validator, which also checks the sections inside.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    def keys_of(self, part: type[Section]) -> dict[str, object]:
        """Return the keys that this section inherits from one base class, as a parameter of a rule."""
        # A dict, because Snakemake would not notice a change inside a pydantic model.
        return self.model_dump(include=set(part.model_fields))


def to_integer(value: object) -> object:
    """Return a float without a fraction as an integer, and any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _keep_integer(value: object, check: ValidatorFunctionWrapHandler) -> object:
    # pydantic returns 3.0 for the integer 3. Snakemake would take that for a change and run the job again.
    check(value)
    return value


def broken_rule(words: str, key: str | None = None) -> PydanticCustomError:
    """Return the pydantic error to raise if the values of a config section break a rule that is no type or bound.

    Args:
        words: the message without the name of the key, with which it begins.
        key: the key, relative to the section. None if the message begins with the name of the section.
    """
    return PydanticCustomError("rule", "{words}", {"words": words, "key": key})


def _check_unique(values: list[object]) -> list[object]:
    if any(value in values[:position] for position, value in enumerate(values)):
        raise broken_rule(f"must hold unique values, got {show(values)}")
    return values


def _check_names(entries: dict[str, Any]) -> dict[str, Any]:
    # Files are named after the keys, and some disks ignore case (macOS, Windows).
    seen: dict[str, str] = {}
    for name in (name for name, entry in entries.items() if entry is not None):
        if (other := seen.setdefault(name.casefold(), name)) != name:
            raise broken_rule(f"must hold names that differ in more than case, got {other} and {name}; rename one")
    return entries


def _check_sides(value: int | list[int]) -> int | list[int]:
    if isinstance(value, list) and len(value) != 2:
        raise broken_rule(f"must be an integer for a square, or [height, width], got {show(value)}")
    if isinstance(value, list) and value[0] == value[1]:
        raise broken_rule(f"must be an integer for a square, got {show(value)}; write {value[0]}")
    return value


_Value = TypeVar("_Value")
# Type of a key that holds one value or a list of values to try.
OneOrList = Annotated[
    Annotated[_Value, Tag(ONE_VALUE)] | Annotated[list[_Value], Field(min_length=1), Tag(LIST_OF_VALUES)],
    Discriminator(lambda value: LIST_OF_VALUES if isinstance(value, list) else ONE_VALUE),
]

# Type of a key that holds the side of a square, or [height, width]: a list always means different sides.
Sides = Annotated[OneOrList[_Value], AfterValidator(_check_sides)]
Integer = Annotated[int, BeforeValidator(to_integer)]  # accepts 96.0, too
Number = Annotated[float, WrapValidator(_keep_integer)]
Count = Annotated[Integer, Field(ge=1)]
Seed = Annotated[Integer, Field(ge=0, le=2**32 - 1)]
Share = Annotated[Number, Field(ge=0, le=1)]
LearningRate = Annotated[Number, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]*$")]
DIFFERENT_NAMES = AfterValidator(_check_names)
# Type of a section whose keys are names that the user chooses.
Named = Annotated[dict[Name, _Value], DIFFERENT_NAMES]
# To be unpacked into `Annotated`.
Unique = [AfterValidator(_check_unique), Field(min_length=1, json_schema_extra={"uniqueItems": True})]
Seeds = Annotated[list[Seed], *Unique]
Names = Annotated[list[str], Field(min_length=1)]


def closest(word: str, known: list[str]) -> str:
    """Return advice on an unknown name: the most similar known name, or all known names if none is similar."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def show(value: object) -> str:
    """Return a value as text for an error message, shortened to 60 characters."""
    text = repr(value) if isinstance(value, str) else "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
