"""Analysis of the preference study: answer files, preference rates with intervals, and conclusions.

Readers of the study choose between two images of a prompt, one by autoregressive decoding and one by a relaxed method.
The *preference rate* of a method is the share of choices of the autoregressive image. Its interval regards both readers
and prompts as random samples, so it also holds for readers and prompts that are not in the study. If the interval
excludes one half, readers prefer one of the two kinds of images.

The *key* of a study is a file that states which image of each trial is the autoregressive one. The page hides this.
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
    """Return the JSON schema of an object that must have all of the given properties.

    Args:
        properties: name -> JSON schema of the value.
    """
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
    """The facts that the key of a preference study states about one trial, a pair of images on the page.

    Attributes:
        kind: PAIR, or CHECK for an attention check.
        method_id: id of the compared method; empty for a check.
        prompt_id: id of the prompt.
        baseline: position, 0 or 1, of the autoregressive image. In a check: position of the image that fits the prompt.
    """

    kind: str
    method_id: str
    prompt_id: str
    baseline: int


class StudyMethod(TypedDict):
    """A method that a study compares with autoregressive decoding.

    Attributes:
        method_id: id of the method.
        label: name of the method for readers.
        num_pairs: number of pairs of images for the method, including the pairs that the page does not show.
        num_ties: number of pairs that are not shown, because both images are equal.
    """

    method_id: str
    label: str
    num_pairs: int
    num_ties: int


class StudyKey(TypedDict):
    """Contents of the key of a preference study, which states which image of each pair is the autoregressive one.

    Attributes:
        format: the constant KEY_FORMAT, which marks a JSON file as a key.
        version: version of the format.
        methods: the compared methods.
        trials: name of a trial (a pair of images), such as "t001" -> its kind, method, prompt and position of the
            autoregressive image.
        study: id of the study.
    """

    format: str
    version: int
    methods: list[StudyMethod]
    trials: dict[str, KeyTrial]
    study: str


class Reader(NamedTuple):
    """The answers of one reader (participant) of the preference study, from a file that the reader saved.

    The page names its trials (pairs and attention checks) "t001" and so on, and so does the key of the study.

    Attributes:
        path: the file.
        reader: random id of the reader.
        download: 1 for the reader's first file, 2 for the second, and so on.
        is_baseline: name of a trial -> whether the reader chose the autoregressive image. If the trial is an attention
            check: whether the reader chose the image that fits the prompt.
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
    """Compute the preference rate of each method: the share of answers that chose the autoregressive image.

    The answers are in files that the readers saved. If a reader saved several files, only the last counts.

    Args:
        paths: the answer files.
        key: key of the study, as `read_key` returns it.
        min_checks: fraction of the attention checks that a reader must pass to be counted.

    Returns:
        (table with one row per method, facts about the readers). The facts are counts of files, readers and checks, and
        two results:

        - left: (share, low, high). The share counts answers in which the reader chose the left image. Low and high are
          the ends of the 95 % interval that is exact if answers are independent.
        - seconds: median over readers of their median time per trial.

    Raises:
        ValueError: no reader passed enough attention checks, or an answer file is refused (see `read_answers`).
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
    """Compute the 95 % interval of a preference rate: the share of choices of the autoregressive image.

    Both readers and prompts are regarded as random samples, so that the interval also holds for readers and prompts
    that are not in the study. The interval extends 1.96 standard errors (see `_standard_error`) to either side of the
    share. It is never narrower than the exact interval for the same number of independent choices.

    Args:
        chosen: whether a reader chose the autoregressive image, bool (readers, prompts).

    Returns:
        (low, high).
    """
    low, high = map(float, share_interval(chosen.sum(), np.asarray(chosen.size)))
    if min(chosen.shape) > 1:
        ends = normal_interval(chosen.mean(), _standard_error(chosen))
        low, high = min(low, ends[0]), max(high, ends[1])
    return low, high


def read_key(path: Path | str) -> StudyKey:
    """Read the key of a preference study, which states which image of each pair is the autoregressive one.

    Raises:
        ValueError: the file is not a key, or is a key of another version.
    """
    key = read_json(path)
    if not isinstance(key, dict) or key.get("format") != KEY_FORMAT or key.get("version") != VERSION:
        raise ValueError(f"{path} is not the key of a study (version {VERSION}); run build_study again")
    return StudyKey(**key)


def read_answers(path: Path | str, key: StudyKey) -> Reader:
    """Read the answer file that a reader (participant) of the preference study saved.

    Args:
        path: the file.
        key: key of the study, which states which image of each pair is the autoregressive one.

    Raises:
        ValueError: the file is not an answer file, is damaged or belongs to another study. Or a trial (pair of images)
            has no answer or two answers, or is not in the study.
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
    """Keep only the last saved answer file of each reader (participant).

    The readers are in the order in which their first files occur in `files`.

    Raises:
        ValueError: two files of a reader have the same `download` number, but different answers.
    """
    last: dict[str, Reader] = {}
    for file in files:
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
    """Compute the preference rate of one method, as one row of the table that `analyse_answers` returns.

    Args:
        method: the method.
        key: key of the study.
        readers: answers of the readers who passed the attention checks.
    """
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
    """Compute the standard error of a preference rate, if both readers and prompts are random samples.

    The variance is clustered in two ways (Cameron, Gelbach and Miller 2011): variance of reader means plus variance of
    prompt means, minus the residual variance. Its root is multiplied by the ratio of Student's to the normal quantile.
    An interval of ± 1.96 standard errors is then a 95 % interval of Student's distribution. The degrees of freedom are
    those of Satterthwaite (1946).

    Args:
        chosen: whether a reader chose the autoregressive image, bool (readers, prompts).
    """
    num_readers, num_prompts = chosen.shape
    reader_means, prompt_means = chosen.mean(axis=1, keepdims=True), chosen.mean(axis=0, keepdims=True)
    residual = chosen - reader_means - prompt_means + chosen.mean()
    freedom = np.array([num_readers - 1, num_prompts - 1, (num_readers - 1) * (num_prompts - 1)])
    of_means = (reader_means.var(ddof=1) / num_readers, prompt_means.var(ddof=1) / num_prompts)
    parts = np.array([*of_means, (residual**2).sum() / freedom[2] / chosen.size])
    variance = parts[0] + parts[1] - parts[2]
    if variance <= 0:
        return 0.0  # the choices vary less than independent choices, so the exact interval is used
    degrees = max(1.0, variance**2 / (parts**2 / freedom).sum())
    return float(np.sqrt(variance) * t.ppf((1 + LEVEL) / 2, degrees) / NORMAL_QUANTILE)
