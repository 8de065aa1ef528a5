"""Answer files of the study's page and the key that they are read with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from lantern.io import read_json
from lantern_pipeline.study.page import ANSWERS_FORMAT, KEY_FORMAT, VERSION

_ANSWERS_SCHEMA = {
    "type": "object",
    "required": ["format", "version", "study", "reader", "download", "answers"],
    "properties": {
        "format": {"const": ANSWERS_FORMAT},
        "version": {"const": VERSION},
        "study": {"type": "string"},
        "reader": {"type": "string", "minLength": 1},
        "download": {"type": "integer", "minimum": 1},
        "answers": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["trial", "left", "choice", "milliseconds"],
                "properties": {
                    "trial": {"type": "string"},
                    "left": {"enum": [0, 1]},
                    "choice": {"enum": ["left", "right"]},
                    "milliseconds": {"type": "number", "minimum": 0, "maximum": 1e11},
                },
            },
        },
    },
}


@dataclass(frozen=True)
class Reader:
    """One reader's answers.

    Attributes:
        path: the file.
        reader: the reader's random id.
        download: how many times the reader had saved the answers by then.
        is_baseline: pair's number -> the autoregressive (in a check: the fitting) image was chosen.
        is_left: pair's number -> the image on the left was chosen.
        seconds: median time from a pair's appearance to its answer.
    """

    path: Path
    reader: str
    download: int
    is_baseline: dict[str, bool]
    is_left: dict[str, bool]
    seconds: float


def read_key(path: Path | str) -> dict[str, Any]:
    """Reads the key of a study."""
    key = read_json(path)
    if not isinstance(key, dict) or key.get("format") != KEY_FORMAT or key.get("version") != VERSION:
        raise ValueError(f"{path} is not the key of a study (version {VERSION}); run build_study again")
    return key


def read_answers(path: Path | str, key: Mapping[str, Any]) -> Reader:
    """Reads one reader's file with the key of the same study."""
    path = Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is truncated or is not JSON ({error}); ask its reader to save it again") from error
    if not isinstance(found, dict) or found.get("format") != ANSWERS_FORMAT:
        raise ValueError(f"{path} is not an answer file of the study's page; move it out of the answers folder")
    error = best_match(Draft202012Validator(_ANSWERS_SCHEMA).iter_errors(found))
    if error:
        raise ValueError(f"{path} is malformed at {error.json_path}: {error.message:.200}; move it out of the folder")
    if found["study"] != key["study"]:
        raise ValueError(
            f"{path} holds answers to study {found['study']}, but the key is of study {key['study']}; move it to that "
            "study's answers, or put back the key.json that was built with its page"
        )
    _check_pairs(path, [answer["trial"] for answer in found["answers"]], key)
    is_left = {answer["trial"]: answer["choice"] == "left" for answer in found["answers"]}
    slots = {
        answer["trial"]: answer["left"] if is_left[answer["trial"]] else 1 - answer["left"]
        for answer in found["answers"]
    }
    is_baseline = {trial: slot == key["trials"][trial]["baseline"] for trial, slot in slots.items()}
    seconds = median(answer["milliseconds"] for answer in found["answers"]) / 1000
    return Reader(path, found["reader"], found["download"], is_baseline, is_left, seconds)


def last_of_each_reader(files: Sequence[Reader]) -> list[Reader]:
    """Keeps, of each reader, the file saved last, in the order in which the readers first appear."""
    last: dict[str, Reader] = {}
    for file in files:
        other = last.setdefault(file.reader, file)
        if file.download == other.download and file.is_baseline != other.is_baseline:
            raise ValueError(
                f"{other.path} and {file.path} come from one reader's one save but hold different answers; remove the "
                "one that was edited"
            )
        if file.download > other.download:
            last[file.reader] = file
    return list(last.values())


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _check_pairs(path: Path, answered: Sequence[str], key: Mapping[str, Any]) -> None:
    known = key["trials"]
    unknown = sorted(set(answered) - set(known))
    if unknown:
        raise ValueError(
            f"{path} answers pair {unknown[0]!r}, which the study does not have; move it out of the folder"
        )
    if len(set(answered)) < len(answered):
        raise ValueError(
            f"{path} answers pair {max(answered, key=list(answered).count)!r} twice; move it out of the folder"
        )
    if len(answered) < len(known):
        raise ValueError(
            f"{path} holds {len(answered)} of {len(known)} answers; ask its reader to finish and save the file again"
        )
