"""The parameters of methods.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

from lantern.extensions import Table
from lantern.whole_numbers import as_whole

ParameterValue = float | str  # an integer counts as a float
LARGEST = 1e30  # of numbers that are no integers; products of larger ones overflow float32


@dataclass(frozen=True)
class Parameter:
    """The meaning and the allowed values of a parameter, or of a function's argument: a number or a word.

    Attributes:
        symbol: short name in labels. Empty for an argument of a function.
        meaning: description, with the unit.
        is_open: True if `low` itself is not allowed.
        choices: allowed words. Empty for a number.
        remedy: end of the error message, which states what to do instead.
    """

    symbol: str
    meaning: str
    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False
    is_integer: bool = False
    choices: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def bound(self) -> str:
        """The allowed values of the parameter in words, for error messages."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        interval = ""
        if self.high < math.inf:
            interval = f"in {'(' if self.is_open else '['}{self.low:g}, {self.high:g}]"
        elif self.low > -math.inf:
            interval = f"{'>' if self.is_open else '>='} {self.low:g}"
        if self.is_integer:
            return f"an integer {interval}".strip()
        return interval or "a number"

    def check(self, name: str, value: object, owner: str) -> Any:
        """Return a value if it is allowed, a whole number as an int.

        Args:
            owner: name of the method or function that takes the parameter, for the error message.
        """
        if self._allows(value):
            return as_whole(value) if self.is_integer else value
        # Numbers above LARGEST are refused even without an upper bound, which `bound` does not state.
        is_large = not self.is_integer and isinstance(value, Real) and LARGEST < cast("float", value) < math.inf
        if is_large and self.high == math.inf:
            raise ValueError(f"{name} of {owner} must be at most {LARGEST:g}, got {value!r}; choose a smaller one")
        remedy = f"; {self.remedy}" if self.remedy else ""
        # A bound such as >= 1 would allow infinity.
        reason = ", which is not finite" if isinstance(value, float) and not math.isfinite(value) else ""
        raise ValueError(f"{name} of {owner} must be {self.bound}, got {value!r}{reason}{remedy}")

    def _allows(self, value: object) -> bool:
        if self.choices:
            return value in self.choices
        number = as_whole(value) if self.is_integer else value
        # In Python a bool is a number, too.
        if isinstance(number, bool) or not isinstance(number, Real) or (self.is_open and number == self.low):
            return False
        number = cast("float", number)
        return self.low <= number <= self.high and (self.is_integer or abs(number) <= LARGEST)


def check_sides(name: str, value: object) -> tuple[int, int]:
    """Return the (height, width) of an image from a user's value: a pair, or the side of a square."""
    sides = value if isinstance(value, tuple | list) else (value, value)
    whole = [side for side in map(as_whole, sides) if side is not None and side > 0]
    if len(sides) != 2 or len(whole) != 2:
        raise ValueError(f"{name} must be an integer >= 1, or a pair (height, width) of them, got {value!r}")
    return whole[0], whole[1]


USE_EXACT = "for exact decoding use acceptance exact"
# Columns of results. `lantern_methods` adds to them. Parameters that other packages declare are in their own rows only:
# whatever is installed, tables have the same columns.
PARAMETERS = Table(
    "a parameter",
    {
        "k": Parameter("k", "nearest codes of a draft", 1, is_integer=True, remedy=USE_EXACT),
        "delta": Parameter(
            "δ",
            "bound: probability mass, or bits of divergence",
            0,
            1,
            remedy="the multiplicative bound takes lambda_ instead",
        ),
        "lambda_": Parameter("λ", "bound: a factor", 1, remedy="1 is exact; the additive bound takes delta instead"),
    },
)


def parameters_named(*names: str) -> dict[str, Parameter]:
    """Return some of PARAMETERS, by name."""
    return {name: PARAMETERS[name] for name in names}
