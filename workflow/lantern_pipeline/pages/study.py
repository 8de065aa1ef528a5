"""Page of the preference study, and the study's *key*, which states which image of a pair is which.

Readers of the page choose between two images of a prompt: one by autoregressive decoding, one by a relaxed method (a
*pair*). An *attention check* has an image of its prompt and one that clearly does not fit, both autoregressive. A
*trial* is either. A *tie* is a pair of equal images, which is counted but not shown.

The page is one HTML file, which needs no network. It does not name the methods, and its trials are numbered in a
shuffled order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypedDict, cast

import numpy as np
import torch
from torch import Tensor

from lantern.codebook import ImageModel
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.data.image_files import decode_images, to_pixels
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.pages.html_page import data_uri, fill_page
from lantern_pipeline.pages.study_analysis import CHECK, KEY_FORMAT, PAIR, VERSION, KeyTrial, StudyKey, StudyMethod
from lantern_pipeline.tables.method_labels import label_method

TEMPLATE = "study.html"
SHOWN_WIDTH = 336  # CSS pixels, rounded to a multiple of the image's width


class Trial(NamedTuple):
    """A trial with its decoded images. Ties have none, since they are not shown.

    Attributes:
        kind: PAIR or CHECK.
        method_id: empty for a check.
        images: RGB, uint8 (2, height, width, 3). The first is the autoregressive image of the caption.
    """

    kind: str
    caption: str
    prompt_id: str
    method_id: str
    images: np.ndarray


class StudySection(TypedDict):
    """Keys of config section `study` that choose which images readers compare. config.yaml explains them."""

    num_trials: int  # pairs per method, with ties
    num_checks: int
    methods: Sequence[str] | None  # ids; None for the first method of each relaxed preset


def select_trials(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    tokenizer: ImageModel,
    settings: StudySection,
) -> tuple[list[Trial], list[StudyMethod]]:
    """Choose and decode the trials of a preference study. Return (trials, compared methods).

    Args:
        records: method id -> codes of its images, in the order of `prompts`.
        prompts: all prompts of the prompt set that the config names for the main results.
    """
    count, num_checks = settings["num_trials"], settings["num_checks"]
    for name, number in (("num_trials", count), ("num_checks", num_checks)):
        if number > len(prompts):
            raise ValueError(
                f"config key study.{name} must be at most the {len(prompts)} prompts of metrics.headline_prompt_set, "
                f"got {number}"
            )
    trials: list[Trial] = []
    methods: list[StudyMethod] = []
    used: set[int] = set()
    baseline = records[BASELINE].codes
    for number, method_id in enumerate(_choose_methods(records, settings["methods"])):
        label, first = label_method(records[method_id].metadata["method"]), number * count
        # Methods get different prompts, one block after the other, because readers would recognise the autoregressive
        # image that every pair of a prompt shows. If the prompts do not suffice, they are used again from the first.
        rows = np.arange(first, first + count) % len(prompts)
        codes = torch.stack([baseline[rows], records[method_id].codes[rows]], dim=1)  # (pairs, 2, tokens)
        is_tie = (codes[:, 0] == codes[:, 1]).all(dim=1).numpy()
        methods.append({"method_id": method_id, "label": label, "num_pairs": count, "num_ties": int(is_tie.sum())})
        shown = rows[~is_tie].tolist()
        used.update(shown)
        trials += _make_trials(tokenizer, PAIR, method_id, [prompts[i] for i in shown], codes[~is_tie])
    right = list(range(len(prompts) - num_checks, len(prompts)))  # the prompts that pairs use last
    wrong = choose_wrong_prompts([prompt.text for prompt in prompts], right, used)
    codes = torch.stack([baseline[right], baseline[wrong]], dim=1)
    return trials + _make_trials(tokenizer, CHECK, "", [prompts[i] for i in right], codes), methods


def choose_wrong_prompts(texts: Sequence[str], right: Sequence[int], used: set[int]) -> list[int]:
    """Choose for each attention check the index of a prompt whose image clearly does not fit.

    `texts` are all prompts, and `right` the indices of those of the attention checks. The indices `used`, of prompts in
    other trials, are chosen only if there are no others.
    """
    words = [set(text.lower().split()) for text in texts]
    times, chosen = [0] * len(texts), []
    for index in right:
        others = [i for i in range(len(texts)) if i != index]
        # Share of common words (Jaccard index): the prompt with the smallest describes the most different image.
        common = {i: len(words[i] & words[index]) / max(1, len(words[i] | words[index])) for i in others}
        # Of equal shares, the prompt chosen least often so far is taken.
        best = min(others, key=lambda i: (i in used, common[i], times[i], i))
        times[best] += 1
        chosen.append(best)
    return chosen


def build_page(
    trials: Sequence[Trial], methods: Sequence[StudyMethod], *, question: str, seed: int
) -> tuple[str, StudyKey]:
    """Return (HTML of the page, key).

    `question` is asked about each pair. `seed` determines the order of the trials, and of the two images in each.
    """
    if not any(trial.kind == PAIR for trial in trials):
        raise ValueError(
            "the study has no pair to show: every image of the compared methods equals the autoregressive one, or "
            "study.methods is empty; name relaxed methods in study.methods or raise study.num_trials"
        )
    generator = np.random.Generator(np.random.PCG64(seed))
    shown: list[dict[str, object]] = []
    hidden: dict[str, KeyTrial] = {}
    for number, place in enumerate(generator.permutation(len(trials)).tolist(), start=1):
        trial, baseline, name = trials[place], int(generator.integers(2)), f"t{number:03d}"
        # `baseline`: where the first image of the trial stands in the page's data. Which of the two is on the left, the
        # page chooses anew for each reader.
        images = [data_uri(pixels) for pixels in trial.images]
        shown.append({"id": name, "caption": trial.caption, "images": images[::-1] if baseline else images})
        hidden[name] = {
            "kind": trial.kind,
            "method_id": trial.method_id,
            "prompt_id": trial.prompt_id,
            "baseline": baseline,
        }
    # A whole number of CSS pixels per pixel, so that small images stay sharp.
    side = trials[0].images.shape[2]
    width = side * max(1, round(SHOWN_WIDTH / side))
    data = {"question": question, "side": side, "width": width, "trials": shown}
    key = {"format": KEY_FORMAT, "version": VERSION, "methods": list(methods), "trials": hidden}
    # The id is a hash of page and key, so that answers to one page cannot be read with the key of another.
    study = hashlib.sha256(json.dumps([data, key], sort_keys=True).encode()).hexdigest()[:16]
    return fill_page(TEMPLATE, {"id": study, **data}), cast("StudyKey", {**key, "study": study})


def _make_trials(
    tokenizer: ImageModel, kind: str, method_id: str, prompts: Sequence[Prompt], codes: Tensor
) -> list[Trial]:
    """Decode a trial from each pair of codes, integer (pairs, 2, tokens), the autoregressive image first."""
    if not len(codes):  # no attention checks, or only ties
        return []
    pixels = to_pixels(decode_images(tokenizer, codes.flatten(0, 1)))
    pairs = pixels.reshape(-1, 2, *pixels.shape[1:])
    return [Trial(kind, prompt.text, prompt.id, method_id, pair) for prompt, pair in zip(prompts, pairs, strict=True)]


def _choose_methods(records: Mapping[str, GenerationRecords], wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        first: dict[str, str] = {}
        for method_id, record in records.items():
            if not record.metadata["method"]["is_exact"]:
                # The first of each preset. Exact methods have nothing to compare: equal distributions of images.
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
