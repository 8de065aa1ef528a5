"""Speed of several methods of one model on this machine, at batch 1 and at a chosen batch size.

The command `lantern bench` prints these measurements. A run of the workflow uses `measure/latency.py` instead.
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
from lantern.prompts import Prompt
from lantern.text_encoders.base import TextEncoder
from lantern.tree_shapes import num_drafts
from lantern_pipeline.measure.latency import TimedImage, time_rounds
from lantern_pipeline.measure.memory import peak_gib, reset_peak
from lantern_pipeline.measure.repeats import KEYS
from lantern_pipeline.measure.speed import BASELINE, mean_accepted_length, summarise_latency

Row = dict[str, Any]  # numbers of one method by name, see `bench_rounds`


@dataclass(frozen=True)
class BatchTime:
    """Speed and memory of decoding one batch of images.

    Attributes:
        images_per_s: images per second of decoding.
        peak_gib: peak memory in GiB: of the GPU if decoding runs on one, else of this process.
    """

    images_per_s: float
    peak_gib: float


class Round(NamedTuple):
    """The results that `bench_rounds` yields after a round, in which every method is timed.

    Attributes:
        rows: summary of all rounds so far, one dict per method. `bench_rounds` explains its keys.
        images: the images that this round has timed, one per method and prompt.
    """

    rows: list[Row]
    images: list[TimedImage]


def bench_rounds(
    decoders: Sequence[Decoder], prompts: Sequence[Prompt], encoder: TextEncoder, *, batch_size: int, num_rounds: int
) -> Iterator[Round]:
    """Measure the speed of several decoders, one per method. After each round, yield a summary of all rounds so far.

    A round times the image of each prompt at batch 1 (see `time_rounds`), and then one batch of images per decoder.

    Args:
        decoders: the decoders. Autoregressive decoding is one of them, with the method id BASELINE.
        prompts: prompts of the images.
        encoder: text encoder of the prompts.
        batch_size: number of images in a batch.
        num_rounds: number of rounds.

    Yields:
        A `Round`. Its rows are one dict per decoder, in the order of the decoders. The keys are

        - method: dict from `MethodSpec.to_dict`,
        - num_drafts: number of drafts of a step,
        - tokens per forward pass, under the keys that `mean_accepted_length` returns,
        - latency, relative step cost and speed-up, under the names of the columns that `summarise_latency` returns,
        - forward_s: mean time of a forward pass in seconds, with drafting and verification,
        - num_images: number of images that a round decodes at batch 1,
        - num_equal: number of these images with the same tokens as in autoregressive decoding,
        - images_per_s: images per second in the fastest batch,
        - peak_memory_gib: highest peak memory of all batches.
    """
    frames: list[pd.DataFrame] = []
    batches: dict[str, list[BatchTime]] = defaultdict(list)
    images: dict[str, list[TimedImage]] = {}
    rounds = time_rounds(decoders, prompts, encoder, run_seed=0, num_warmup=1, num_rounds=num_rounds)
    for frame, drawn in rounds:
        frames.append(frame)
        for decoder in decoders:
            name = decoder.spec.method_id
            batches[name].append(time_batch(decoder, prompts, encoder, batch_size))
            images[name] = [image for image in drawn if image.method["method_id"] == name]
        rows = _summarise(pd.concat(frames), images, batches)
        for decoder, row in zip(decoders, rows, strict=True):
            row["num_drafts"] = num_drafts(decoder.spec.tree_shape)
            if len(frames) == 1:
                found = images[decoder.spec.method_id]
                warn_of_few_accepted(decoder, torch.cat([image.generation.target_forwards for image in found]))
        yield Round(rows, drawn)


def time_batch(decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, batch_size: int) -> BatchTime:
    """Time the decoding of one batch of images.

    If steps run as CUDA graphs, an identical batch is decoded first, which captures the graphs and is not timed.

    Args:
        decoder: the decoder. A copy of it decodes the batch, so the decoder itself keeps no memory for this batch size.
        prompts: prompts of the images, which are repeated with other noise if there are fewer than `batch_size`.
        encoder: text encoder of the prompts.
        batch_size: number of images.
    """
    copies = [prompts[index % len(prompts)] for index in range(batch_size)]
    batch = [Prompt(f"batch-{index}", prompt.text) for index, prompt in enumerate(copies)]
    job = decoder.stepped(decoder.runner.mode)
    reset_peak(job.device)
    for _ in range(2 if job.runner.mode == "graph" else 1):
        _, seconds = decode_timed(job, batch, encoder, run_seed=0)
    return BatchTime(batch_size / seconds, peak_gib(job.device))


def _summarise(
    timings: pd.DataFrame, images: Mapping[str, Sequence[TimedImage]], batches: Mapping[str, Sequence[BatchTime]]
) -> list[Row]:
    """Summarise the timings of all rounds so far.

    Args:
        timings: timings at batch 1, as from `time_rounds`, of all rounds.
        images: method id -> images of the latest round.
        batches: method id -> speed and memory of the batch of each round.

    Returns:
        One dict per method, with the keys that `bench_rounds` explains, except num_drafts.
    """
    speeds = summarise_latency(timings.assign(prompt_set="bench", repeat="s0n0")).set_index("method_id")
    rows = []
    for name, drawn in images.items():
        codes = [image.generation.codes for image in drawn]
        num_tokens = np.array([found.shape[1] for found in codes])
        forwards = np.array([int(image.generation.target_forwards[0]) for image in drawn])
        expected = [image.generation.codes for image in images[BASELINE]]
        speed = speeds.loc[name].drop([key for key in KEYS if key != "method_id"]).to_dict()
        rows.append(
            {
                "method": drawn[0].method,
                **mean_accepted_length(num_tokens, forwards),
                **speed,
                "forward_s": speed["latency_s"] * len(drawn) / forwards.sum(),
                "num_images": len(drawn),
                "num_equal": sum(map(torch.equal, codes, expected)),
                "images_per_s": max(found.images_per_s for found in batches[name]),
                "peak_memory_gib": max(found.peak_gib for found in batches[name]),
            }
        )
    return rows
