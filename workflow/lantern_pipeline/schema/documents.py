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
        lines[key.end_mark.line] = f"{lines[key.end_mark.line][:end]}  # {_comment(inner)}"
    return "\n".join(lines) + "\n"


def _described(node: yaml.Node, schema: dict[str, Any]) -> Iterator[tuple[yaml.Node, yaml.Node, dict[str, Any]]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        # the latter in a section whose keys are names that the user chooses
        inner = schema.get("properties", {}).get(key.value)
        if inner and "description" in inner:
            yield key, value, inner
        yield from _described(value, inner or schema.get("additionalProperties") or {})


def _comment(schema: dict[str, Any]) -> str:
    first = re.split(r"\.(?:\s|$)", _meaning(schema), maxsplit=1)[0]
    with_choices = f"{first}: {' | '.join(map(_yaml, schema.get('enum', ())))}"
    return with_choices if "enum" in schema and len(with_choices) <= LONGEST_COMMENT else first


def _page(config: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return docs/config.md: a table per section, in the order of config.yaml."""
    sections, top = {}, []
    for name in [*config, "resources"]:
        rows = [*_rows(name, schema["properties"][name], config.get(name))]
        if len(rows) == 1 and rows[0].startswith(f"| `{name}` "):
            top += rows
        else:
            sections[f"## {name}\n\n{_sentences(schema['properties'][name])}\n"] = rows
    return _HEADER + "".join(
        f"{head}{_TABLE}" + "\n".join(rows) + "\n"
        for head, rows in {"\n## Outside all sections\n": top, **sections}.items()
    )


def _rows(path: str, schema: dict[str, Any], default: object) -> Iterator[str]:
    inner = {f"{path}.{key}": (part, key) for key, part in schema.get("properties", {}).items()}
    if isinstance(schema.get("additionalProperties"), dict) and "properties" in schema["additionalProperties"]:
        inner = {f"{path}.<name>": (schema["additionalProperties"], "<name>")}
    if not inner:
        shown = "" if default is None and "<name>" in path else f"`{_yaml(default)}`"
        yield f"| `{path}` | {shown if len(shown) <= 60 else 'in config.yaml'} | {_type(schema)} | {_sentences(schema)} |"
    for name, (part, key) in inner.items():
        yield from _rows(name, part, default.get(key) if isinstance(default, dict) else None)


def _type(schema: dict[str, Any]) -> str:
    """Return the type and bounds of a key in words."""
    if "enum" in schema:
        return " \\| ".join(f"`{_yaml(value)}`" for value in schema["enum"])
    kinds = schema.get("type", [])
    bounds = "".join(f" {sign} {schema[bound]}" for bound, sign in _BOUNDS.items() if bound in schema)
    words = {kind: _TYPES.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)}
    for kind in words.keys() & {"integer", "number"}:
        words[kind] += bounds
    if "array" in words and isinstance(schema.get("items"), dict) and "integer" not in words:
        words["array"] += f" of {_type(schema['items'])}"
    return " or ".join(words.values())


def _meaning(schema: dict[str, Any]) -> str:
    # Docstrings of sections begin with "Config section `name`: ".
    return re.sub(r"^(Config|Entry of config) section .*?: ", "", " ".join(schema.get("description", "").split()))


def _sentences(schema: dict[str, Any]) -> str:
    text = _meaning(schema).removesuffix(".")
    return f"{text[:1].upper()}{text[1:]}.".replace("|", "\\|").replace("<", "&lt;") if text else ""


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


if __name__ == "__main__":
    main()
