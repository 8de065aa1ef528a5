"""Which pairs of images a study shows: autoregressive against each compared method, and the attention checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.analysis.method_labels import label_method
from lantern_pipeline.data.image_files import decode_images, to_pixels
from lantern_pipeline.metrics.speed import BASELINE
from lantern_pipeline.study.page import CHECK, PAIR, Trial


@dataclass(frozen=True)
class Selection:
    """What a study shows.

    Attributes:
        trials: pairs whose images differ, then the checks.
        methods: of each compared method: method_id, label, num_pairs (looked at) and num_ties (pairs whose images are
            equal in every token, hence not shown).
    """

    trials: list[Trial]
    methods: list[dict[str, Any]]


def select_trials(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    tokenizer: nn.Module,
    *,
    settings: Mapping[str, Any],
) -> Selection:
    """Chooses and decodes the pairs of a study.

    Each method takes the next `num_trials` prompts of the set, so that no autoregressive image comes back while the
    prompts last: an image seen twice would be known as the autoregressive one. Past the end it begins again.

    A `Selection`. `records`: method_id -> records of one prompt set and temperature, in the order of `prompts`.
    `tokenizer`: image tokenizer with `decode`.
    """
    _check_counts(settings, len(prompts))
    compared = _choose_methods(records, settings["methods"])
    labels = [label_method(records[method_id].metadata["method"]) for method_id in compared]
    trials, methods, used = [], [], set()
    baseline = records[BASELINE].codes
    for number, (method_id, label) in enumerate(zip(compared, labels, strict=True)):
        first, count = number * settings["num_trials"], settings["num_trials"]
        rows = np.arange(first, first + count) % len(prompts)
        codes = torch.stack([baseline[rows], records[method_id].codes[rows]], dim=1)  # (pairs, 2, tokens)
        is_tie = (codes[:, 0] == codes[:, 1]).all(dim=1).numpy()
        methods.append({"method_id": method_id, "label": label, "num_pairs": count, "num_ties": int(is_tie.sum())})
        shown = rows[~is_tie].tolist()
        used.update(shown)
        trials += _make_trials(PAIR, method_id, [prompts[i] for i in shown], _decode(tokenizer, codes[~is_tie]))
    return Selection(trials + _make_checks(baseline, prompts, tokenizer, settings["num_checks"], used), methods)


def choose_wrong_prompts(texts: Sequence[str], right: Sequence[int], used: set[int]) -> list[int]:
    """Finds, for each attention check, a prompt whose image clearly does not fit.

    For each of `right` the other position whose caption shares the smallest part of its words; among equals the one
    taken least often. `texts`: captions of the prompt set. `right`: positions of the captions shown. `used`: positions
    whose images are shown in other trials; avoided while others are left.
    """
    words = [set(text.lower().split()) for text in texts]
    times, chosen = [0] * len(texts), []
    for place in right:
        others = [i for i in range(len(texts)) if i != place]
        common = {i: len(words[i] & words[place]) / max(1, len(words[i] | words[place])) for i in others}
        best = min(others, key=lambda i: (i in used, common[i], times[i], i))
        times[best] += 1
        chosen.append(best)
    return chosen


def _make_checks(
    baseline: Tensor, prompts: Sequence[Prompt], tokenizer: nn.Module, num_checks: int, used: set[int]
) -> list[Trial]:
    """Checks on the last prompts of the set, which the pairs reach last."""
    right = list(range(len(prompts) - num_checks, len(prompts)))
    wrong = choose_wrong_prompts([prompt.text for prompt in prompts], right, used)
    codes = torch.stack([baseline[right], baseline[wrong]], dim=1)
    return _make_trials(CHECK, "", [prompts[i] for i in right], _decode(tokenizer, codes))


def _make_trials(kind: str, method_id: str, prompts: Sequence[Prompt], images: np.ndarray) -> list[Trial]:
    return [Trial(kind, prompt.text, prompt.id, method_id, pair) for prompt, pair in zip(prompts, images, strict=True)]


def _decode(tokenizer: nn.Module, codes: Tensor) -> np.ndarray:
    """Codes (pairs, 2, tokens) -> pixels (pairs, 2, S, S, 3) uint8."""
    if not len(codes):
        return np.zeros((0, 2, 1, 1, 3), np.uint8)
    pixels = to_pixels(decode_images(tokenizer, codes.flatten(0, 1)))
    return pixels.reshape(-1, 2, *pixels.shape[1:])


def _check_counts(settings: Mapping[str, Any], num_prompts: int) -> None:
    for name in ("num_trials", "num_checks"):
        if settings[name] > num_prompts:
            raise ValueError(
                f"config key study.{name} must be at most the {num_prompts} prompts of metrics.headline_prompt_set, "
                f"got {settings[name]}"
            )
    if settings["num_checks"] and num_prompts < 2:
        raise ValueError("attention checks need two prompts in metrics.headline_prompt_set; set study.num_checks to 0")


def _choose_methods(records: Mapping[str, GenerationRecords], wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        first: dict[str, str] = {}
        for method_id, record in records.items():
            if not record.metadata["method"]["is_exact"]:
                first.setdefault(record.metadata["method"]["name"], method_id)
        return list(first.values())
    known = [method_id for method_id in records if method_id != BASELINE]
    for method_id in wanted:
        if method_id not in known:
            raise ValueError(
                f"config key study.methods names no method to compare with {BASELINE} at the headline temperature, "
                f"got {method_id!r}; there are {', '.join(known)}"
            )
    return list(wanted)
