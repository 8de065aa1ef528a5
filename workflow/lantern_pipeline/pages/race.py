"""Page of the race: several methods generate the same prompt side by side, at the recorded speed.

The page is one HTML file, which needs no network. It contains the images and the time of each forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

import numpy as np
from torch import Tensor

from lantern.methods import samples_target_tokens
from lantern.prompts import Prompt
from lantern_pipeline.measure.latency import TimedImages
from lantern_pipeline.measure.speed import BASELINE
from lantern_pipeline.pages.html_page import data_uri, fill_page, to_json
from lantern_pipeline.tables.method_labels import label_method

TEMPLATE = "race.html"
# Snakemake's report opens the page as a data URI. Chromium allows 2 MiB, and base64 turns three bytes into four.
MAX_BYTES = 1_500_000
MAX_EXACT_SIDE = 64  # pixels; larger images are compressed with loss, and scaled smoothly
QUALITY = 75  # quality of lossy compression, in percent
OWN, DRAFT, SUBSTITUTION = "tds"  # marks of tokens: sampled from the target, accepted draft, substitution


def build_page(
    timed: TimedImages,
    prompts: Sequence[Prompt],
    draw: Callable[[Tensor], np.ndarray],
    positions: Tensor,
) -> str:
    """Build the HTML page on which several methods generate the same prompts side by side, at the recorded speed.

    Prompts are added in the given order until the page would exceed MAX_BYTES.

    Args:
        timed: images of all methods, with the time of each forward pass.
        prompts: their prompts.
        draw: function that decodes codes, integer (images, tokens), to pixels, uint8 (images, height, width, 3).
        positions: position of each code of an image among its tokens, int64 (lines, columns). The page shows no other
            tokens.

    Returns:
        HTML.

    Raises:
        ValueError: the page exceeds MAX_BYTES with a single prompt.
    """
    methods = _describe_methods(timed)
    place = {key: row for row, key in enumerate(zip(timed.prompt_ids, timed.method_ids, strict=True))}
    lines, columns = positions.shape
    data = {
        "methods": methods,
        "lines": lines,
        "columns": columns,
        "first": int(positions[0, 0]),
        "tokens": timed.codes.shape[1],
        "pixelated": True,
        "gpu": timed.metadata["gpu"],
        "threads": timed.metadata["num_threads"],
        "prompts": [],
        "images": [],
    }
    size = len(fill_page(TEMPLATE, data))
    for prompt in prompts:
        rows = [place[prompt.id, method["id"]] for method in methods]
        codes, which = timed.codes[rows].unique(dim=0, return_inverse=True)
        pixels = draw(codes)
        data["pixelated"] = max(pixels.shape[1:3]) <= MAX_EXACT_SIDE
        images = [_encode(image) for image in pixels]
        runs = [
            {"image": len(data["images"]) + image, **_describe_run(timed, row, rows[0])}
            for row, image in zip(rows, which.tolist(), strict=True)
        ]
        entry = {"text": prompt.text, "runs": runs}
        size += len(to_json(entry)) + len(to_json(images))
        if size > MAX_BYTES:
            break
        data["prompts"].append(entry)
        data["images"] += images
    if not data["prompts"]:
        raise ValueError(f"the race must fit into {MAX_BYTES} bytes, got {size} for one prompt; run fewer methods")
    return fill_page(TEMPLATE, data)


class RaceMethod(TypedDict):
    """A method on the page that replays methods side by side, as data for the script of the page.

    Attributes:
        id: id of the method.
        label: name of the method for readers.
        kind: "baseline" for autoregressive decoding. For methods that verify drafts by rejection sampling,
            "exact_rejection" or "relaxed_rejection". For all others "exact" or "relaxed".
        seconds: sum of the times of the method's images.
    """

    id: str
    label: str
    kind: str
    seconds: float


def _describe_methods(timed: TimedImages) -> list[RaceMethod]:
    """Return the methods that the page shows, as data for its script, autoregressive decoding first."""
    metadata, seconds = timed.metadata, dict.fromkeys(timed.method_ids, 0.0)
    for method_id, row in zip(timed.method_ids, timed.step_seconds.double().sum(1).tolist(), strict=True):
        seconds[method_id] += row
    return [
        {
            "id": method["method_id"],
            "label": label_method(method),
            "kind": _kind(method, metadata["temperature"]),
            "seconds": round(seconds[method["method_id"]], 3),
        }
        for method in sorted(metadata["methods"].values(), key=lambda method: method["method_id"] != BASELINE)
    ]


def _kind(method: Mapping[str, object], temperature: float) -> str:
    if method["method_id"] == BASELINE:
        return "baseline"
    kind = "exact" if method["is_exact"] else "relaxed"
    return kind if samples_target_tokens(method, temperature) else f"{kind}_rejection"


def _describe_run(timed: TimedImages, row: int, baseline: int) -> dict[str, object]:
    """Describe how a method generated an image, step by step, as data for the script of the page.

    Args:
        timed: the timed images of all methods.
        row: index of the image in `timed`.
        baseline: index of the autoregressive image of the same prompt.

    Returns:
        A dict with four keys.

        - lengths: number of tokens that each forward pass emits.
        - ms: milliseconds of each forward pass.
        - marks: string with one letter per token. SUBSTITUTION marks a token that differs from the target's sample,
          DRAFT any other accepted draft, and OWN any other token, which the target sampled.
        - differs: number of tokens that differ from the autoregressive image.
    """
    lengths = timed.step_lengths[row][timed.step_lengths[row] > 0].tolist()
    milliseconds = (1000 * timed.step_seconds[row][: len(lengths)].double()).tolist()
    flags = zip(timed.is_draft[row].tolist(), timed.is_substituted[row].tolist(), strict=True)
    return {
        "lengths": lengths,
        "ms": [round(found, 3) for found in milliseconds],
        "marks": "".join(SUBSTITUTION if other else DRAFT if draft else OWN for draft, other in flags),
        "differs": int((timed.codes[row] != timed.codes[baseline]).sum()),
    }


def _encode(pixels: np.ndarray) -> str:
    is_exact = max(pixels.shape[:2]) <= MAX_EXACT_SIDE
    return data_uri(pixels, "webp", method=4, lossless=is_exact, quality=100 if is_exact else QUALITY)
