"""Checks of the configuration. An error is one sentence that names the key, the bound, the value and the remedy.

A *path* is the place of a value in the config: names and list positions that lead to it, outermost first. Every job
imports this module when it reads the workflow, so it imports neither torch nor pandas.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import override

from lantern_pipeline.plan.cross_checks import check_between_keys
from lantern_pipeline.plan.methods import Expansion
from lantern_pipeline.schema.key_types import LIST_OF_VALUES, ONE_VALUE, Section, closest, show, to_integer
from lantern_pipeline.schema.methods import entry_model
from lantern_pipeline.schema.run_config import RunConfig

# Type in a JSON schema -> type in words.
_TYPE_NAMES = {
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a section of keys",
    "null": "empty",
}
# pydantic's error type -> the bound in words, and the key of its value in the error's context.
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("greater than", "gt"),
    "less_than": ("less than", "lt"),
    "multiple_of": ("a multiple of", "multiple_of"),
}
# Words for a pattern without a patternHint of its own, see `key_types.Name`.
_PATTERN_HINT = "only letters, digits, '_' and '-'"
_KEY_OF_MAPPING = "[key]"  # pydantic ends the location of an error with this if the key itself is wrong


def load_yaml(path: Path | str) -> dict[str, Any]:
    """Read a YAML file of keys and values. Raise a ValueError that names the file and line if that fails."""
    try:
        value = _StrictLoader(Path(path).read_text(encoding="utf-8")).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{where}: not valid YAML ({getattr(error, 'problem', error)})") from error
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"{path} must be UTF-8, got the byte {byte:#x} at {error.start}; save it as UTF-8") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold keys and values, got {show(value)}")
    return value


# The C loader is missing if PyYAML was built without libyaml.
_SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_SafeLoader):
    """YAML loader that rejects a repeated key in a mapping. The standard loaders silently keep the last value."""

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in lines:
                problem = (
                    f"the key {key.value} occurs twice in one section, first in line {lines[key.value]}; remove one"
                )
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


# Numbers of YAML 1.2 that YAML 1.1 takes for text: 1e-3 (no point), 1.5e3 (no sign of the exponent), +.5 (no digit
# between sign and point).
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$|[-+]\.[0-9][0-9_]*$"),
    list("-+.0123456789"),  # the pattern is tried only on values that begin with one of these
)


def read_texts(value: object) -> object:
    """Return a value of `--config` with its numbers, switches and nulls."""
    # Snakemake reads a section on the command line as text: "{batch_size: 4}" becomes {"batch_size": "4"}.
    if isinstance(value, dict):
        return {key: read_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [read_texts(inner) for inner in value]
    if not isinstance(value, str):
        return value
    try:
        found = _StrictLoader(value).get_single_data()
    except yaml.YAMLError:
        return value
    return found if isinstance(found, int | float | None) else value  # True and False are integers


def main() -> None:
    """Check the YAML files named on the command line."""
    # Called before Snakemake, whose error about a broken config file names neither the file nor the line.
    try:
        check_config_files(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(str(error))


def check_config_files(paths: Iterable[Path | str]) -> None:
    """Check the syntax of config files. Raise a ValueError if one is not valid YAML or repeats a key."""
    # Snakemake's merged config no longer shows that a file repeats a key.
    for path in paths:
        if Path(path).suffix != ".json":
            load_yaml(path)


def validate_config(config: dict[str, object]) -> tuple[RunConfig, Expansion]:
    """Check the whole configuration of a run, and return it with its methods.

    Args:
        config: the merged config. It is changed in place: a float such as 96.0 becomes the integer 96 if the key is an
            integer.

    Raises:
        ValueError: a value is not allowed, or two keys contradict each other. The message is about the first error.
    """
    checked = check_keys(config)
    return checked, check_between_keys(checked)


def check_keys(config: dict[str, object]) -> RunConfig:
    """Check the keys of a config one by one, with the argument and the errors of `validate_config`."""
    for path, value in _walk(config, ()):
        names = value if isinstance(value, dict) else ()
        if odd := [name for name in names if not isinstance(name, str)]:
            where = _dotted(path) or "at the top"
            raise ValueError(f"config key {where}: the name {odd[0]} must be text; put it into quotes")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"config key {_dotted(path)} must be a finite number, got {value}")
    try:
        checked = RunConfig.model_validate(config)
    except ValidationError as error:
        problems = [(_key_path(problem), problem) for problem in error.errors(include_url=False)]
        # A misspelt key causes two errors, since the right key is missing: report the misspelling. If no key is
        # misspelt, report the error of the outermost key.
        path, first = min(problems, key=lambda found: (found[1]["type"] != "extra_forbidden", len(found[0])))
        raise ValueError(f"config key {_sentence(path, first)}") from None
    # Rules read the merged config, too, and Snakemake would take 96.0 in place of 96 for a change.
    _replace_integers(config, checked)
    return checked


def _replace_integers(value: Any, checked: Any) -> Any:
    """Replace floats in a config, such as 96.0, by the integers of the checked config, in place."""
    if isinstance(value, dict):
        inside = vars(checked) if isinstance(checked, Section) else checked
        for key in value:
            value[key] = _replace_integers(value[key], inside[key])
    elif isinstance(value, list):
        value[:] = map(_replace_integers, value, checked)
    elif isinstance(value, float):
        return checked
    return value


def has_gpu() -> bool:
    """Return whether this machine has a GPU, without importing torch."""
    # device files of NVIDIA, of WSL and of ROCm
    return any(file for name in ("nvidia[0-9]*", "dxg", "kfd") for file in Path("/dev").glob(name))


def _sentence(path: tuple[str | int, ...], problem: ErrorDetails) -> str:
    """Return the error message without "config key ", from pydantic's description of the error."""
    context = problem.get("ctx", {})
    key, value = _dotted(path), show(problem["input"])
    match problem["type"]:
        case "extra_forbidden":
            # The key of another section is in the wrong place rather than misspelt.
            places = _keys_named(str(path[-1]))
            if places:
                return f"{key} is unknown; did you mean {' or '.join(places)}?"
            return f"{key} is unknown; {closest(str(path[-1]), list(_schema_of(path[:-1])['properties']))}"
        case "missing":
            return f"{key} is missing"
        case "too_short" | "string_too_short":
            return f"{key} must hold at least {context['min_length']} entries, got {len(problem['input'])}"
        case "rule":
            return f"{key} {context['words']}"
        case bound if bound in _BOUNDS:
            words, name = _BOUNDS[bound]
            return f"{key} must be {words} {to_integer(context[name])}, got {value}"
    return f"{key} {_bound_of(problem, _schema_of(path))}, got {value}{_number_hint(problem)}"


