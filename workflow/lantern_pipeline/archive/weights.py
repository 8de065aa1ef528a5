"""The trained weights of the embedded world as they are published: rounded, with their sums and how they were made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lantern.io import load_tensors, save_tensors
from lantern_pipeline.archive.provenance import describe_code, describe_environment, publishable_config
from lantern_pipeline.fetch.manifest import describe_file
from lantern_pipeline.runtime.machine import describe_machine

MAX_BYTES = 16_000_000  # of all weights together: they lie in the repository
NUM_POINTS = 60  # of a published loss curve, beside those that were measured on held-out images
# Sections of the config that decide the weights.
SECTIONS = ("data", "text", "tokenizer", "target", "drafter", "attribute_classifier", "clip", "sampling")


def round_model(source: Path | str, destination: Path | str, more: Mapping[str, Any]) -> None:
    """Writes a model in our own layout with every number of its weights in bfloat16; `more` joins its report."""
    tensors, metadata = load_tensors(source)
    rounded = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_tensors(destination, rounded, {**metadata, **more})


def describe_training(
    config: Mapping[str, Any], reports: Mapping[str, Mapping[str, Any]], files: Mapping[str, Path]
) -> dict[str, Any]:
    """Says as JSON values what made the rounded weights `files`, at most MAX_BYTES, by the `reports` of training."""
    models = {name: _describe_model(files[name], report) for name, report in reports.items()}
    if (size := sum(model["bytes"] for model in models.values())) > MAX_BYTES:
        raise ValueError(
            f"the weights must have at most {MAX_BYTES / 1e6:g} MB to lie in the repository, got {size / 1e6:.1f}; "
            "train smaller models"
        )
    code = describe_code()
    return {
        "code": {key: code[key] for key in ("version", "commit", "is_modified")},
        "machine": describe_machine(),
        "environment": describe_environment(),
        "seeds": {"seed": config["seed"], "training_seed": config["repeats"]["training_seeds"][0]},
        "config": publishable_config({section: config[section] for section in SECTIONS}),
        "models": models,
    }


def list_sums(training: Mapping[str, Any]) -> str:
    """The SHA-256 of every weight file, in the form of sha256sum."""
    return "".join(f"{model['sha256']}  {model['file']}\n" for model in training["models"].values())


def hours_of(history: Sequence[Mapping[str, float]]) -> float:
    """Hours of a training from its logged entries, whose `elapsed_s` may start again where it was interrupted."""
    seconds = [entry["elapsed_s"] for entry in history]
    ends = [last for last, following in zip(seconds, [*seconds[1:], 0.0], strict=True) if following < last]
    return sum(ends) / 3600


def thin_history(history: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """NUM_POINTS entries spread over a training, the last one and those on held-out images; five digits a number."""
    stride = math.ceil(len(history) / NUM_POINTS)
    kept = [
        entry
        for number, entry in enumerate(history, start=1)
        if number % stride == 1 % stride or number == len(history) or any(key.startswith("val_") for key in entry)
    ]
    return [{key: float(f"{value:.5g}") if key != "step" else value for key, value in entry.items()} for entry in kept]


def _describe_model(file: Path, report: Mapping[str, Any]) -> dict[str, Any]:
    history = report["history"]
    return {
        "file": file.name,
        "sha256": describe_file(file)["sha256"],
        "bytes": file.stat().st_size,
        "num_parameters": sum(tensor.numel() for tensor in load_tensors(file)[0].values()),
        "num_steps": history[-1]["step"] + 1,
        "hours": round(hours_of(history), 3),
        "report": {**report, "history": thin_history(history)},
    }
