"""Import of classes and functions by their path, "module:name", for parts that users write.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

CLASS_FOLDERS = "LANTERN_CLASSES"  # environment variable: folders of custom classes, separated as in PATH


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
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a custom module may raise any error
        kind = "" if isinstance(error, ModuleNotFoundError | AttributeError) else f"{type(error).__name__}: "
        raise ValueError(f"{path} must name {wanted}: {kind}{error}") from error
