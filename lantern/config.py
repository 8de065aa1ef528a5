"""Checks of a run's configuration: whatever is wrong becomes one sentence that names the key, the value and the bound.

Imported while Snakemake reads the workflow, once per job: no torch, no pandas here.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

SCHEMA_PATH = Path(__file__).resolve().parent.parent / "workflow" / "schemas" / "config.schema.yaml"

_TYPE_NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a section of keys",
    "null": "empty",
}
_BOUND_WORDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "greater than",
    "exclusiveMaximum": "less than",
}


def load_yaml(path: Path | str) -> dict[str, Any]:
    """Reads a YAML file that holds one mapping.

    Raises:
        ValueError: the file is not YAML or holds something else than keys; names the file and the line.
    """
    try:
        value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{where}: not valid YAML ({getattr(error, 'problem', error)})") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold keys and values, got {_show(value)}")
    return value


def validate_config(config: dict[str, Any], schema: dict[str, Any] | None = None) -> None:
    """Checks a whole configuration: keys, types and bounds by the schema, then the rules between keys.

    Args:
        config: the merged configuration of a run.
        schema: JSON schema; by default the one in `workflow/schemas/`.

    Raises:
        ValueError: one sentence about the first thing that is wrong.
    """
    for path, value in _walk(config, ()):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"config key {_dotted(path)} must be a finite number, got {value}")
    errors = list(Draft202012Validator(schema or load_yaml(SCHEMA_PATH)).iter_errors(config))
    if errors:
        # A misspelt key also makes its namesake missing: speak about the misspelling.
        unknown = [error for error in errors if error.validator == "additionalProperties"]
        raise ValueError(_sentence(best_match(unknown or errors)))
    if schema is None:
        _check_between_keys(config)


def closest(word: str, known: list[str]) -> str:
    """Returns the part of a sentence that helps with a misspelt word: the nearest known one, or all of them."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def _check_between_keys(config: dict[str, Any]) -> None:
    """Rules that need two keys or the table of methods."""
    _check_neighbours(config)
    _check_methods(config)


def _check_neighbours(config: dict[str, Any]) -> None:
    codebook_size, columns = config["tokenizer"]["codebook_size"], config["codebook"]["num_neighbours"]
    if columns >= codebook_size:
        raise ValueError(
            f"config key codebook.num_neighbours must be less than tokenizer.codebook_size = {codebook_size}, "
            f"got {columns}"
        )


def _check_methods(config: dict[str, Any]) -> None:
    """Expands the methods, which checks each of them, and compares their k with the table of nearest codes."""
    from lantern.methods import expand_methods

    columns = config["codebook"]["num_neighbours"]
    for run in expand_methods(config):
        if run.spec.k is not None and run.spec.k > columns:
            raise ValueError(
                f"config key methods: k of {run.spec.method_id} must be at most codebook.num_neighbours = {columns}, "
                f"got {run.spec.k}"
            )


def _sentence(error: ValidationError) -> str:
    """Turns a schema violation into one sentence."""
    key, value, rule = _dotted(error.absolute_path), _show(error.instance), error.validator_value
    about = error.schema.get("description", "") if isinstance(error.schema, dict) else ""
    about = f" ({about})" if about else ""
    match error.validator:
        case "additionalProperties":
            known = list(error.schema.get("properties", {}))
            unknown = next(name for name in error.instance if name not in known)
            place = f"{key}.{unknown}" if key else str(unknown)
            return f"config key {place} is unknown; {closest(unknown, known)}"
        case "required":
            missing = next(name for name in rule if name not in error.instance)
            return f"config key {f'{key}.{missing}' if key else missing} is missing"
        case "type":
            wanted = " or ".join(_TYPE_NAMES[name] for name in ([rule] if isinstance(rule, str) else rule))
            return f"config key {key} must be {wanted}, got {value}{_number_hint(error)}{about}"
        case "enum":
            return f"config key {key} must be one of {', '.join(map(_show, rule))}, got {value}{about}"
        case "minItems" | "minProperties" | "minLength":
            return f"config key {key} must hold at least {rule} entries, got {len(error.instance)}{about}"
        case "pattern":
            return f"config key {key} may hold only letters, digits, '_' and '-', got {value}{about}"
        case bound if bound in _BOUND_WORDS:
            return f"config key {key} must be {_BOUND_WORDS[bound]} {rule}, got {value}{about}"
    return f"config key {key}: {error.message}{about}"


def _number_hint(error: ValidationError) -> str:
    """YAML reads 1e-3 as text: say how to write it."""
    wanted = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
    if isinstance(error.instance, str) and {"number", "integer"} & set(wanted):
        try:
            return f"; write {float(error.instance)!r} without quotes"
        except ValueError:
            return ""
    return ""


def _walk(value: Any, path: tuple) -> Iterator[tuple[tuple, Any]]:
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _walk(inner, (*path, key))


def _dotted(path: Any) -> str:
    """("methods", 2, "k") -> "methods[2].k"."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _show(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
