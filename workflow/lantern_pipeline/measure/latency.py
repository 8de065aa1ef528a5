"""Latency at batch 1: every method draws the same prompts in turn, so that a drift of the machine hits all alike, and
all of them again in later rounds, of which the least time counts; and the images that were drawn by the clock, with the
seconds of each of the target's forwards, for the demo page.
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
import psutil
import torch
import torch.nn.functional as F
from tqdm import tqdm

from lantern.decoding import Decoder
from lantern.decoding_state import Generation
from lantern.generation import decode_timed
from lantern.io import load_tensors, save_tensors
from lantern.prompts import Prompt
from lantern.text_encoders.base import TextEncoder
from lantern_pipeline.runtime.machine import describe_machine, name_processor

COLUMNS = ["method_id", "temperature", "stepping", "prompt_id", "round", "seconds", "cpu_seconds", "busy_elsewhere"]
COLUMNS += ["target_forwards", "machine"]


@dataclass(frozen=True)
class TimedImage:
    """One image as it was decoded at batch 1: its method as `MethodSpec.to_dict`, and the seconds of its forwards."""

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
    """Times decoders image by image at batch 1, interleaved; a round is all prompts.

    The order of the decoders is turned by one place from image to image, so that none profits from its neighbour. The
    first `num_warmup` images of each decoder are not counted. Decoders whose steps are captured are timed eagerly, too,
    but for the images; captures need a warm-up image.

    Returns:
        (a row per decoder, stepping, prompt and round, COLUMNS: seconds by the clock, without text encoding, noise and
        image decoding, those of the process on all its cores, how many cores other work kept busy meanwhile, and the
        name of the processor that decoded; the images, each of its fastest round, with the seconds of their forwards).
    """
    processor = name_processor(describe_machine(), decoders[0].device.type)
    timed = []
    for decoder in decoders:
        timed += [decoder] if decoder.runner.mode == "eager" else [decoder.stepped("eager"), decoder]
    rows, images = [], {}
    turns = range(-num_warmup, num_rounds * len(prompts))
    for turn in tqdm(turns, desc="latency", unit="image of each method", disable=None):
        prompt = prompts[turn % len(prompts)]
        for place in range(len(timed)):
            decoder = timed[(place + turn) % len(timed)]
            with _watching(decoder) as watch:
                generation, seconds = decode_timed(decoder, [prompt], encoder, run_seed)
            if turn < 0:
                continue
            method, temperature = decoder.spec.to_dict(), decoder.sampling.temperature
            setting = (method["method_id"], temperature, decoder.runner.mode, prompt.id, turn // len(prompts))
            own, machine = watch.core_seconds
            rows.append(
                (*setting, seconds, own, (machine - own) / seconds, int(generation.target_forwards[0]), processor)
            )
            image = TimedImage(method, temperature, prompt.id, generation, _step_seconds(watch.marks, seconds))
            key = (id(decoder), prompt.id)
            if decoder in decoders and (key not in images or sum(image.step_seconds) < sum(images[key].step_seconds)):
                images[key] = image
    return pd.DataFrame(rows, columns=COLUMNS), list(images.values())


@dataclass
class _Watch:
    """When the forwards of an image began, prefill first, and the core-seconds of this process and of the machine."""

    marks: list[float | torch.cuda.Event] = field(default_factory=list)
    core_seconds: np.ndarray = field(default_factory=lambda: np.zeros(2))


@contextmanager
def _watching(decoder: Decoder) -> Iterator[_Watch]:
    """Watch an image being decoded: note when its forwards begin, and the core-seconds from the first on."""
    watch = _Watch()

    def mark() -> None:
        if not watch.marks:
            watch.core_seconds = -_core_seconds()
        watch.marks.append(_now(decoder.device))

    decoder.on_forward = mark
    try:
        yield watch
        watch.core_seconds += _core_seconds()
    finally:
        decoder.on_forward = None


def _core_seconds() -> np.ndarray:
    """Core-seconds so far: those of this process, and those that no core of the machine was idle for.

    Nice time, waiting for disks and what other virtual machines took count as well: all of them disturb a timing.
    """
    times = psutil.cpu_times()._asdict()
    # Linux counts guest time within user and nice time.
    busy = sum(seconds for name, seconds in times.items() if name not in ("idle", "guest", "guest_nice"))
    return np.array([time.process_time(), busy])


def _now(device: torch.device) -> float | torch.cuda.Event:
    """The clock's time; on a GPU an event in its queue, for which nothing waits."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _step_seconds(marks: Sequence[float | torch.cuda.Event], seconds: float) -> list[float]:
    """Seconds of each forward of an image that took `seconds`; the last forward lasts to the image's end."""
    events = [mark for mark in marks if isinstance(mark, torch.cuda.Event)]
    times = [mark for mark in marks if isinstance(mark, float)]
    # Marks are of one kind.
    begun = [events[0].elapsed_time(event) / 1000 for event in events] or [mark - times[0] for mark in times]
    return np.diff([*begun, max(seconds, begun[-1])]).tolist()


