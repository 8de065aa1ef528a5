"""The JSON schema of config files, schema.yaml, with which editors check config.yaml and its overlays.

It follows from the pydantic models in `schema.run_config`, whose docstrings become its descriptions. `documents`
writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from typing_extensions import override

from lantern_pipeline.schema.run_config import RunConfig

SCHEMA_PATH = Path(__file__).with_name("schema.yaml")
_HEADER = """\
# Types and bounds of config.yaml's keys, for editors. Made from the models in schema/run_config.py, which check a
# run; after a change of them, run `PYTHONPATH=workflow python -m lantern_pipeline.schema.documents`.
"""
# If a validator runs before the type check of a value, pydantic writes its bounds with pydantic's names and not with
# those of JSON schema.
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
# Not in the schema: a file that overrides config.yaml sets only some keys of a section, and config.yaml has all
# defaults.
_LEFT_OUT = ("title", "required", "default")
_FIRST = ("type", "minimum", "exclusiveMinimum")
_LAST = ("description", "propertyNames", "additionalProperties", "items", "properties")


class _Dumper(yaml.SafeDumper):
    """YAML writer with the innermost mappings and all lists on one line, and without anchors for repeated values."""

    @override
    def ignore_aliases(self, data: object) -> bool:
        return True

    @override
    def represent_mapping(self, tag: str, mapping: dict, flow_style: bool | None = None) -> yaml.MappingNode:
        return super().represent_mapping(tag, mapping, not any(isinstance(value, dict) for value in mapping.values()))

    @override
    def represent_sequence(self, tag: str, sequence: list, flow_style: bool | None = None) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, True)


def schema_text() -> str:
    """Return what schema.yaml should hold. A test compares it with the file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **json_schema(RunConfig)}
    return _HEADER + yaml.dump(schema, Dumper=_Dumper, sort_keys=False, width=300, allow_unicode=True)


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a pydantic model, without references to other schemas and without required keys."""
    schema = model.model_json_schema()
    return _expand(schema, schema.pop("$defs", {}))  # `pop` also removes the definitions from the result


def _expand(schema: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """Simplify a JSON schema: replace references by the `sections` that they name, and merge alternatives of a key."""
    section = sections[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else {}
    found: dict[str, Any] = {}
    # Keys beside a reference, such as the description of a field, override those of the section.
    for key, value in {**section, **schema}.items():
        # Merged alternatives allow the types and have the bounds of all. This is safe: alternatives differ in type, and
        # bounds of one type do not apply to values of another.
        if key in ("anyOf", "oneOf"):
            alternatives = [_expand(inner, sections) for inner in value]
            for inner in alternatives:
                found |= inner
            found["type"] = [inner["type"] for inner in alternatives]
        elif key == "properties":
            found[key] = {name: _expand(inner, sections) for name, inner in value.items()}
        # a section whose keys are names that the user chooses; it has one pattern
        elif key == "patternProperties":
            for pattern, inner in value.items():
                found["propertyNames"] = {"pattern": pattern, **schema.get("propertyNames", {})}
                found["additionalProperties"] = _expand(inner, sections)
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            found[key] = _expand(value, sections)
        elif key not in (*_LEFT_OUT, "$ref", "propertyNames"):
            found[_BOUNDS.get(key, key)] = value
    return dict(sorted(found.items(), key=_rank))


def _rank(item: tuple[str, object]) -> int:
    """Return the sort key of an entry: type and lower bounds come first, description and contents last."""
    key = item[0]
    if key in _FIRST:
        return _FIRST.index(key)
    return len(_FIRST) + 1 + _LAST.index(key) if key in _LAST else len(_FIRST)
