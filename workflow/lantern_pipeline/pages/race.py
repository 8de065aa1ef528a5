"""Page of the race: several methods generate the same prompt side by side, at the recorded speed.

The page is one HTML file, which needs no network. It contains the images and the time of each forward pass. The
`_describe_*` functions return what its script reads, as JSON values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypedDict

import numpy as np
from torch import Tensor

from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern_pipeline.measure.speed.latency import TimedImages
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.pages.html_page import data_uri, fill_page, to_json
from lantern_pipeline.tables.method_labels import label_method

TEMPLATE = "race.html"
# Snakemake's report opens the page as a data URI. Chromium allows 2 MiB, and base64 turns three bytes into four.
MAX_BYTES = 1_500_000
MAX_EXACT_SIDE = 64  # pixels; larger images are compressed with loss, and scaled smoothly
QUALITY = 75  # WebP's quality of lossy compression, from 0 to 100
OWN, DRAFT, SUBSTITUTION = "tds"  # marks of tokens: sampled from the target, accepted draft, substitution


def build_page(
    timed: TimedImages,
    prompts: Sequence[Prompt],
    draw: Callable[[Tensor], np.ndarray],
    positions: Tensor,
) -> str:
    """Build the page. Prompts are added in the given order until it would exceed MAX_BYTES.

    Args:
        draw: function that decodes codes, integer (images, tokens), to pixels, uint8 (images, height, width, 3).
        positions: position of each code of an image among its tokens, int64 (lines, columns). The page shows no other
            tokens.
    """
    methods = _describe_methods(timed)  # autoregressive decoding first
    place = {key: row for row, key in enumerate(zip(timed.prompt_ids, timed.method_ids, strict=True))}
    lines, columns = positions.shape
    data = {
        "methods": methods,
        "lines": lines,
        "columns": columns,
        # The tokens of a preview come before it and are not on the page.
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
        # Exact methods often have the same image, which the page then has once.
        codes, which = timed.codes[rows].unique(dim=0, return_inverse=True)
        pixels = draw(codes)
        data["pixelated"] = max(pixels.shape[1:3]) <= MAX_EXACT_SIDE
        images = [_encode(image) for image in pixels]
        runs = [
            {"image": len(data["images"]) + image, **_describe_run(timed, row, rows[0])}
            for row, image in zip(rows, which.tolist(), strict=True)
        ]
        entry = {"text": prompt.text, "runs": runs}
        # The size grows by each part, so that the page is not written anew for every prompt.
        size += len(to_json(entry)) + len(to_json(images))
        if size > MAX_BYTES:
            break
        data["prompts"].append(entry)
        data["images"] += images
    if not data["prompts"]:
        raise ValueError(f"the race must fit into {MAX_BYTES} bytes, got {size} for one prompt; run fewer methods")
    return fill_page(TEMPLATE, data)


class RaceMethod(TypedDict):
    """A method on the page.

    Attributes:
        kind: "baseline" for autoregressive decoding. For methods that verify drafts by rejection sampling,
            "exact_rejection" or "relaxed_rejection". For all others "exact" or "relaxed".
        seconds: sum of the times of the method's images.
    """

    id: str
    label: str
    kind: str
    seconds: float


def _describe_methods(timed: TimedImages) -> list[RaceMethod]:
    metadata, seconds = timed.metadata, dict.fromkeys(timed.method_ids, 0.0)
    for method_id, row in zip(timed.method_ids, timed.step_seconds.double().sum(1).tolist(), strict=True):
        seconds[method_id] += row
    return [
        {
            "id": method["method_id"],
            "label": label_method(method),
            "kind": _kind(MethodSpec.from_dict(method), metadata["temperature"]),
            "seconds": round(seconds[method["method_id"]], 3),
        }
        for method in sorted(metadata["methods"].values(), key=lambda method: method["method_id"] != BASELINE)
    ]


def _kind(spec: MethodSpec, temperature: float) -> str:
    if spec.method_id == BASELINE:
        return "baseline"
    kind = "exact" if spec.is_exact else "relaxed"
    # With rejection sampling there are no substitutions, and an exact method may have other tokens than the baseline.
    return kind if spec.samples_target_tokens(temperature) else f"{kind}_rejection"


def _describe_run(timed: TimedImages, row: int, baseline: int) -> dict[str, object]:
    """Describe how an image was generated, step by step. `row` and `baseline` are indices of images in `timed`."""
    # Rows are padded with 0 to the number of tokens, and every real step emits at least one.
    lengths = timed.step_lengths[row][timed.step_lengths[row] > 0].tolist()
    milliseconds = (1000 * timed.step_seconds[row][: len(lengths)].double()).tolist()
    flags = zip(timed.is_draft[row].tolist(), timed.is_substituted[row].tolist(), strict=True)
    return {
        "lengths": lengths,
        "ms": [round(found, 3) for found in milliseconds],
        # One letter per token. A substitution is an accepted draft, too, and the more telling of the two.
        "marks": "".join(SUBSTITUTION if other else DRAFT if draft else OWN for draft, other in flags),
        "differs": int((timed.codes[row] != timed.codes[baseline]).sum()),  # tokens
    }


def _encode(pixels: np.ndarray) -> str:
    is_exact = max(pixels.shape[:2]) <= MAX_EXACT_SIDE
    # If lossless, `quality` is the effort of compression.
    return data_uri(pixels, "webp", method=4, lossless=is_exact, quality=100 if is_exact else QUALITY)
