"""What is published beside the trained weights of the embedded world: how they were made, and a page that says it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lantern_pipeline.archive.provenance import describe_code, describe_environment, publishable_config
from lantern_pipeline.downloads.manifest import SUMS, describe_file
from lantern_pipeline.runtime.machine import describe_machine, name_machine

MAX_BYTES = 16_000_000  # of all weights together: they lie in the repository
NUM_POINTS = 60  # of a published loss curve, beside those that were measured on held-out images
# Sections of the config that decide the weights.
SECTIONS = ("data", "text", "tokenizer", "target", "drafter", "attribute_classifier", "clip", "sampling")
# What rounding might change -> its row: words, digits.
ROUNDED = {
    "val_cross_entropy": ("target: cross-entropy (nats / token)", 4),
    "val_acceptance_1": ("draft model: share of first drafts accepted", 4),
    "val_expected_length": ("draft model: expected tokens / forward", 3),
    "psnr_db": ("tokenizer: PSNR (dB)", 2),
    "reconstruction_accuracy": ("tokenizer: share of attributes read off its images", 4),
    "classifier_accuracy": ("attribute classifier: share of attributes read", 4),
    "image_to_text_accuracy": ("CLIP: caption found among 32", 4),
    "text_to_image_accuracy": ("CLIP: image found among 32", 4),
}


def describe_training(
    config: Mapping[str, Any],
    reports: Mapping[str, Mapping[str, Any]],
    files: Mapping[str, Path],
    rounding: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Says as JSON values what made the weights `files`, rounded ones; `reports` are those of their training, by model,
    `rounding` what was measured "before" and "after" it. Refuses more than MAX_BYTES.
    """
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
        "rounding": rounding,
    }


def list_sums(training: Mapping[str, Any]) -> str:
    """The SHA-256 of every weight file, in the form of sha256sum."""
    return "".join(f"{model['sha256']}  {model['file']}\n" for model in training["models"].values())


def render_readme(training: Mapping[str, Any]) -> str:
    """The page beside the weights, in Markdown, of what `describe_training` says."""
    models, code = training["models"], training["code"]
    hours = sum(model["hours"] for model in models.values())
    commit = f"{code['commit'] or 'unknown'}{', modified' if code['is_modified'] else ''}"
    seeds = " and ".join(f"`{name}` {value}" for name, value in training["seeds"].items())
    table = [
        f"| `{model['file']}` | {model['num_parameters']:,} | {model['bytes'] / 1e6:.2f} | {model['num_steps']:,} | "
        f"{model['hours']:.2f} | `{model['sha256']}` |"
        for model in models.values()
    ]
    before, after = (training["rounding"][key] for key in ("before", "after"))
    rounded = [
        f"| {words} | {before[key]:.{digits}f} | {after[key]:.{digits}f} |" for key, (words, digits) in ROUNDED.items()
    ]
    return _PAGE.format(
        num_train=f"{training['config']['data']['num_train']:,}",
        commit=commit,
        version=code["version"],
        hours=f"{hours:.1f}",
        machine=name_machine(training["machine"]),
        packages=f"{training['environment']['python']}, torch {training['environment']['packages']['torch']}",
        seeds=seeds,
        table="\n".join(table),
        rounded="\n".join(rounded),
        sums=SUMS,
    )


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
    from lantern.io import load_tensors

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


_PAGE = """# Trained weights of the embedded world

What the default run draws and measures with, and `lantern sample` without any run. `make train` makes this folder
again: it trains on {num_train} scenes by `experiments/embedded_training.yaml` and writes what rule `publish_weights`
measured; this page too.

- Code: Lantern {version}, commit {commit}.
- Trained for {hours} hours on {machine}; {packages}.
- Seeds: {seeds}.
- `training.json` has the config, the reports and the loss curves; `{sums}` is what `sha256sum --check` reads, and what
  every job compares a file with before it is used.

| file | numbers | MB | steps | hours | SHA-256 |
| --- | ---: | ---: | ---: | ---: | --- |
{table}

## How good they are

Training leaves float32; the files hold bfloat16, half as much. Measured on held-out scenes with all five models as they
were trained, and with all five as they are here:

| | trained | here |
| --- | ---: | ---: |
{rounded}

## Loss curves

![Loss against optimiser steps, a panel per model](loss_curves.png)
"""
