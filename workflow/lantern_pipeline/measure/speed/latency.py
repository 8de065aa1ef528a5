"""Latency at batch 1. The timed images are stored, so that an HTML page can replay them.

Methods take turns image by image, so that slow changes in the machine's speed affect all of them equally. The prompts
are decoded in several rounds, and only the fastest time of each prompt counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from tqdm import tqdm

from lantern.decoding import Decoder
from lantern.generation import decode_timed
from lantern.io import load_tensors, save_tensors
from lantern.prompts import Prompt, TextEncoder
from lantern.state import Generation
from lantern_pipeline.job.machine import describe_machine, name_processor
from lantern_pipeline.measure.speed.clocks import Moment, now, seconds_between

COLUMNS = ["method_id", "temperature", "stepping", "prompt_id", "round", "seconds", "cpu_seconds", "busy_elsewhere"]
COLUMNS += ["target_forwards", "machine"]


@dataclass(frozen=True)
class TimedImage:
    """Image whose decoding at batch 1 was timed. `step_seconds` begin with the prefill and fill the whole time."""

    method: dict[str, Any]
    temperature: float
    prompt_id: str
    generation: Generation
    step_seconds: Sequence[float]


def measure_latency(
    decoders: Sequence[Decoder],
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    *,
    run_seed: int,
    num_warmup: int,
    num_rounds: int = 1,
) -> tuple[pd.DataFrame, list[TimedImage]]:
    """Return the rows of all rounds of `time_rounds`, and the fastest image of each decoder and prompt."""
    options = {"run_seed": run_seed, "num_warmup": num_warmup, "num_rounds": num_rounds}
    parts, fastest = [], {}
    for rows, images in time_rounds(decoders, prompts, encoder, **options):
        parts.append(rows)
        for image in images:
            key = (image.method["method_id"], image.temperature, image.prompt_id)
            if key not in fastest or sum(image.step_seconds) < sum(fastest[key].step_seconds):
                fastest[key] = image
    return pd.concat(parts, ignore_index=True), list(fastest.values())


def time_rounds(
    decoders: Sequence[Decoder],
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    *,
    run_seed: int,
    num_warmup: int,
    num_rounds: int,
) -> Iterator[tuple[pd.DataFrame, list[TimedImage]]]:
    """Time several decoders, one per method, and yield (rows, images) of each round.

    A round decodes every prompt once with each decoder. The first `num_warmup` images of each decoder are not counted.
    CUDA graphs need at least one such image, with which they are captured. Columns of `rows` are COLUMNS, among them

    - stepping: how decoding steps ran, "eager" or "graph". Decoders that run as CUDA graphs are timed in both ways, but
      `images` has only the images of the graphs.
    - seconds: wall-clock time without text encoding, making of noise, and decoding of codes to pixels.
    - cpu_seconds: CPU time of this process, summed over all cores.
    - busy_elsewhere: number of cores that other processes kept busy, nan if psutil is not installed.
    - machine: name of the processor that decoded.
    """
    processor = name_processor(describe_machine(), decoders[0].device.type)
    timed = []
    for decoder in decoders:
        timed += [decoder] if decoder.runner.mode == "eager" else [decoder.stepped("eager"), decoder]
    rows, images = [], []
    # Negative turns are the warm-up. In Python, % makes indices of them, too.
    turns = range(-num_warmup, num_rounds * len(prompts))
    for turn in tqdm(turns, desc="latency", unit="image of each method", disable=None):
        prompt = prompts[turn % len(prompts)]
        for offset in range(len(timed)):
            # The order rotates by one from turn to turn, so that no decoder always goes first.
            decoder = timed[(offset + turn) % len(timed)]
            with _watching(decoder) as watch:
                generation, seconds = decode_timed(decoder, [prompt], encoder, run_seed)
            if turn < 0:
                continue
            method, temperature = decoder.spec.to_dict(), decoder.sampling.temperature
            setting = (method["method_id"], temperature, decoder.runner.mode, prompt.id, turn // len(prompts))
            process, machine = watch.core_seconds
            # CPU seconds of other processes per second of decoding: a number of cores.
            elsewhere = (machine - process) / seconds
            rows.append((*setting, seconds, process, elsewhere, int(generation.target_forwards[0]), processor))
            if decoder in decoders:  # not the eager copy of one
                seconds_of_steps = _step_seconds(watch.marks, seconds)
                images.append(TimedImage(method, temperature, prompt.id, generation, seconds_of_steps))
        if turn >= 0 and (turn + 1) % len(prompts) == 0:
            yield pd.DataFrame(rows, columns=COLUMNS), images
            rows, images = [], []


@dataclass
class _Watch:
    """Times of one image, which is decoded in the `with` block of `_watching`.

    Attributes:
        marks: start of each forward pass, prefill first.
        core_seconds: difference of `_core_seconds` between begin and end, once the block has ended.
    """

    marks: list[Moment] = field(default_factory=list)
    core_seconds: np.ndarray = field(default_factory=lambda: np.zeros(2))


@contextmanager
def _watching(decoder: Decoder) -> Iterator[_Watch]:
    watch = _Watch()

    def mark() -> None:
        if not watch.marks:
            # At the first forward pass, so that text encoding and noise do not count. Negative: the end is added below.
            watch.core_seconds = -_core_seconds()
        watch.marks.append(now(decoder.device))

    decoder.on_forward = mark
    try:
        yield watch
        watch.core_seconds += _core_seconds()
    finally:
        decoder.on_forward = None


def _core_seconds() -> np.ndarray:
    """Return the seconds of CPU work so far, summed over all cores: of this process, and of the whole machine."""
    try:
        import psutil
    except ModuleNotFoundError:
        # A machine for `make gpu-check` may have no psutil.
        return np.array([time.process_time(), np.nan])
    times = psutil.cpu_times()._asdict()
    # Low-priority processes, waiting for disks and time that other virtual machines took all disturb a timing, so they
    # count. Linux counts guest time within user and nice time.
    busy = sum(seconds for name, seconds in times.items() if name not in ("idle", "guest", "guest_nice"))
    return np.array([time.process_time(), busy])


def _step_seconds(marks: Sequence[Moment], seconds: float) -> list[float]:
    begun = [seconds_between(marks[0], mark) for mark in marks]
    # The last step ends with the image. On a GPU, marks are CUDA events and `seconds` is of the host's clock: no step
    # may become negative.
    return np.diff([*begun, max(seconds, begun[-1])]).tolist()


@dataclass
class TimedImages:
    """Timed images of several methods at one temperature, one per method and prompt, as tensors (images, tokens).

    Attributes:
        step_lengths: number of tokens that each forward pass emitted, prefill first, int16. Padded with zeros.
        step_seconds: seconds of each forward pass with drafting and verification, float32. Padded with zeros. Their sum
            is the time of the image in the table of latencies.
        is_draft: whether a token is an accepted draft. The target samples the other tokens.
        is_substituted: whether a token is a substitution.
        metadata: methods (method id -> dict from `MethodSpec.to_dict`), temperature, gpu (name of the GPU, or None),
            and num_threads.
    """

    prompt_ids: list[str]
    method_ids: list[str]
    codes: torch.Tensor
    step_lengths: torch.Tensor
    step_seconds: torch.Tensor
    is_draft: torch.Tensor
    is_substituted: torch.Tensor
    metadata: dict[str, Any]


def accepted_drafts(generation: Generation) -> torch.Tensor:
    """Compute `TimedImages.is_draft` of one image, (1, tokens)."""
    # A forward pass emits the drafts that it accepts, and then one bonus token. The prefill emits one token and no
    # draft. At the image's end there may be no bonus token.
    emitted = F.pad(generation.accepted_lengths, (1, 0)) + 1  # (1, forward passes), as if the image did not end
    bonus = emitted.cumsum(1) - 1  # positions of the bonus tokens
    is_draft = torch.ones_like(generation.codes, dtype=torch.bool)
    is_draft[0, bonus[bonus < is_draft.shape[1]]] = False
    return is_draft


def join_timed_images(images: Sequence[TimedImage]) -> TimedImages:
    """Stack timed images of one temperature and one target."""
    num_tokens = images[0].generation.codes.shape[1]
    seconds = [torch.tensor(image.step_seconds) for image in images]
    device = images[0].generation.codes.device
    return TimedImages(
        prompt_ids=[image.prompt_id for image in images],
        method_ids=[image.method["method_id"] for image in images],
        codes=torch.cat([image.generation.codes.int() for image in images]),
        step_lengths=torch.cat([image.generation.step_lengths.short() for image in images]),
        # An image has at most one forward pass per token.
        step_seconds=torch.stack([F.pad(found, (0, num_tokens - len(found))) for found in seconds]),
        is_draft=torch.cat([accepted_drafts(image.generation) for image in images]),
        is_substituted=torch.cat([image.generation.is_substituted for image in images]),
        metadata={
            "methods": {image.method["method_id"]: image.method for image in images},
            "temperature": images[0].temperature,
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
            "num_threads": torch.get_num_threads(),
        },
    )


def save_timed_images(path: Path | str, images: Sequence[TimedImage]) -> None:
    """Write timed images of one temperature to a safetensors file. Its tensors have the names of the fields."""
    timed = join_timed_images(images)
    tensors = {
        "codes": timed.codes,
        "step_lengths": timed.step_lengths,
        "step_seconds": timed.step_seconds,
        "is_draft": timed.is_draft,
        "is_substituted": timed.is_substituted,
    }
    save_tensors(path, tensors, {"prompt_ids": timed.prompt_ids, "method_ids": timed.method_ids, **timed.metadata})


def load_timed_images(path: Path | str) -> TimedImages:
    """Read timed images from a file that `save_timed_images` wrote."""
    tensors, metadata = load_tensors(path)
    return TimedImages(metadata.pop("prompt_ids"), metadata.pop("method_ids"), **tensors, metadata=metadata)
