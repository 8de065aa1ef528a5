"""Names of table columns.

This module imports nothing else, because `make gpu-check` runs it on machines with few packages.
"""


def with_ends(*names: str) -> tuple[str, ...]:
    """Return three column names per given name, for a value and the ends of its interval: name, name_low, name_high."""
    return tuple(name + end for name in names for end in ("", "_low", "_high"))
