"""Names of the columns of tables. This module imports nothing: `make gpu-check` uses it without pydantic."""


def with_ends(*names: str) -> tuple[str, ...]:
    """Return, for each name, the columns of a value and its interval: name, name_low, name_high."""
    return tuple(name + end for name in names for end in ("", "_low", "_high"))
