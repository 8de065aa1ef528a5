"""Analysis of the preference study: answer files, preference rates with intervals, and conclusions.

Pairs, attention checks, trials, ties and the key are defined in `study`. The *preference rate* of a method is the share
of choices of the autoregressive image. Its interval regards both readers and prompts as random samples, so it also
holds for readers and prompts that are not in the study. If the interval excludes one half, readers prefer one of the
two kinds of images.

The page and the key of a study name trials "t001" and so on. `chosen` is whether a reader chose the autoregressive
image, bool (readers, prompts).
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
    """Return the JSON schema of an object that must have all of the given properties (name -> schema)."""
    return {"type": "object", "required": list(properties), "properties": properties}


_ANSWER = _object(
    trial={"type": "string"},
    left={"enum": [0, 1]},
    choice={"enum": ["left", "right"]},
    milliseconds={"type": "number", "minimum": 0, "maximum": 1e11},  # 1e999 is infinite after `json.loads`
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
    """What the key states about one trial, of kind PAIR or CHECK.

    Attributes:
        method_id: empty for a check.
        baseline: position, 0 or 1, of the autoregressive image. In a check: position of the image that fits the prompt.
    """

    kind: str
    method_id: str
    prompt_id: str
    baseline: int


class StudyMethod(TypedDict):
    """A method that a study compares with autoregressive decoding.

    Attributes:
        num_pairs: number of pairs, with ties.
        num_ties: number of pairs that are not shown, because both images are equal.
    """

    method_id: str
    label: str
    num_pairs: int
    num_ties: int


class StudyKey(TypedDict):
    """Contents of the key: `trials` by name, and `study`, the id that page and key share."""

    format: str
    version: int
    methods: list[StudyMethod]
    trials: dict[str, KeyTrial]
    study: str


class Reader(NamedTuple):
    """The answers of one reader, from a file that the reader saved.

    Attributes:
        reader: random id.
        download: 1 for the reader's first file, 2 for the second, and so on.
        is_baseline: name of a trial -> whether the reader chose the image at position `KeyTrial.baseline`.
        is_left: name of a trial -> whether the reader chose the image on the left.
        seconds: median time from the appearance of a trial to its answer.
    """

    path: Path
    reader: str
    download: int
    is_baseline: dict[str, bool]
    is_left: dict[str, bool]
    seconds: float


def analyse_answers(
    paths: Sequence[Path | str], key: StudyKey, min_checks: float
) -> tuple[pd.DataFrame, dict[str, object]]:
    """Compute the preference rate of each method, of readers who pass a share `min_checks` of the attention checks.

    Returns:
        (table with one row per method, facts about the readers). Fact `left` is the share of choices of the left image
        with its exact interval, (share, low, high). Fact `seconds` is the median of the readers' medians.
    """
    readers = last_of_each_reader([read_answers(path, key) for path in paths])
    checks = [name for name, trial in key["trials"].items() if trial["kind"] == CHECK]
    # `or [1]`: without checks, every reader counts.
    counted = [reader for reader in readers if np.mean([reader.is_baseline[i] for i in checks] or [1]) >= min_checks]
    if not counted:
        raise ValueError(
            f"none of the {len(readers)} readers passed {min_checks:.0%} of the {len(checks)} attention checks; "
            "collect more answers or lower study.min_checks"
        )
    # (readers, trials), since every reader answered all of them. Readers who look at images choose left about half the
    # time, since sides are random.
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
    """Return the 95 % interval of a preference rate, never narrower than the exact one for independent choices."""
    low, high = map(float, share_interval(chosen.sum(), np.asarray(chosen.size)))
    # A variance between readers or prompts needs two of them.
    if min(chosen.shape) > 1:
        ends = normal_interval(chosen.mean(), _standard_error(chosen))
        low, high = min(low, ends[0]), max(high, ends[1])
    return low, high


def read_key(path: Path | str) -> StudyKey:
    """Read the key of a study, which must be of this version."""
    key = read_json(path)
    if not isinstance(key, dict) or key.get("format") != KEY_FORMAT or key.get("version") != VERSION:
        raise ValueError(f"{path} is not the key of a study (version {VERSION}); run `snakemake build_study` again")
    return StudyKey(**key)


def read_answers(path: Path | str, key: StudyKey) -> Reader:
    """Read an answer file, and refuse one that is damaged, incomplete or of another study."""
    path = Path(path)
    try:
        # Files come from outside: NaN is no JSON, and deep nesting ends in a RecursionError.
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is truncated or is not JSON ({error}); ask its reader to save it again") from error
    if not isinstance(found, dict) or found.get("format") != ANSWERS_FORMAT:
        raise ValueError(f"{path} is not an answer file of the study's page; move it out of the answers folder")
    # The message quotes the wrong value, so at most 200 letters of it are shown.
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
    # `left` is the position in the key's order of the image that the page showed on the left.
    is_baseline = {
        trial: (answer["left"] if is_left[trial] else 1 - answer["left"]) == key["trials"][trial]["baseline"]
        for trial, answer in answers.items()
    }
    seconds = median(answer["milliseconds"] for answer in found["answers"]) / 1000
    return Reader(path, found["reader"], found["download"], is_baseline, is_left, seconds)


def last_of_each_reader(files: Sequence[Reader]) -> list[Reader]:
    """Keep only the last saved file of each reader, in the order of their first files."""
    last: dict[str, Reader] = {}
    for file in files:
        # Equal answers under one number are copies of a file, of which the first is kept.
        other = last.setdefault(file.reader, file)
        if file.download == other.download and file.is_baseline != other.is_baseline:
            raise ValueError(
                f"{other.path} and {file.path} have the same reader and download number, but other answers; remove the "
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
    """Make one method's row of the table."""
    wanted = {"kind": PAIR, "method_id": method["method_id"]}
    # Items of a dict compare as sets: >= is "has all of these".
    names = [name for name, trial in key["trials"].items() if trial.items() >= wanted.items()]
    chosen = np.array([[reader.is_baseline[name] for name in names] for reader in readers])  # (readers, pairs)
    share, low, high, preferred = np.nan, np.nan, np.nan, "none"
    if names:
        share = float(chosen.mean())
        low, high = preference_interval(chosen)
        preferred = "autoregressive" if low > 0.5 else "relaxed" if high < 0.5 else "none"
    shares = {"share_autoregressive": share, "share_autoregressive_low": low, "share_autoregressive_high": high}
    # Mirrored, so that the ends change places.
    shares |= {"share_relaxed": 1 - share, "share_relaxed_low": 1 - high, "share_relaxed_high": 1 - low}
    counts = {"num_shown": len(names), "num_readers": len(readers), "num_judgements": chosen.size}
    return {**method, **counts, **shares, "preferred": preferred}


