"""Images that were drawn by the clock, with the seconds of each of the target's forwards: what the race shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from lantern.decoding_state import Generation
from lantern.io import load_tensors, save_tensors

KIND = "timed_images"


@dataclass
class TimedImages:
    """Images of many methods at one temperature; one per method and prompt.

    Attributes:
        prompt_ids: one per image.
        method_ids: one per image.
        codes: int32, (images, tokens).
        step_lengths: int16, (images, tokens): tokens emitted by each target forward, prefill first; zero-padded.
        step_seconds: float32, (images, tokens): of each of these forwards, drafting and checking included; zero-padded,
            each row sums to the image's seconds in the table of latency.
        is_draft: bool, (images, tokens): an accepted draft; the others are the target's own.
        is_substituted: bool, (images, tokens), as in `GenerationRecords`.
        metadata: methods (method id -> `MethodSpec.to_dict`), temperature, gpu (its name, or None), num_threads.
    """

    prompt_ids: list[str]
    method_ids: list[str]
    codes: torch.Tensor
    step_lengths: torch.Tensor
    step_seconds: torch.Tensor
    is_draft: torch.Tensor
    is_substituted: torch.Tensor
    metadata: dict[str, Any]


@dataclass(frozen=True)
class TimedImage:
    """One image as it was decoded at batch 1: its method as `MethodSpec.to_dict`, and the seconds of its forwards."""

    method: dict[str, Any]
    temperature: float
    prompt_id: str
    generation: Generation
    step_seconds: Sequence[float]


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
    save_tensors(path, tensors, {"kind": KIND, **metadata})


def load_timed_images(path: Path | str) -> TimedImages:
    """Reads images that `save_timed_images` wrote."""
    tensors, metadata = load_tensors(path)
    if metadata.pop("kind", None) != KIND:
        raise ValueError(f"{path} holds no timed images; delete it and run rule measure_latency again")
    return TimedImages(metadata.pop("prompt_ids"), metadata.pop("method_ids"), **tensors, metadata=metadata)
