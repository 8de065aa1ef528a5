"""Classes of users that a config names as parts of methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


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
