"""Analysis of the preference study: answer files, preference rates with intervals, and conclusions.

Intervals are for other readers and other prompts. A rate is compared with one half.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypedDict

import numpy as np
import pandas as pd
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from scipy.stats import t

from lantern.io import read_json
from lantern_pipeline.measure.intervals import LEVEL, NORMAL_QUANTILE, normal_interval, share_interval

KEY_FORMAT, ANSWERS_FORMAT, VERSION = "lantern-study-key", "lantern-study-answers", 1
PAIR, CHECK = "pair", "check"  # kinds of trials


def _object(**properties: Mapping[str, object]) -> dict[str, object]:
    """Return the JSON schema of an object that has all properties."""
    return {"type": "object", "required": list(properties), "properties": properties}


_ANSWER = _object(
    trial={"type": "string"},
    left={"enum": [0, 1]},
    choice={"enum": ["left", "right"]},
    milliseconds={"type": "number", "minimum": 0, "maximum": 1e11},
)
_ANSWERS = _object(
    format={"const": ANSWERS_FORMAT},
    version={"const": VERSION},
    study={"type": "string"},
    reader={"type": "string", "minLength": 1},
    download={"type": "integer", "minimum": 1},
    answers={"type": "array", "items": _ANSWER},
)


class KeyTrial(TypedDict):
    """Trial in the key of a study. `baseline` is the position, 0 or 1, of the autoregressive (or fitting) image."""

    kind: str
    method_id: str
    prompt_id: str
    baseline: int


class StudyMethod(TypedDict):
    """Method that a study compares with autoregressive decoding."""

    method_id: str
    label: str
    num_pairs: int
    num_ties: int


class StudyKey(TypedDict):
    """Key of a study: the facts that its page hides."""

    format: str
    version: int
    methods: list[StudyMethod]
    trials: dict[str, KeyTrial]
    study: str


class Reader(NamedTuple):
    """Answers in one reader's file."""

    path: Path
    reader: str  # a random id
    download: int  # number of times that the reader had saved the answers
    is_baseline: dict[str, bool]  # number of the pair -> the autoregressive (in a check: fitting) image was chosen
    is_left: dict[str, bool]  # number of the pair -> the image on the left was chosen
    seconds: float  # median time from a pair's appearance to its answer


def analyse_answers(
    paths: Sequence[Path | str], key: StudyKey, min_checks: float
) -> tuple[pd.DataFrame, dict[str, object]]:
    """Compute preference rates from answer files.

    If a reader saved several times, the last file counts.

    Args:
        paths: the answer files.
        key: key of the study.
        min_checks: smallest share of passed attention checks; readers below it are left out.

    Returns:
        A table with one row per method, and facts about the readers. `left` is the share of choices for the left image,
        with its exact interval for independent choices. `seconds` is the median over readers of their median time per
        pair.

    Raises:
        ValueError: no reader passed enough checks.
    """
    readers = last_of_each_reader([read_answers(path, key) for path in paths])
    checks = [name for name, trial in key["trials"].items() if trial["kind"] == CHECK]
    counted = [reader for reader in readers if np.mean([reader.is_baseline[i] for i in checks] or [1]) >= min_checks]
    if not counted:
        raise ValueError(
            f"none of the {len(readers)} readers passed {min_checks:.0%} of the {len(checks)} attention checks; "
            "collect more answers or lower study.min_checks"
        )
    is_left = np.array([list(reader.is_left.values()) for reader in counted])
    about = {
        "num_files": len(paths),
        "num_repeated": len(paths) - len(readers),
        "num_inattentive": len(readers) - len(counted),
        "num_readers": len(counted),
        "min_checks": min_checks,
        "num_checks": len(checks),
        "left": (float(is_left.mean()), *map(float, share_interval(is_left.sum(), np.asarray(is_left.size)))),
        "seconds": median(reader.seconds for reader in counted),
    }
    return pd.DataFrame([_measure(method, key, counted) for method in key["methods"]]), about


def preference_interval(chosen: np.ndarray) -> tuple[float, float]:
    """Compute the 95 % interval of a share of choices, bool (readers, prompts), for other readers and prompts.

    It is 1.96 standard errors on either side, but never narrower than the exact interval of the same number of
    independent choices.
    """
    low, high = map(float, share_interval(chosen.sum(), np.asarray(chosen.size)))
    if min(chosen.shape) > 1:
        ends = normal_interval(chosen.mean(), _standard_error(chosen))
        low, high = min(low, ends[0]), max(high, ends[1])
    return low, high


def read_key(path: Path | str) -> StudyKey:
    """Read the key of a study.

    Raises:
        ValueError: the file is no key of this version.
    """
    key = read_json(path)
    if not isinstance(key, dict) or key.get("format") != KEY_FORMAT or key.get("version") != VERSION:
        raise ValueError(f"{path} is not the key of a study (version {VERSION}); run build_study again")
    return StudyKey(**key)


