"""Tables that installed packages extend.

A package names a module in group "lantern.methods" of its entry points. As the module is imported, it calls
`lantern.method_tables.declare` for each of its methods and parts.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TypeVar

from typing_extensions import override

log = logging.getLogger(__name__)
GROUP = "lantern.methods"
Row = TypeVar("Row")


class Table(Mapping[str, Row]):
    """Rows by name. To list them, or to look up a name that Lantern lacks, first loads the installed packages."""

    def __init__(self, what: str, rows: Mapping[str, Row]) -> None:
        self._what = what
        self._rows = dict(rows)

    def declare(self, name: str, row: Row) -> None:
        """Add a row. A ValueError if the table has the name."""
        if name in self._rows:
            raise ValueError(f"{self._what} must have a name that is free, got {name}; choose another name")
        self._rows[name] = row

    @override
    def __getitem__(self, name: str) -> Row:
        if name not in self._rows:
            load_packages()
        return self._rows[name]

    @override
    def __iter__(self) -> Iterator[str]:
        load_packages()
        return iter(self._rows)

    @override
    def __len__(self) -> int:
        load_packages()
        return len(self._rows)


@cache  # `entry_points` reads files of every installed package
def load_packages() -> None:
    """Import the modules that installed packages name. One that fails is left out, with a warning."""
    # By name, so that the order of methods does not depend on that of folders on Python's path.
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # a package's module may raise any error
            log.warning(
                "methods of the package %s are left out, since %s fails: %s: %s; mend or uninstall it",
                *(entry.dist.name if entry.dist else entry.name, entry.value, type(error).__name__, error),
            )
