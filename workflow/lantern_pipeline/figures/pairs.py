"""Figure (k): autoregressive, exact and relaxed images of the same noise, what differs, what was substituted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from lantern.methods import drafts_of, verifies_by_rejection
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.data.image_files import decode_images, to_pixels
from lantern_pipeline.figures.image_grid import PictureGrid, draw_pictures
from lantern_pipeline.figures.style import column_titles
from lantern_pipeline.metrics.speed import BASELINE

AMPLIFIED = 2  # times the difference of two images


def draw_pairs(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    tokenizer: nn.Module,
    settings: Mapping[str, Any],
) -> Figure:
    """Draws the images that `select_pairs` chooses."""
    return draw_pictures(select_pairs(records, prompts, tokenizer, settings=settings))


def select_pairs(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    tokenizer: nn.Module,
    *,
    settings: Mapping[str, Any],
) -> PictureGrid:
    """Decodes the first prompts' autoregressive, exact and relaxed images, and what the relaxed ones differ by.

    A grid of four columns; substituted tokens are outlined on the relaxed images. `records`: method_id -> records of
    one prompt set and temperature, in the order of `prompts`. `tokenizer`: image tokenizer with `decode`.
    """
    exact, relaxed = settings["pair_methods"] or _choose(records)
    for method_id in (BASELINE, exact, relaxed):
        if method_id not in records:
            raise ValueError(f"figures.pair_methods: no records of {method_id!r}; there are {', '.join(records)}")
    if verifies_by_rejection(records[relaxed].metadata["method"]):
        raise ValueError(
            f"figures.pair_methods: the substitutions of {relaxed} are not recorded (its drafts are verified by "
            "rejection); choose a method with drafts coupled or top, jacobi or hybrid"
        )
    chosen = [records[method_id] for method_id in (BASELINE, exact, relaxed)]
    num_prompts, num_tokens = settings["sample_prompts"], chosen[0].codes.shape[1]
    images = torch.stack([decode_images(tokenizer, found.codes[:num_prompts]) for found in chosen], dim=1)
    difference = AMPLIFIED * (images[:, 2] - images[:, 0]).abs() - 1  # black where the images are the same
    is_substituted = chosen[2].is_substituted[:num_prompts].numpy()
    marks = np.zeros((len(images), 4, num_tokens), dtype=bool)
    marks[:, 2] = is_substituted
    changed = [(found.codes != chosen[0].codes)[:num_prompts].sum(dim=1).tolist() for found in chosen]
    return PictureGrid(
        images=to_pixels(torch.cat([images, difference[:, None]], dim=1)),
        row_titles=[prompt.text for prompt in prompts[:num_prompts]],
        column_titles=[*column_titles(chosen), f"difference\n× {AMPLIFIED}"],
        notes=[
            ["", _differing(changed[1][row]), f"{found.sum()} substituted", _differing(changed[2][row])]
            for row, found in enumerate(is_substituted)
        ],
        note_title=f"of {num_tokens} tokens",
        marks=marks,
    )


def _differing(count: int) -> str:
    return f"{count} differ" if count else "identical"


def _choose(records: Mapping[str, GenerationRecords]) -> tuple[str, str]:
    """The first exact method with drafts of the target's noise, and the relaxed one with most substitutions."""
    coupled = {
        name: found for name, found in records.items() if drafts_of(found.metadata["method"]["drafts"]).is_coupled
    }
    exact = [name for name, found in coupled.items() if found.metadata["method"]["is_exact"]]
    relaxed = [name for name in coupled if name not in exact]
    if not exact or not relaxed:
        raise ValueError(
            f"paired images need an exact and a relaxed method with coupled drafts, got {', '.join(records)}; add the "
            "presets coupled and proximity, or set figures.pair_methods"
        )
    return exact[0], max(relaxed, key=lambda name: int(records[name].is_substituted.sum()))
