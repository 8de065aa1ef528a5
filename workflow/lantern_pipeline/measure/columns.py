"""Names of table columns. The module imports nothing, since `make gpu-check` runs it on machines with few packages."""


def with_ends(*names: str) -> tuple[str, ...]:
    """Return name, name_low and name_high for each name: columns of a value and the ends of its interval."""
    return tuple(name + end for name in names for end in ("", "_low", "_high"))