def read_answers(path: Path | str, key: StudyKey) -> Reader:
    """Read one reader's file with the key of the same study.

    Raises:
        ValueError: the file is damaged, of another study, or incomplete.
    """
    path = Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is truncated or is not JSON ({error}); ask its reader to save it again") from error
    if not isinstance(found, dict) or found.get("format") != ANSWERS_FORMAT:
        raise ValueError(f"{path} is not an answer file of the study's page; move it out of the answers folder")
    error = best_match(Draft202012Validator(_ANSWERS).iter_errors(found))
    if error:
        raise ValueError(f"{path} is malformed at {error.json_path}: {error.message:.200}; move it out of the folder")
    if found["study"] != key["study"]:
        raise ValueError(
            f"{path} holds answers to study {found['study']}, but the key is of study {key['study']}; move it to that "
            "study's answers, or put back the key.json that was built with its page"
        )
    answers = {answer["trial"]: answer for answer in found["answers"]}
    _check_pairs(path, [answer["trial"] for answer in found["answers"]], key["trials"])
    is_left = {trial: answer["choice"] == "left" for trial, answer in answers.items()}
    is_baseline = {
        trial: (answer["left"] if is_left[trial] else 1 - answer["left"]) == key["trials"][trial]["baseline"]
        for trial, answer in answers.items()
    }
    seconds = median(answer["milliseconds"] for answer in found["answers"]) / 1000
    return Reader(path, found["reader"], found["download"], is_baseline, is_left, seconds)


def last_of_each_reader(files: Sequence[Reader]) -> list[Reader]:
    """Keep the last saved file of each reader, in the order in which the readers first appear.

    Raises:
        ValueError: two files of one save have different answers.
    """
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


def _check_pairs(path: Path, answered: Sequence[str], known: Mapping[str, object]) -> None:
    unknown = sorted(set(answered) - set(known))
    twice = [name for name, times in Counter(answered).items() if times > 1]
    if unknown or twice:
        fault = f"{unknown[0]!r}, which the study does not have" if unknown else f"{twice[0]!r} twice"
        raise ValueError(f"{path} answers pair {fault}; move it out of the folder")
    if len(answered) < len(known):
        raise ValueError(
            f"{path} holds {len(answered)} of {len(known)} answers; ask its reader to finish and save the file again"
        )


def _measure(method: StudyMethod, key: StudyKey, readers: Sequence[Reader]) -> dict[str, object]:
    """Compute one row of the table."""
    wanted = {"kind": PAIR, "method_id": method["method_id"]}
    names = [name for name, trial in key["trials"].items() if trial.items() >= wanted.items()]
    chosen = np.array([[reader.is_baseline[name] for name in names] for reader in readers])  # (readers, pairs)
    share, low, high, preferred = np.nan, np.nan, np.nan, "none"
    if names:
        share = float(chosen.mean())
        low, high = preference_interval(chosen)
        preferred = "autoregressive" if low > 0.5 else "relaxed" if high < 0.5 else "none"
    shares = {"share_autoregressive": share, "share_autoregressive_low": low, "share_autoregressive_high": high}
    shares |= {"share_relaxed": 1 - share, "share_relaxed_low": 1 - high, "share_relaxed_high": 1 - low}
    counts = {"num_shown": len(names), "num_readers": len(readers), "num_judgements": chosen.size}
    return {**method, **counts, **shares, "preferred": preferred}


def _standard_error(chosen: np.ndarray) -> float:
    """Compute the standard error of the mean of (readers, prompts), both being random samples.

    The variance is clustered in two ways (Cameron, Gelbach and Miller 2011): variance of reader means plus that of
    prompt means, minus the residual variance. The result is scaled by the ratio of Student's to the normal quantile,
    with Satterthwaite's degrees of freedom (1946).
    """
    num_readers, num_prompts = chosen.shape
    reader_means, prompt_means = chosen.mean(axis=1, keepdims=True), chosen.mean(axis=0, keepdims=True)
    residual = chosen - reader_means - prompt_means + chosen.mean()
    freedom = np.array([num_readers - 1, num_prompts - 1, (num_readers - 1) * (num_prompts - 1)])
    of_means = (reader_means.var(ddof=1) / num_readers, prompt_means.var(ddof=1) / num_prompts)
    parts = np.array([*of_means, (residual**2).sum() / freedom[2] / chosen.size])
    variance = parts[0] + parts[1] - parts[2]
    if variance <= 0:
        return 0.0  # less spread than independent choices have: the exact interval decides
    degrees = max(1.0, variance**2 / (parts**2 / freedom).sum())
    return float(np.sqrt(variance) * t.ppf((1 + LEVEL) / 2, degrees) / NORMAL_QUANTILE)