@dataclass
class TimedImages:
    """Images of many methods at one temperature; one per method and prompt."""

    prompt_ids: list[str]  # one per image
    method_ids: list[str]  # one per image
    codes: torch.Tensor  # int32, (images, tokens)
    # int16, (images, tokens): tokens emitted by each target forward, prefill first; zero-padded
    step_lengths: torch.Tensor
    # float32, (images, tokens): of each of these forwards, drafting and checking included; zero-padded, each row sums
    # to the image's seconds in the table of latency
    step_seconds: torch.Tensor
    is_draft: torch.Tensor  # bool, (images, tokens): an accepted draft; the others are the target's own
    is_substituted: torch.Tensor  # bool, (images, tokens), as in `GenerationRecords`
    # methods (method id -> `MethodSpec.to_dict`), temperature, gpu (its name, or None), num_threads
    metadata: dict[str, Any]


def accepted_drafts(generation: Generation) -> torch.Tensor:
    """Which tokens of an image that was decoded alone are accepted drafts: bool, (1, tokens).

    A forward emits the drafts that it accepts and then one token of the target's own, unless the image ends before.
    """
    emitted = F.pad(generation.accepted_lengths, (1, 0)) + 1  # (1, forwards), the end of the image notwithstanding
    own = emitted.cumsum(1) - 1
    is_draft = torch.ones_like(generation.codes, dtype=torch.bool)
    is_draft[0, own[own < is_draft.shape[1]]] = False
    return is_draft


def save_timed_images(path: Path | str, images: Sequence[TimedImage]) -> None:
    """Writes images of one temperature into one safetensors file, which `load_timed_images` reads."""
    num_tokens = images[0].generation.codes.shape[1]
    seconds = [torch.tensor(image.step_seconds) for image in images]
    tensors = {
        "codes": torch.cat([image.generation.codes.int() for image in images]),
        "step_lengths": torch.cat([image.generation.step_lengths.short() for image in images]),
        "step_seconds": torch.stack([F.pad(found, (0, num_tokens - len(found))) for found in seconds]),
        "is_draft": torch.cat([accepted_drafts(image.generation) for image in images]),
        "is_substituted": torch.cat([image.generation.is_substituted for image in images]),
    }
    device = images[0].generation.codes.device
    metadata = {
        "prompt_ids": [image.prompt_id for image in images],
        "method_ids": [image.method["method_id"] for image in images],
        "methods": {image.method["method_id"]: image.method for image in images},
        "temperature": images[0].temperature,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "num_threads": torch.get_num_threads(),
    }
    save_tensors(path, tensors, metadata)


def load_timed_images(path: Path | str) -> TimedImages:
    """Reads images that `save_timed_images` wrote."""
    tensors, metadata = load_tensors(path)
    return TimedImages(metadata.pop("prompt_ids"), metadata.pop("method_ids"), **tensors, metadata=metadata)
