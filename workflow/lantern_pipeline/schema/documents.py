"""What readers see of config keys: schema.yaml for editors, the page docs/config.md, and the comments of config.yaml.

All three are made from the models in `schema.run_config` and the values in config.yaml. After a change of either, run
`PYTHONPATH=workflow python -m lantern_pipeline.schema.documents` in the clone. In config.yaml, the values, their order
and lines that are only a comment are written by hand. The comment beside a key is the first sentence of its
description, with the allowed values if they fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lantern_pipeline.schema.editor_schema import SCHEMA_PATH, json_schema, schema_text
from lantern_pipeline.schema.run_config import RunConfig

ROOT = Path(__file__).resolve().parents[3]
LONGEST_COMMENT = 60
_HEADER = """\
# Config keys

Defaults are in [config.yaml](../config.yaml), and [config/README.md](../config/README.md) says how to change them. A
name of resources is an entry of `workflow/resources.yaml`, or of a section `resources` in your overlay.

<!-- Made by `python -m lantern_pipeline.schema.documents` from workflow/lantern_pipeline/schema/run_config.py. -->
"""
_TABLE = "\n| key | default | type | meaning |\n|---|---|---|---|\n"
_TYPES = {"boolean": "true or false", "string": "text", "array": "list", "object": "section"}
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "multipleOf": "multiple of",
}


def main() -> None:
    """Overwrite the three files."""
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")


def documents() -> dict[Path, str]:
    """Return what each of the three files should hold. A test compares."""
    schema, config = json_schema(RunConfig), ROOT / "config.yaml"
    text = config.read_text(encoding="utf-8")
    return {
        SCHEMA_PATH: schema_text(),
        ROOT / "docs" / "config.md": _page(yaml.safe_load(text), schema),
        config: _commented(text, schema),
    }


def _commented(text: str, schema: dict[str, Any]) -> str:
    """Return config.yaml with a comment beside each key that the schema describes."""
    lines = text.splitlines()
    for key, value, inner in _described(yaml.compose(text), schema):
        is_block = isinstance(value, yaml.CollectionNode) and not value.flow_style
        end = key.end_mark.column + 1 if is_block else value.end_mark.column  # after the colon, or after the value
        if is_block or key.end_mark.line == value.end_mark.line:  # else the value has several lines
            lines[key.end_mark.line] = f"{lines[key.end_mark.line][:end]}  # {_comment(inner)}"
    return "\n".join(lines) + "\n"


def _described(node: yaml.Node | None, schema: dict[str, Any]) -> Iterator[tuple[yaml.Node, yaml.Node, dict[str, Any]]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        inner = schema.get("properties", {}).get(key.value)
        if inner and "description" in inner:
            yield key, value, inner
        # the latter in a section whose keys are names that the user chooses
        yield from _described(value, inner or schema.get("additionalProperties") or {})


def _comment(schema: dict[str, Any]) -> str:
    first = re.split(r"(?<=[.?])\s", _meaning(schema), maxsplit=1)[0].removesuffix(".")
    with_choices = f"{first}: {' | '.join(map(_yaml, schema.get('enum', ())))}"
    return with_choices if "enum" in schema and len(with_choices) <= LONGEST_COMMENT else first


def _page(config: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return docs/config.md: a table per section, in the order of config.yaml."""
    single, sections = "", ""
    for name in [*config, "resources"]:
        part = schema["properties"][name]
        if rows := "".join(_inner_rows("", part, _dict(config.get(name)))):
            text = _meaning(part)
            sections += f"\n## {name}\n\n{text[0].upper()}{text[1:]}.\n{_TABLE}{rows}"
        else:
            single += _row(name, part, config)
    return f"{_HEADER}{_TABLE}{single}{sections}"


def _inner_rows(path: str, schema: dict[str, Any], defaults: dict[str, Any]) -> Iterator[str]:
    """Yield the rows of the keys in a section, in the order of config.yaml."""
    keys, entry = schema.get("properties", {}), _dict(schema.get("additionalProperties"))
    if "properties" in entry:
        keys = {"NAME": entry}
    for key in dict.fromkeys([*(key for key in defaults if key in keys), *keys]):
        yield _row(f"{path}{key}", keys[key], defaults)
        yield from _inner_rows(f"{path}{key}.", keys[key], _dict(defaults.get(key)))


def _row(path: str, schema: dict[str, Any], defaults: dict[str, Any]) -> str:
    key = path.rpartition(".")[2]
    # Keys inside a section have rows of their own.
    default = f"`{_yaml(defaults[key])}`" if key in defaults and not isinstance(defaults[key], dict) else ""
    shown = default if len(default) <= 60 else "in config.yaml"
    return f"| `{path}` | {shown} | {_type(schema)} | {_meaning(schema)} |\n".replace("<", "&lt;")


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _type(schema: dict[str, Any]) -> str:
    """Return the type and bounds of a key in words."""
    if "enum" in schema:
        return ", ".join(f"`{_yaml(value)}`" for value in schema["enum"])
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    bounds = ", ".join(f"{sign} {schema[bound]}" for bound, sign in _BOUNDS.items() if bound in schema)
    words = {kind: _TYPES.get(kind, kind) for kind in kinds}
    for kind in words.keys() & {"integer", "number"}:
        words[kind] += f" {bounds}".rstrip()
    if "array" in words and "integer" not in words and "type" in schema["items"]:
        words["array"] += f" of {_type(schema['items'])}"
    return " or ".join(words.values())


def _meaning(schema: dict[str, Any]) -> str:
    """Return the description in one line, without the words "Config section `name`: " of a docstring."""
    text = " ".join(schema.get("description", "").split())
    return re.sub(r"^(Config|Entry of config) section .*?: ", "", text).removesuffix(".")


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


if __name__ == "__main__":
    main()