def _standard_error(chosen: np.ndarray) -> float:
    """Compute the standard error of a preference rate.

    Variance clustered in two ways (Cameron, Gelbach and Miller 2011): var(reader means) / readers + var(prompt means) /
    prompts - residual variance / choices. Degrees of freedom: Satterthwaite (1946).
    """
    num_readers, num_prompts = chosen.shape
    reader_means, prompt_means = chosen.mean(axis=1, keepdims=True), chosen.mean(axis=0, keepdims=True)
    residual = chosen - reader_means - prompt_means + chosen.mean()
    freedom = np.array([num_readers - 1, num_prompts - 1, (num_readers - 1) * (num_prompts - 1)])
    of_means = (reader_means.var(ddof=1) / num_readers, prompt_means.var(ddof=1) / num_prompts)
    # Both variances of means contain the residual variance, which is therefore subtracted once.
    parts = np.array([*of_means, (residual**2).sum() / freedom[2] / chosen.size])
    variance = parts[0] + parts[1] - parts[2]
    if variance <= 0:
        return 0.0  # the choices vary less than independent choices, so the exact interval is used
    degrees = max(1.0, variance**2 / (parts**2 / freedom).sum())
    # Scaled so that 1.96 of these errors give the interval of Student's distribution.
    return float(np.sqrt(variance) * t.ppf((1 + LEVEL) / 2, degrees) / NORMAL_QUANTILE)
