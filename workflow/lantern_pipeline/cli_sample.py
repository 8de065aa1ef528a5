"""Implementation of the command `lantern sample`: images of the same noise by a few methods."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from lantern.api import Model
from lantern_pipeline.cli_words import read_method
from lantern_pipeline.figures.image_grid import draw_pictures
from lantern_pipeline.figures.style import column_titles
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.method_labels import label_method
from lantern_pipeline.world.worlds import WORLDS, world_with

WITHOUT_DRAFT_MODEL = ("jacobi",)
WITH_DRAFT_MODEL = ("eagle1", "jacobi", "lantern k=20 delta=0.1", "lantern_pp k=10 lambda_=2")


@dataclass(frozen=True)
class Sample:
    """The image that one method generates for a prompt."""

    label: str
    title: str  # the label in several lines, the title of a column in a figure
    pixels: np.ndarray  # uint8 (height, width, 3)
    is_equal: bool  # whether all codes equal the codes of autoregressive decoding
    target_forwards: int
    num_tokens: int
    seconds: float  # time of decoding the image, after a warm-up


def read_size(text: str) -> tuple[int, int]:
    """Read a height and a width in pixels, such as "1152x768"."""
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if found is None:
        raise ValueError(f"size must be a height and a width in pixels, such as 1152x768, got {text!r}")
    return int(found[1]), int(found[2])


def sample_prompt(
    model: Model, prompt: str, methods: Sequence[str] = (), size: tuple[int, int] | None = None
) -> list[Sample]:
    """Generate an image of a prompt by autoregressive decoding and by each of some methods, in this order.

    Args:
        methods: names of presets with parameters, such as "lantern k=20 delta=0.1". If empty, WITH_DRAFT_MODEL or
            WITHOUT_DRAFT_MODEL.
        size: height and width in pixels. None for the model's own size.
    """
    vocabulary = getattr(model.encoder, "vocabulary", None)  # models of a world have one
    if not prompt.strip():
        example = (world_with(vocabulary) or WORLDS["scenes"]).example
        known = f"; it knows the words {', '.join(vocabulary)}" if vocabulary else ""
        raise ValueError(f"give a prompt, for example {example!r}{known}")
    samples, baseline = [], None
    few = WITH_DRAFT_MODEL if model.models.draft is not None else WITHOUT_DRAFT_MODEL
    # All methods are read before the first image, so that a mistake costs no time. `fromkeys` drops repetitions.
    for name, parts in [read_method(method, "sample") for method in dict.fromkeys([BASELINE, *(methods or few)])]:
        # A warm-up: the first call allocates memory and, on a GPU, captures graphs.
        model.generate(prompt, name, size=size, **parts)
        # The warm-up has given the same warnings.
        with _without_warnings():
            drawn = model.generate(prompt, name, size=size, **parts)
        baseline = drawn.codes if baseline is None else baseline
        label, (title,) = label_method(drawn.records.metadata["method"]), column_titles([drawn.records])
        # The last three fields, of the only image.
        counts = int(drawn.steps[0]), drawn.codes.shape[1], float(drawn.seconds[0])
        samples.append(Sample(label, title, drawn.pixels[0], torch.equal(drawn.codes, baseline), *counts))
    return samples


@contextmanager
def _without_warnings() -> Iterator[None]:
    # `disable` is global: another level that a caller has set must not be lowered.
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def draw_samples(prompts: Sequence[str], samples: Sequence[Sequence[Sample]]) -> Figure:
    """Draw images in one row per prompt and one column per method, with tokens per forward pass below each image."""
    images = np.stack([[sample.pixels for sample in row] for row in samples])
    notes = [[f"{sample.num_tokens / sample.target_forwards:.2f}" for sample in row] for row in samples]
    return draw_pictures(images, prompts, [sample.title for sample in samples[0]], notes, "tokens / forward")


def table_of(samples: list[Sample]) -> str:
    """Return a table of the samples as text, one line per method."""
    titles = f"{'method':<32} {'target forwards':>16} {'tokens/forward':>15} {'seconds':>9} {'speed-up':>9}"
    lines = [f"{titles}  image"]
    # The first sample is that of autoregressive decoding.
    lines += [
        f"{sample.label:<32} {sample.target_forwards:>16d} {sample.num_tokens / sample.target_forwards:>15.2f} "
        f"{sample.seconds:>9.3f} {samples[0].seconds / sample.seconds:>9.2f}  "
        + ("equal to autoregressive decoding's" if sample.is_equal else "another one")
        for sample in samples
    ]
    return "\n".join(lines)
