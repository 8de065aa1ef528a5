"""Publication of trained weights, rounded to bfloat16, with a description of their training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lantern.io import load_tensors, save_tensors
from lantern_pipeline.archive.provenance import describe_code, describe_environment, publishable_config
from lantern_pipeline.fetch.manifest import describe_file
from lantern_pipeline.job.machine import describe_machine

# Sections of the config that decide the weights.
SECTIONS = ("data", "text", "tokenizer", "target", "drafter", "attribute_classifier", "clip", "sampling")


def round_model(source: Path | str, destination: Path | str, more: Mapping[str, object]) -> None:
    """Write a model, a file in Lantern's layout, with rounded weights, and with `more` in its metadata."""
    tensors, metadata = load_tensors(source)
    rounded = {name: tensor.bfloat16() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_tensors(destination, rounded, {**metadata, **more})


def describe_training(
    config: Mapping[str, Any], reports: Mapping[str, Mapping[str, Any]], files: Mapping[str, Path]
) -> dict[str, object]:
    """Return how the published weights were made, as JSON values.

    Args:
        config: config of the run that trained them.
        reports: model -> contents of report.json, which its training wrote.
        files: model -> file of its rounded weights.
    """
    # Without the fingerprints: they belong to the scripts of one commit, which is stated.
    code = describe_code()
    return {
        "code": {key: code[key] for key in ("version", "commit", "is_modified")},
        "machine": describe_machine(),
        "environment": describe_environment(),
        # Rule publish_weights takes the models of the first training seed.
        "seeds": {"seed": config["seed"], "training_seed": config["repeats"]["training_seeds"][0]},
        "config": publishable_config({section: config[section] for section in SECTIONS}),
        "models": {name: _describe_model(files[name], report) for name, report in reports.items()},
    }


def _describe_model(file: Path, report: Mapping[str, Any]) -> dict[str, object]:
    last = report["history"][-1]
    return {
        "file": file.name,
        "sha256": describe_file(file)["sha256"],
        "bytes": file.stat().st_size,
        "num_parameters": sum(tensor.numel() for tensor in load_tensors(file)[0].values()),
        "num_steps": last["step"] + 1,  # steps are counted from 0
        "hours": round(last["elapsed_s"] / 3600, 3),
        "report": dict(report),
    }
