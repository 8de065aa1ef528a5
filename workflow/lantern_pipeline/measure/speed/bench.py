"""Speed of several methods of one model on this machine, at batch 1 and at a chosen batch size.

The command `lantern bench` prints these measurements. A run of the workflow uses `measure/speed/latency.py` instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from lantern.decoding import Decoder
from lantern.generation import decode_timed, warn_of_few_accepted
from lantern.prompts import Prompt, TextEncoder
from lantern.tree_shapes import num_drafts
from lantern_pipeline.measure.repeats import KEYS
from lantern_pipeline.measure.speed.latency import TimedImage, time_rounds
from lantern_pipeline.measure.speed.memory import peak_gib, reset_peak
from lantern_pipeline.measure.speed.speedups import BASELINE, summarise_latency, tokens_per_forward

Row = dict[str, Any]  # numbers of one method by name, see `bench_rounds`


@dataclass(frozen=True)
class BatchTime:
    """Measurement of one batch, with the memory of `memory.peak_gib`."""

    images_per_s: float
    peak_gib: float


class Round(NamedTuple):
    """Results after a round.

    Attributes:
        rows: summary of all rounds so far, in the order of the decoders.
        images: the images of this round only, one per method and prompt.
    """

    rows: list[Row]
    images: list[TimedImage]


def bench_rounds(
    decoders: Sequence[Decoder], prompts: Sequence[Prompt], encoder: TextEncoder, *, batch_size: int, num_rounds: int
) -> Iterator[Round]:
    """Time several decoders, and yield the results after each round. One of them must be autoregressive.

    A round times the image of each prompt at batch 1, and then one batch of images per decoder. A row has the keys of
    `tokens_per_forward` and the columns of `summarise_latency`, and

    - method: dict from `MethodSpec.to_dict`,
    - num_drafts: number of drafts of a step,
    - forward_s: mean seconds of a forward pass, with drafting and verification, in each prompt's fastest round,
    - num_images, num_equal: number of images at batch 1, and of those that equal the autoregressive ones,
    - images_per_s: of the fastest batch,
    - peak_memory_gib: highest of all batches.
    """
    frames: list[pd.DataFrame] = []
    batches: dict[str, list[BatchTime]] = defaultdict(list)
    images: dict[str, list[TimedImage]] = {}
    # The warm-up image captures the CUDA graphs.
    rounds = time_rounds(decoders, prompts, encoder, run_seed=0, num_warmup=1, num_rounds=num_rounds)
    for frame, drawn in rounds:
        frames.append(frame)
        for decoder in decoders:
            name = decoder.spec.method_id
            batches[name].append(time_batch(decoder, prompts, encoder, batch_size))
            images[name] = [image for image in drawn if image.method["method_id"] == name]
        rows = _summarise(pd.concat(frames), images, batches)  # in the order in which `images` was filled
        for decoder, row in zip(decoders, rows, strict=True):
            row["num_drafts"] = num_drafts(decoder.spec.tree_shape)
            # Every round decodes the same images, so one warning is enough.
            if len(frames) == 1:
                found = images[decoder.spec.method_id]
                warn_of_few_accepted(decoder, torch.cat([image.generation.target_forwards for image in found]))
        yield Round(rows, drawn)


def time_batch(decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, batch_size: int) -> BatchTime:
    """Time the decoding of one batch. If there are too few prompts, they are repeated with other noise."""
    copies = [prompts[index % len(prompts)] for index in range(batch_size)]
    # The id of a prompt is a key of the noise, so equal texts give different images.
    batch = [Prompt(f"batch-{index}", prompt.text) for index, prompt in enumerate(copies)]
    # A copy, so that the decoder itself keeps no memory for this batch size.
    job = decoder.stepped(decoder.runner.mode)
    reset_peak(job.device)
    # The first batch captures the CUDA graphs. Only the time of the last batch counts.
    for _ in range(2 if job.runner.mode == "graph" else 1):
        _, seconds = decode_timed(job, batch, encoder, run_seed=0)
    return BatchTime(batch_size / seconds, peak_gib(job.device))


def _summarise(
    timings: pd.DataFrame, images: Mapping[str, Sequence[TimedImage]], batches: Mapping[str, Sequence[BatchTime]]
) -> list[Row]:
    # `summarise_latency` groups by prompt set and repeat, which a bench does not have: any constants do.
    speeds = summarise_latency(timings.assign(prompt_set="bench", repeat="s0n0")).set_index("method_id")
    rows = []
    for name, drawn in images.items():
        codes = [image.generation.codes for image in drawn]
        num_tokens = np.array([found.shape[1] for found in codes])
        forwards = np.array([int(image.generation.target_forwards[0]) for image in drawn])
        expected = [image.generation.codes for image in images[BASELINE]]
        # Only the speeds are left: method_id is the index, and the other KEYS are constants.
        speed = speeds.loc[name].drop([key for key in KEYS if key != "method_id"]).to_dict()
        rows.append(
            {
                "method": drawn[0].method,
                **tokens_per_forward(num_tokens, forwards),
                **speed,
                "forward_s": speed["latency_s"] * len(drawn) / forwards.sum(),  # latency_s is a mean over images
                "num_images": len(drawn),
                "num_equal": sum(map(torch.equal, codes, expected)),
                # Other processes can only make a batch slower, so the fastest one is the least disturbed.
                "images_per_s": max(found.images_per_s for found in batches[name]),
                "peak_memory_gib": max(found.peak_gib for found in batches[name]),
            }
        )
    return rows
