"""Checks of a run's configuration: whatever is wrong becomes one sentence that names the key, the value and the bound.

Imported while Snakemake reads the workflow, once per job: no torch, no pandas here.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match

from lantern_pipeline.config.cross_checks import check_between_keys, closest, show
from lantern_pipeline.config.methods import entry_properties

SCHEMA_PATH = Path(__file__).with_name("schema.yaml")

# Names of earlier versions -> what to write today: sections, keys of a section, values of a key.
_GONE = "gone, since it followed public code where that is not exact; remove it"
RENAMED_KEYS = {
    ("law",): "now total_variation; rename it",
    ("recogniser",): "now attribute_classifier; rename it",
    ("data", "max_words"): "now text.max_tokens; move it there",
}
RENAMED_VALUES = {
    ("fidelity", "recogniser"): "now attribute_classifier; rename it",
    ("neighbours", "cosine"): "now l2_normalised; rename it",
    ("acceptance", "none"): "now exact; rename it",
    ("acceptance", "budget"): "now bounded; rename it",
    ("publish", "readme"): "now results; rename it",
}
# Of a method's entry: key, or key and value.
RENAMED_PARTS = {
    ("relaxation", "none"): "now acceptance: exact; rename it",
    ("relaxation", "budget"): "now acceptance: bounded; rename it",
    ("relaxation", "annealed"): "now acceptance: weighted with fall: 0.7; rename it",
    ("relaxation", "constant"): "now acceptance: weighted with fall: 0; rename it",
    ("relaxation", "reversed"): "now acceptance: weighted with fall: -0.7; rename it",
    ("relaxation", "threshold"): "now drafts: sjd_pp; rename it",
    ("relaxation", "longest_chain"): "now drafts: path_relax; rename it",
    ("relaxation", "parallel_lines"): "now drafts: zipar; rename it",
    ("relaxation", "public_tree"): _GONE,
    ("relaxation", "public_labels"): _GONE,
    ("relaxation", "public_lines"): _GONE,
    "relaxation": "now acceptance; rename it",
    ("initial", "random"): "what every method does now; remove it",
    "initial": _GONE,
}

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
    "multipleOf": "a multiple of",
}


def load_yaml(path: Path | str) -> dict[str, Any]:
    """Reads a YAML file that holds one mapping; a ValueError names the file and the line of what is wrong."""
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


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses a key that stands twice in one mapping; YAML's loaders drop the first without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in lines:
                problem = (
                    f"the key {key.value} stands twice in one section, first in line {lines[key.value]}; remove one"
                )
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def main() -> None:
    """Says what is wrong with YAML files: Snakemake, which reads them first, names neither file nor line."""
    try:
        check_config_files(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(str(error))


def check_config_files(paths: Iterable[Path | str]) -> None:
    """Reads the files behind a configuration once more, strictly: once merged, a key given twice cannot be seen."""
    for path in paths:
        if Path(path).suffix != ".json":
            load_yaml(path)


def validate_config(config: dict[str, Any]) -> None:
    """Checks a run's whole configuration; whole numbers written 96.0 become 96 in it."""
    check_keys(config)
    config["variants"] = config["variants"] or {}
    check_between_keys(config)


def check_keys(config: dict[str, Any]) -> None:
    """Checks keys, types and bounds by the schema; whole numbers written 96.0 or 1.0e+3 become integers in `config`."""
    for path, value in _walk(config, ()):
        _check_renamed(path, value)
        names = value if isinstance(value, dict) else ()
        if odd := [name for name in names if not isinstance(name, str)]:
            where = _dotted(path) or "at the top"
            raise ValueError(f"config key {where}: the name {odd[0]} must be text; put it into quotes")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"config key {_dotted(path)} must be a finite number, got {value}")
    schema = load_yaml(SCHEMA_PATH)
    _add_methods(schema, config)
    _require_all_keys(schema)
    errors = list(Draft202012Validator(schema).iter_errors(config))
    if errors:
        # A misspelt key also makes its namesake missing: speak about the misspelling.
        unknown = [error for error in errors if error.validator == "additionalProperties"]
        raise ValueError(_sentence(best_match(unknown or errors)))
    _make_whole(config, schema)


