"""The study's page: pairs of images in one HTML file that needs no network, and the key that tells the images apart.

The page holds no method: pairs carry numbers in a shuffled order, and which of a pair's two images is the
autoregressive one stands in the key alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lantern_pipeline.data.html_page import data_uri, fill_page

TEMPLATE = Path(__file__).with_name("page.html")
KEY_FORMAT, ANSWERS_FORMAT, VERSION = "lantern-study-key", "lantern-study-answers", 1
PAIR, CHECK = "pair", "check"
SHOWN_WIDTH = 336  # CSS pixels, about; the nearest multiple of the image's side is taken


@dataclass(frozen=True)
class Trial:
    """Two images under one caption.

    Attributes:
        kind: "pair" (autoregressive against a method) or "check" (an image of the caption against one of another).
        caption: shown as text, whatever it holds.
        prompt_id: of the caption.
        method_id: the method compared; empty for a check.
        images: (2, S, S, 3) uint8, red, green, blue; first the autoregressive image of the caption.
    """

    kind: str
    caption: str
    prompt_id: str
    method_id: str
    images: np.ndarray

    def __post_init__(self) -> None:
        shape = self.images.shape
        if self.images.dtype != np.uint8 or len(shape) != 4 or shape[0] != 2 or shape[3] != 3:
            raise ValueError(f"images of a trial must be uint8 of shape (2, S, S, 3), got {self.images.dtype} {shape}")
        if self.kind not in (PAIR, CHECK):
            raise ValueError(f"kind of a trial must be {PAIR} or {CHECK}, got {self.kind!r}")


def build_page(
    trials: Sequence[Trial], methods: Sequence[Mapping[str, Any]], *, question: str, seed: int
) -> tuple[str, dict[str, Any]]:
    """Builds the page and its key.

    (html, key). Both carry the study's id, a hash of all that the page shows and of the key, so that answers to one
    page are never read with the key of another. The key's `trials` map a pair's number to its kind, method_id,
    prompt_id and `baseline`, the position (0 or 1) of the autoregressive image in the page's data. `trials`: what is
    shown, in any order; images of one size. `methods`: about each method compared, JSON values: method_id, label,
    num_pairs, num_ties; goes into the key. `question`: asked at each pair. `seed`: of the order of the pairs in the
    page and of the order of the two images in each.
    """
    _check_trials(trials)
    generator = np.random.Generator(np.random.PCG64(seed))
    shown, hidden = [], {}
    for number, place in enumerate(generator.permutation(len(trials)).tolist(), start=1):
        trial, baseline, name = trials[place], int(generator.integers(2)), f"t{number:03d}"
        images = [data_uri(pixels) for pixels in trial.images]
        shown.append({"id": name, "caption": trial.caption, "images": images[::-1] if baseline else images})
        about = {"kind": trial.kind, "method_id": trial.method_id, "prompt_id": trial.prompt_id}
        hidden[name] = {**about, "baseline": baseline}
    side = trials[0].images.shape[1]
    width = side * max(1, round(SHOWN_WIDTH / side))
    data = {"question": question, "side": side, "width": width, "trials": shown}
    key = {"format": KEY_FORMAT, "version": VERSION, "methods": [dict(method) for method in methods], "trials": hidden}
    study = hashlib.sha256(json.dumps([data, key], sort_keys=True).encode()).hexdigest()[:16]
    return fill_page(TEMPLATE, {"id": study, **data}), {**key, "study": study}


def _check_trials(trials: Sequence[Trial]) -> None:
    if not any(trial.kind == PAIR for trial in trials):
        raise ValueError(
            "the study has no pair to show: every image of the compared methods equals the autoregressive one, or "
            "study.methods is empty; name relaxed methods in study.methods or raise study.num_trials"
        )
    shapes = {trial.images.shape for trial in trials}
    if len(shapes) > 1:
        raise ValueError(f"all images of a study must have one size, got {sorted(shapes)}")
