"""Types of the config's keys, which the models of its sections share.

Read while Snakemake builds the workflow: no torch here.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

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

from lantern_pipeline.settings.wording import show

# Parts of an error's location that are no part of the key: whether a value was read as a list of values to try.
ONE_VALUE, LIST_OF_VALUES = "<value>", "<list>"


class Section(BaseModel):
    """A section of the config: it has every key that has no default here, and no unknown key."""

    # Only the whole config and a method's entry are validated, so the sections inside build no validators.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    def keys_of(self, part: type[Section]) -> dict[str, object]:
        """Return the values of the keys that a part of this section has, as parameters of a rule.

        Snakemake compares parameters as plain values: of a model it would see no change.
        """
        return self.model_dump(include=set(part.model_fields))


def to_integer(value: object) -> object:
    """Return a float without a fraction as an integer, and any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _keep_integer(value: object, check: ValidatorFunctionWrapHandler) -> object:
    """Return the value itself: a 3 stays an integer, since what a job is given may not change."""
    check(value)
    return value


def broken_rule(words: str, key: str | None = None) -> PydanticCustomError:
    """Return the error of a section that breaks a rule between its keys.

    Args:
        words: the sentence after the key.
        key: the key of the section that the sentence names; None for the section itself.
    """
    return PydanticCustomError("rule", "{words}", {"words": words, "key": key})


def _check_unique(values: list[object]) -> list[object]:
    """Return a list whose values are unique; any other is an error."""
    if any(value in values[:position] for position, value in enumerate(values)):
        raise broken_rule(f"must hold unique values, got {show(values)}")
    return values


_Value = TypeVar("_Value")
# Type of a key that holds one value or a list of values to try.
OneOrList = Annotated[
    Annotated[_Value, Tag(ONE_VALUE)] | Annotated[list[_Value], Field(min_length=1), Tag(LIST_OF_VALUES)],
    Discriminator(lambda value: LIST_OF_VALUES if isinstance(value, list) else ONE_VALUE),
]
Integer = Annotated[int, BeforeValidator(to_integer)]
Number = Annotated[float, WrapValidator(_keep_integer)]
Count = Annotated[Integer, Field(ge=1)]
Seed = Annotated[Integer, Field(ge=0, le=2**32 - 1)]
Share = Annotated[Number, Field(ge=0, le=1)]
LearningRate = Annotated[Number, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Unique = [AfterValidator(_check_unique), Field(min_length=1, json_schema_extra={"uniqueItems": True})]
Seeds = Annotated[list[Seed], *Unique]
Names = Annotated[list[str], Field(min_length=1)]
