"""Writes docs/configuration.md from the schema, the default config and configuration.md beside this file.

python -m lantern_pipeline.config.document
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lantern_pipeline.config.validate import SCHEMA_PATH, load_yaml

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "configuration.md"
PROSE = Path(__file__).with_name("configuration.md")
_TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "multiple of {}",
    "minItems": "{} entries or more",
    "maxItems": "{} or fewer",
    "minLength": "{} character or more",
    "maxLength": "{} characters or fewer",
}


def make_page() -> str:
    """The page: prose, then a table for each section of the config."""
    properties = load_yaml(SCHEMA_PATH)["properties"]
    config = load_yaml(ROOT / "config.yaml")
    comments = read_comments((ROOT / "config.yaml").read_text(encoding="utf-8"))
    alone = {name: node for name, node in properties.items() if "type" not in node or str(node["type"]) in _TYPES}
    parts = [PROSE.read_text(encoding="utf-8"), _table(_rows(alone, "", config, comments))]
    for name, node in properties.items():
        if name not in alone:
            rows = list(_rows({name: node}, "", config, comments))
            about = "" if len(rows) == 1 else comments.get(name, "")
            about = f"{about[0].upper()}{about[1:]}.\n\n" if about else ""
            parts.append(f"### {name}\n\n{about}{_table(rows)}")
    return "\n".join(parts)


def read_comments(text: str) -> dict[str, str]:
    """The comments behind the keys of a YAML file: "latency.threads" -> "CPU threads of the decoder while timed"."""
    comments, places = {}, []
    for line in text.splitlines():
        if found := re.match(r"( *)(\w+):", line):
            places = [(indent, key) for indent, key in places if indent < len(found[1])]
            places.append((len(found[1]), found[2]))
            if comment := line.partition(" # ")[2]:
                comments[".".join(key for _, key in places)] = comment
    return comments


def _rows(nodes: dict[str, Any], above: str, values: Any, comments: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """Key, what it takes, default and meaning of every key of a section and of those below it."""
    for name, node in nodes.items():
        key = f"{above}{name}"
        value = values[name] if isinstance(values, dict) and name in values else ...
        inner = node.get("items", node) if node.get("type") == "array" else node
        entries = inner.get("additionalProperties")
        if name == "methods" and above.startswith("ablations"):
            yield f"`{key}`", "as `methods`", "", node["description"]
        elif "properties" in inner:
            place = f"{key}[]." if inner is not node else f"{key}."
            yield from _rows(inner["properties"], place, value, comments)
        elif isinstance(entries, dict) and "properties" in entries:
            yield from _rows(entries["properties"], f"{key}.<name>.", ..., comments)
        else:
            meaning = comments.get(key) or node["description"]
            yield f"`{key}`", _takes(node), _default(value), meaning


def _takes(node: dict[str, Any]) -> str:
    """Types and bounds in words."""
    if "enum" in node:
        return ", ".join(f"`{value}`" if value is not None else "null" for value in node["enum"])
    if "then" in node:
        return f"{_takes(node['then'])}, or a list"
    types = [node["type"]] if isinstance(node["type"], str) else node["type"]
    words = [_TYPES[name] for name in types if name in _TYPES]
    if "array" in types:
        words.append(f"list ({_takes(node['items'])})" if types[0] == "array" else "or a list")
    if "object" in types:
        words.append("by name")
    if "pattern" in node:
        words.append(node.get("patternHint", "letters, digits, _ and -"))
    bounds = [text.format(node[bound]) for bound, text in _BOUNDS.items() if bound in node]
    return ", ".join([*words, *bounds])


def _default(value: Any) -> str:
    if value is ...:
        return ""
    return f"`{json.dumps(value, ensure_ascii=False)}`" if not isinstance(value, dict) else "see `config.yaml`"


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    lines = [("key", "takes", "default", "meaning"), ("---",) * 4, *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