def _add_methods(schema: dict[str, Any], config: dict[str, Any]) -> None:
    """Puts the keys of a method's entry, wherever entries stand, into the schema."""
    grids = (config.get("ablations") or {}).get("grids") or {}
    lists = [config.get("methods"), *((grid or {}).get("methods") for grid in grids.values())]
    entries = [entry for entries in lists for entry in entries or () if isinstance(entry, dict)]
    sections, entry = schema["properties"], {"type": "object", "additionalProperties": False, "optional": "all"}
    grid = sections["ablations"]["properties"]["grids"]["additionalProperties"]
    for methods in (sections["methods"], grid["properties"]["methods"]):
        methods["items"] = {**entry, "properties": entry_properties(entries)}


def _check_renamed(path: tuple, value: Any) -> None:
    if path in RENAMED_KEYS:
        raise ValueError(f"config key {_dotted(path)} is {RENAMED_KEYS[path]}")
    # A value may stand in a list of values to try: methods[2].relaxation[0].
    key = next((part for part in reversed(path) if isinstance(part, str)), "")
    if "methods" in path and key in RENAMED_PARTS and not isinstance(value, list | dict):
        now = RENAMED_PARTS.get((key, value), RENAMED_PARTS[key])
        raise ValueError(f"config key {_dotted(path)}: {key} {value} is {now}")
    if isinstance(value, str) and (key, value) in RENAMED_VALUES:
        raise ValueError(f"config key {_dotted(path)}: {value} is {RENAMED_VALUES[key, value]}")


def _require_all_keys(schema: Any) -> None:
    """Makes every key of a section required but those that it lists as `optional` ("all" for all)."""
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _require_all_keys(inner)
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        optional = schema.get("optional", ())
        schema["required"] = [key for key in schema["properties"] if optional != "all" and key not in optional]


def _make_whole(value: Any, schema: Any) -> Any:
    """Replaces floats by integers where the schema wants whole numbers, in sections and lists themselves."""
    if isinstance(value, dict):
        for key, inner in value.items():
            value[key] = _make_whole(
                inner, schema.get("properties", {}).get(key) or schema.get("additionalProperties", {})
            )
    elif isinstance(value, list):
        value[:] = [_make_whole(inner, schema.get("items", {})) for inner in value]
    elif isinstance(value, float) and "integer" in schema.get("type", ()):
        return int(value)
    return value


def has_gpu() -> bool:
    """Tells, without torch, whether this machine shows a GPU: NVIDIA's, or what WSL and ROCm show in its place."""
    return any(file for name in ("nvidia[0-9]*", "dxg", "kfd") for file in Path("/dev").glob(name))


def uses_gpu(device: str, is_remote: bool) -> bool:
    """Tell whether rules ask the scheduler for a GPU.

    Args:
        device: config key `device`.
        is_remote: whether jobs run on other machines, such as a cluster's nodes. "auto" then asks for a GPU.
    """
    return device == "cuda" or (device == "auto" and (is_remote or has_gpu()))


def describe_folder(folder: str | None) -> str | None:
    """Hashes the names, sizes and dates of a folder's files, so that a change of the user's images is noticed."""
    if folder is None or not Path(folder).is_dir():
        return None  # one that should be there is missed before any job
    # A link to nothing is looked at itself: whoever reads the image says what is missing.
    stats = ((file, file.stat() if file.exists() else file.lstat()) for file in Path(folder).rglob("*"))
    files = sorted((file.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns) for file, stat in stats)
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]


def _sentence(error: ValidationError) -> str:
    """Turns a schema violation into one sentence."""
    key, value, rule = _dotted(error.absolute_path), show(error.instance), error.validator_value
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
            return f"config key {key} must be {wanted}, got {value}{_number_hint(error)}"
        case "enum":
            return f"config key {key} must be one of {', '.join(map(str, rule))}, got {value}"
        case "minItems" | "minProperties" | "minLength":
            return f"config key {key} must hold at least {rule} entries, got {len(error.instance)}"
        case "pattern":
            hint = error.schema.get("patternHint") or "only letters, digits, '_' and '-'"
            return f"config key {key} may hold {hint}, got {value}"
        case bound if bound in _BOUND_WORDS:
            return f"config key {key} must be {_BOUND_WORDS[bound]} {rule}, got {value}"
    return f"config key {key}: {error.message}"


def _number_hint(error: ValidationError) -> str:
    """YAML reads 1e-3 as text: say how to write it."""
    try:
        number = float(error.instance) if isinstance(error.instance, str) else math.nan
    except ValueError:
        return ""
    if "number" in error.validator_value and math.isfinite(number):
        return f"; write {number!r} without quotes"
    if "integer" in error.validator_value and number.is_integer():
        return f"; write {int(number)} without quotes"
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


if __name__ == "__main__":
    main()
