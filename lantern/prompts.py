"""Prompts with ids: the pairing key of every record, image and metric."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lantern.scenes import parse_caption


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: unique in its set; noise, records and images are keyed by it.
        text: what the text encoder reads.
        scene: `Scene.to_dict()` where the text is a caption of the embedded world, None for free text.
    """

    id: str
    text: str
    scene: dict | None = None


def load_prompts(path: str | Path) -> list[Prompt]:
    """Read a user's prompt file.

    Args:
        path: .txt (one prompt a line, ids "<stem>-00000"), .jsonl (one object a line), .json (a list of strings or of
            objects), .csv or .tsv (header with columns id and text). Objects have text and optionally id and scene.

    Returns:
        Prompts in the file's order; captions of the embedded world get their scene.

    Raises:
        ValueError: unknown extension, empty file, empty line (its number), missing column, duplicate ids (named).
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise ValueError(f"{path}: prompt files end in {', '.join(_READERS)}, got {path.suffix!r}")
    text = path.read_text(encoding="utf-8-sig")
    if not text.strip():
        raise ValueError(f"{path}: the prompt file is empty; give at least one prompt")
    prompts = [_make_prompt(path, number, row) for number, row in _READERS[path.suffix](path, text)]
    if not prompts:
        raise ValueError(f"{path}: the prompt file is empty; give at least one prompt")
    check_unique_ids(prompts, str(path))
    return prompts


def check_unique_ids(prompts: Iterable[Prompt], where: str) -> None:
    """Raise ValueError that names the duplicate ids of `prompts`, read from `where`."""
    duplicates = sorted(id for id, count in Counter(prompt.id for prompt in prompts).items() if count > 1)
    if duplicates:
        shown = ", ".join(duplicates[:5]) + (f" and {len(duplicates) - 5} more" if len(duplicates) > 5 else "")
        raise ValueError(f"{where}: duplicate prompt ids {shown}; every prompt needs an id of its own")


def scene_of(text: str) -> dict | None:
    """Return the scene of a caption of the embedded world, None for any other text."""
    try:
        return parse_caption(text).to_dict()
    except ValueError:
        return None


Rows = Iterable[tuple[int, Mapping]]


def _read_lines(path: Path, text: str) -> Rows:
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, {"id": f"{path.stem}-{number - 1:05d}", "text": line}


def _read_jsonl(path: Path, text: str) -> Rows:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            raise ValueError(f"{path}, line {number}: empty line; remove it")
        yield number, _read_value(path, number, _parse_json(path, number, line))


def _read_json(path: Path, text: str) -> Rows:
    values = _parse_json(path, 1, text)
    if not isinstance(values, list):
        raise ValueError(f"{path}: expected a list of strings or objects, got {type(values).__name__}")
    for number, value in enumerate(values, start=1):
        yield number, _read_value(path, number, value)


def _read_value(path: Path, number: int, value: object) -> Mapping:
    default_id = f"{path.stem}-{number - 1:05d}"
    if isinstance(value, str):
        return {"id": default_id, "text": value}
    if not isinstance(value, dict) or "text" not in value:
        raise ValueError(f"{path}, entry {number}: expected a string or an object with the key text, got {value!r}")
    return {"id": default_id, **value}


def _read_table(path: Path, text: str) -> Rows:
    reader = csv.DictReader(text.splitlines(), delimiter="\t" if path.suffix == ".tsv" else ",", skipinitialspace=True)
    missing = {"id", "text"} - set(reader.fieldnames or ())
    if missing:
        raise ValueError(f"{path}: missing column {', '.join(sorted(missing))}; the header must name id and text")
    for row in reader:
        yield reader.line_num, row


_READERS: dict[str, Callable[[Path, str], Rows]] = {
    ".txt": _read_lines,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": _read_table,
}


def _parse_json(path: Path, number: int, text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number + error.lineno - 1}: not JSON ({error.msg})") from error


def _make_prompt(path: Path, number: int, row: Mapping) -> Prompt:
    text, id = str(row["text"] or "").strip(), str(row["id"] or "").strip()
    if not text:
        raise ValueError(f"{path}, line {number}: empty prompt; remove the line or write a text")
    if not id:
        raise ValueError(f"{path}, line {number}: empty id; give every prompt an id")
    return Prompt(id, text, row.get("scene") or scene_of(text))
