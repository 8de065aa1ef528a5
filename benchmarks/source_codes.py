"""Tokens per forward pass if the first Jacobi drafts are the codes of another image, on the embedded model.

    python benchmarks/source_codes.py                        # 48 captions
    python benchmarks/source_codes.py --output codes.json    # also writes JSON

Models that edit a picture can use the codes of this *source* picture as first drafts. The embedded model edits none.
The source is therefore another image, mostly one of a *near* caption, in which the first object has another colour. The
numbers do not depend on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from report import commit_of, write_report

import lantern
from lantern.api import Model
from lantern.generation import generate_records
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.measure.intervals import bootstrap_interval, ratio_statistic
from lantern_pipeline.measure.speed import mean_accepted_length
from lantern_pipeline.world.scenes import COLOURS, Scene, caption, render, sample_scene

BATCH = 16
OTHER_SEED = 1  # of the noise of sources that have other noise than their image


def near(scene: Scene) -> Scene:
    """Return a copy of a scene in which the first object has another colour."""
    colours = list(COLOURS)
    (size, colour, shape), *others = scene.objects
    colour = colours[(colours.index(colour) + 1) % len(colours)]
    return replace(scene, objects=((size, colour, shape), *others))


def decode(
    model: Model, texts: Sequence[str], seed: int = 0, source: torch.Tensor | None = None, method: str = "jacobi"
) -> GenerationRecords:
    """Generate an image of each caption.

    Args:
        model: the model.
        texts: the captions.
        seed: seed of the noise.
        source: codes of another image, which are the first drafts of each image, int64 (images, tokens). None for the
            usual first drafts.
        method: name of the preset.
    """
    decoder = model.make_decoder(method, **({} if source is None else {"drafts": "jacobi_source"}))
    rows = iter(() if source is None else source)  # prompts enter the batch in their order
    prompts = [Prompt(str(index), text) for index, text in enumerate(texts)]

    def next_sources(features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
        return None if source is None else torch.stack([next(rows) for _ in features])

    with patch.object(model.models.target, "source_codes", next_sources), model.limited_threads():
        return generate_records(decoder, prompts, model.encoder, run_seed=seed, batch_size=BATCH)


def make_sources(model: Model, scenes: Sequence[Scene], expected: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return several kinds of sources: images whose codes can be the first drafts of other images.

    Args:
        model: the model.
        scenes: scenes of the images that will be generated.
        expected: codes of these images, int64 (images, tokens).

    Returns:
        Kind of source -> codes, int64 (images, tokens).
    """
    edited = [near(scene) for scene in scenes]
    texts, near_texts = ([caption(scene) for scene in part] for part in (scenes, edited))
    pictures = render(edited, 0, range(len(scenes)))
    drawn = {
        "near caption, same noise": decode(model, near_texts),
        "near caption, other noise": decode(model, near_texts, OTHER_SEED),
        "same caption, other noise": decode(model, texts, OTHER_SEED),
        "caption of another image, other noise": decode(model, [*texts[1:], texts[0]], OTHER_SEED),
    }
    return {
        "the image itself": expected,
        **{kind: records.codes.long() for kind, records in drawn.items()},
        "rendered picture of the near caption": model.tokenizer.encode(pictures).flatten(1),
    }


def measure(model: Model, num: int) -> dict[str, dict[str, object]]:
    """Measure Jacobi decoding without a source and with each kind of source (codes that are the first drafts).

    Args:
        model: the model.
        num: number of captions.

    Returns:
        Kind of source -> numbers, such as:

        - equal_codes: share of the source's codes that equal the code of the image at the same position.
        - gain: number of forward passes without a source divided by the number with it, minus 1. Its interval is paired
          by caption.
        - equal_images: number of images that equal those of autoregressive decoding.
    """
    scenes = [sample_scene(0, index, "seen") for index in range(num)]
    texts = [caption(scene) for scene in scenes]
    expected = decode(model, texts, method="autoregressive").codes.long()
    usual = decode(model, texts)
    found = {"none": _summarise(usual, usual, expected)}
    for kind, source in make_sources(model, scenes, expected).items():
        numbers = _summarise(decode(model, texts, source=source), usual, expected)
        found[kind] = {"equal_codes": float((source == expected).float().mean()), **numbers}
    return found


def _summarise(found: GenerationRecords, usual: GenerationRecords, expected: torch.Tensor) -> dict[str, object]:
    forwards, before = found.target_forwards.numpy(), usual.target_forwards.numpy()
    low, high = bootstrap_interval(ratio_statistic, before, forwards)
    return {
        **mean_accepted_length(np.full(len(forwards), expected.shape[1]), forwards),
        "gain": float(before.sum() / forwards.sum()) - 1,
        "gain_low": low - 1,
        "gain_high": high - 1,
        "equal_images": int((found.codes == expected).all(1).sum()),
    }


def main() -> None:
    """Measure all kinds of sources, print the numbers as one line of JSON, and write them to --output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=48, help="number of captions")
    parser.add_argument("--output", type=Path, help="JSON file")
    options = parser.parse_args()
    sources = measure(lantern.load("embedded"), options.num)
    report = {
        "benchmark": "source_codes",
        "commit": commit_of(Path(__file__).parent),
        "num_images": options.num,
        "sources": sources,
    }
    write_report(report, options.output)


if __name__ == "__main__":
    main()