def _bound_of(problem: ErrorDetails, schema: dict[str, Any]) -> str:
    """Return the allowed values of a key in words, from its JSON schema."""
    match problem["type"]:
        case "literal_error":
            return f"must be one of {', '.join('null' if name is None else str(name) for name in schema['enum'])}"
        case "string_pattern_mismatch":
            names = schema.get("propertyNames", schema)
            return f"may hold {names.get('patternHint', _PATTERN_HINT)}"
        case "string_too_long":
            return f"must hold at most {schema['maxLength']} characters"
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    return f"must be {' or '.join(_TYPE_NAMES[kind] for kind in kinds)}"


def _key_path(problem: ErrorDetails) -> tuple[str | int, ...]:
    path, context = problem["loc"], problem.get("ctx", {})
    if path[-1] == _KEY_OF_MAPPING:
        # The name of an entry is wrong, such as a prompt set. The error is about its section, so the last two parts,
        # (name, "[key]"), are removed.
        path = path[:-2]
    elif problem["type"] == "rule" and context["key"] is not None:
        path = (*path, context["key"])
    # pydantic adds a part for the form of a value, one or a list.
    return tuple(part for part in path if part not in (ONE_VALUE, LIST_OF_VALUES))


def _schema_of(path: tuple[str | int, ...]) -> dict[str, Any]:
    from lantern_pipeline.schema.editor_schema import json_schema

    schema = json_schema(RunConfig)
    for part in path:
        if isinstance(part, str):
            # the latter in a section whose keys are names that the user chooses
            schema = schema.get("properties", {}).get(part) or schema["additionalProperties"]
        else:
            schema = schema["items"]
            if schema["type"] == "object":  # an entry of methods, which editors do not check
                schema = json_schema(entry_model({}))
    return schema


def _keys_named(name: str) -> list[str]:
    """Return every config key with a given last part: "num_steps" gives "target.num_steps" and others."""
    from lantern_pipeline.schema.editor_schema import json_schema

    sections = json_schema(RunConfig)["properties"]
    return [f"{key}.{name}" for key, section in sections.items() if name in section.get("properties", {})]


def _number_hint(problem: ErrorDetails) -> str:
    """Return the advice "write 3 without quotes" if a number was given as text, else an empty text."""
    try:
        number = float(problem["input"]) if isinstance(problem["input"], str) else math.nan
    except ValueError:
        return ""
    if problem["type"] == "float_type" and math.isfinite(number):
        return f"; write {number!r} without quotes"
    if problem["type"] == "int_type" and number.is_integer():
        return f"; write {int(number)} without quotes"
    return ""


def _walk(value: object, path: tuple) -> Iterator[tuple[tuple, object]]:
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _walk(inner, (*path, key))


def _dotted(path: Iterable[str | int]) -> str:
    """Return a path as text: ("methods", 2, "k") becomes "methods[2].k"."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


if __name__ == "__main__":
    main()
