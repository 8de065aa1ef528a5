"""Words of the command line: methods with their parameters, options of `lantern audit`, and output files.

A *command* is a key of OPTIONS. All functions raise a ValueError that says what to change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import yaml

import lantern
from lantern.api import Model
from lantern.methods import MethodSpec
from lantern.parameters import PARAMETERS
from lantern.sampling import SamplingConfig
from lantern_pipeline.schema.key_types import to_integer

Parts = dict[str, Any]  # parts and parameters of a method, as `make_method` takes them

# Command -> argument that is no parameter of a method -> option of the command that sets it.
OPTIONS = {
    "sample": {"size": "--size", "prompts": "the first argument", "model": "--model"},
    "bench": {
        "temperature": "--temperature",
        "batch_size": "--batch",
        "prompts": "--prompts",
        "device": "--device",
        "dtype": "--dtype",
        "model": "the first argument",
    },
    "audit": {"num": "--num", "seed": "--seed", "world": "--world"},
    "predict": {"model": "--model"},
}
# Fields of `MethodSpec` that the words of a method may set.
_PARTS = ("tree", "tree_shape", "drafts", "acceptance", "residual", "neighbours")
# Names that a function with `**parts` would take for its own arguments. `MethodSpec` checks all other names.
_TAKEN = {
    name
    for names in (
        *(
            signature(call).parameters
            for call in (Model.generate, lantern.audit, lantern.load, lantern.from_transformers)
        ),
        (field.name for kind in (SamplingConfig, MethodSpec) for field in fields(kind)),
        *OPTIONS.values(),
        ("is_exact",),  # a key of `MethodSpec.to_dict` that is no field
    )
    for name in names
} - {*_PARTS, *PARAMETERS}


def read_method(text: str, command: str) -> tuple[str, Parts]:
    """Read text such as "lantern k=20 delta=0.1": the name of a preset, and parameters that replace the preset's."""
    if not text.strip():
        raise ValueError("a method must be a preset and its parameters, as in 'lantern k=20 delta=0.1', got nothing")
    preset, *words = text.split()
    if strange := [word for word in words if "=" not in word]:
        raise ValueError(
            f"parameters of a method must be name=value, as in 'lantern k=20 delta=0.1', got {strange[0]!r} for "
            f"{preset}; {'separate methods by commas' if command == 'bench' else 'repeat --method for another method'}"
        )
    parts = read_values(words)
    check_parts(parts, preset, command)
    return preset, parts


def check_parts(parts: Iterable[str], method: str, command: str) -> None:
    """Check that no word of a method is an argument of something else, such as the temperature."""
    for name in parts:
        if name in _TAKEN:
            option = OPTIONS[command].get(name)
            remedy = f"set it with {option}" if option else f"lantern {command} has no option for it, so leave it out"
            raise ValueError(f"a method takes its own parameters only, got {name} for {method}; {remedy}")


def read_values(words: Sequence[str]) -> Parts:
    """Convert words such as "k=20" to a dict: {"k": 20}."""
    values: Parts = {}
    for word in words:
        name, _, text = word.partition("=")
        if not name or not text:
            raise ValueError(f"parameters must be name=value, as in k=20, got {word!r}; give both")
        if name in values:
            raise ValueError(f"{name} must be given once, got {word} after {name}={values[name]}; leave one out")
        values[name] = _read_value(name, text)
    return values


def _read_value(name: str, text: str) -> Any:
    # YAML 1.1 reads some of Python's numbers as text, such as 1e-1.
    for number in (int, float):
        try:
            return to_integer(number(text))  # 1e1 gives the integer 10
        except ValueError:
            pass
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise ValueError(f"{name} must be a number, a word or a list, got {text!r}, which is no YAML") from error


def read_options(words: Sequence[str]) -> Parts:
    """Read options such as "--k=20", or "--k" followed by "20", and return name without "--" -> value."""
    pairs: list[str] = []
    rest = list(words)
    while rest:
        option = rest.pop(0)
        if not option.startswith("--") or ("=" not in option and not rest):
            raise ValueError(f"parts of a method must be options with a value, as in --k 4, got {option!r}; add it")
        # An option has hyphens where the parameter has underscores.
        name, is_joined, value = option[2:].partition("=")
        pairs.append(f"{name.replace('-', '_')}={value if is_joined else rest.pop(0)}")
    return read_values(pairs)


def check_output_file(path: Path, suffixes: Sequence[str]) -> None:
    """Check the name and the folder of --output before hours of work.

    Missing folders are no error, since `atomic_path` creates them.
    """
    if path.is_dir() or path.suffix.lower() not in suffixes:
        what = "the folder " if path.is_dir() else ""
        raise ValueError(f"--output must be a file name that ends in {' or '.join(suffixes)}, got {what}{path}")
    check_output_folder(path.parent)


def check_output_folder(folder: Path) -> None:
    """Check that files can be written into a folder, which may be missing."""
    # Whether a missing folder can be made is decided by the nearest one above it that exists.
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise ValueError(f"--output must be in a folder, got {folder}, where {nearest} is a file; name another place")
    if not os.access(nearest, os.W_OK | os.X_OK):  # X_OK: the right to enter a folder
        raise ValueError(f"--output must be in a folder that you may write to, got {nearest}; name another place")
