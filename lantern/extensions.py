"""What users and installed packages add to Lantern: rows of tables, and classes and functions named by their path.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from typing_extensions import override

log = logging.getLogger(__name__)
GROUP = "lantern.methods"
PEERS = "lantern_methods"  # in the same wheel. In a clone that is not installed, no entry point would name it.

CLASS_FOLDERS = "LANTERN_CLASSES"  # environment variable: folders of custom classes, separated as in PATH


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
    """Import `lantern_methods` and the modules that packages name. One that fails is left out, with a warning."""
    import_module(PEERS)
    # By name, so that the order of methods does not depend on that of folders on Python's path.
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # a package's module may raise any error
            log.warning(
                "methods of the package %s are left out, since %s fails: %s: %s; mend or uninstall it",
                *(entry.dist.name if entry.dist else entry.name, entry.value, type(error).__name__, error),
            )


def load_class(path: str) -> type:
    """Import a class.

    Args:
        path: "module:Class". The module is on Python's path, or in a folder that the environment variable
            LANTERN_CLASSES lists.

    Raises:
        ValueError: it cannot be imported, or is no class.
    """
    wanted = "a class as module:Class"
    found = import_object(path, f"{wanted}, of a file next to the overlay or an installed package")
    if not isinstance(found, type):
        raise ValueError(f"{path} must name {wanted}, got {type(found).__name__}")
    return found


def import_object(path: str, wanted: str = "a class or a function as module:name") -> Any:
    """Import a class or a function, as `load_class` does.

    Args:
        wanted: description of what the path must name, for the error message.
    """
    module, _, name = path.partition(":")
    # The folders are added at the end of the path, so that none of their files hides a library. `filter` drops the
    # empty text that `split` makes of an unset variable.
    folders = filter(None, os.environ.get(CLASS_FOLDERS, "").split(os.pathsep))
    sys.path += [folder for folder in folders if folder not in sys.path]
    try:
        return getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # a custom module may raise any error
        kind = "" if isinstance(error, ModuleNotFoundError | AttributeError) else f"{type(error).__name__}: "
        raise ValueError(f"{path} must name {wanted}: {kind}{error}") from error
