"""Figure (a): images of the same prompts and noise by several methods, with tokens per forward pass below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure

from lantern.codebook import ImageModel
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.data.image_files import decode_images, to_pixels
from lantern_pipeline.figures.image_grid import Pictures, draw_pictures
from lantern_pipeline.figures.style import column_titles, first_of_each_preset
from lantern_pipeline.tables.summary import MetricsSection


def draw_samples(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    tokenizer: ImageModel,
    settings: MetricsSection,
) -> Figure:
    """Draw what `select_samples` returns for the same arguments."""
    return draw_pictures(**select_samples(records, prompts, tokenizer, settings))


def select_samples(
    records: Mapping[str, GenerationRecords],
    prompts: Sequence[Prompt],
    tokenizer: ImageModel,
    settings: MetricsSection,
) -> Pictures:
    """Decode the images of the first prompts by several methods, and return the arguments of `draw_pictures`.

    Args:
        records: method id -> generated images of one prompt set and temperature, in the order of `prompts`.
        settings: its keys sample_prompts (number of prompts) and sample_methods (ids; None: the first of each preset).
    """
    num_prompts = settings["sample_prompts"]
    chosen = settings["sample_methods"] or first_of_each_preset(records)
    shown = [records[method_id] for method_id in chosen]
    # (prompts, methods, 3, height, width)
    images = torch.stack([decode_images(tokenizer, found.codes[:num_prompts]) for found in shown], dim=1)
    # Line ends and previews count, since the target generates them, too.
    accepted = [found.codes.shape[1] / found.target_forwards[:num_prompts].double() for found in shown]
    return {
        "images": to_pixels(images),
        "row_titles": [prompt.text for prompt in prompts[:num_prompts]],
        "column_titles": column_titles(shown),
        "notes": [[f"{column[row]:.2f}" for column in accepted] for row in range(len(images))],
        "note_title": "tokens / forward",
    }
