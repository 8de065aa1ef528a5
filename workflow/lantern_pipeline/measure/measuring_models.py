"""What images are measured with, loaded as config section `metrics` chooses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lantern.checkpoints.files import check_equal, find_weights
from lantern.checkpoints.native import load_model
from lantern.checkpoints.target import load_target
from lantern.checkpoints.tokenizers import ImageModel, load_tokenizer
from lantern.models.target import Target
from lantern.prompts import Prompt
from lantern.text_encoders.base import TextEncoder
from lantern_pipeline.fetch.manifest import resource_sha256
from lantern_pipeline.measure.fidelity import ClassifierFidelity, PublishedFidelity
from lantern_pipeline.measure.registry import FIDELITY, chosen
from lantern_pipeline.settings.run_config import MetricChoices
from lantern_pipeline.world.attribute_classifier import AttributeClassifier
from lantern_pipeline.world.clip import ClipModel

Device = torch.device | str


class ImageScore(Protocol):
    """What measures single images, such as `ClipScore`."""

    def describe(self) -> dict[str, str | None]:
        """Says in columns of a row what measures."""
        ...

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Scores images (n, 3, S, S) in [-1, 1] of their prompts: column -> (n,) float32, on the CPU."""
        ...


@dataclass(frozen=True)
class MeasuringModels:
    """What images are measured with; models are in evaluation mode and on one device."""

    tokenizer: ImageModel  # draws images from codes
    target_model: Target  # gives tokens their likelihood
    text_encoder: TextEncoder  # of the target
    batch_size: int  # images measured together
    scores: Sequence[ImageScore] = ()  # what measures single images
    # what measures sets of images; None where nothing does
    fidelity: ClassifierFidelity | PublishedFidelity | None = None

    def describe(self) -> dict[str, str | None]:
        """Says in columns of a row what measures: names, hashes of weights, preprocessing."""
        parts = [part.describe() for part in (self.fidelity, *self.scores) if part is not None]
        return {name: value for part in parts for name, value in part.items()}

    @property
    def device(self) -> torch.device:
        """Where the models lie."""
        return self.target_model.device


def load_measuring_models(
    tokenizer: str,
    target: str,
    text_encoder: TextEncoder,
    files: Mapping[str, str],
    metrics: MetricChoices,
    device: Device,
    batch_size: int,
) -> MeasuringModels:
    """Loads the tokenizer and the target model, and what config section `metrics` measures with."""
    parts = load_parts(metrics, files, device)
    fidelity = parts.pop(FIDELITY, None)
    return MeasuringModels(
        load_tokenizer(tokenizer).to(device),
        load_target(target).to(device),
        text_encoder,
        batch_size,
        list(parts.values()),
        fidelity,
    )


def load_parts(metrics: MetricChoices, files: Mapping[str, str], device: Device) -> dict[str, Any]:
    """Loads what every key of config section `metrics` that is on measures with."""
    return {key: load_part(choice.loader, metrics, files, device) for key, choice in chosen(metrics).items()}


def load_part(loader: str, metrics: MetricChoices, files: Mapping[str, str], device: Device) -> Any:
    """Calls a function of a module beside this one, `Choice.loader`."""
    module, name = loader.split(":")
    return getattr(import_module(f"lantern_pipeline.measure.{module}"), name)(metrics, files, device)


def check_metric_weights(metrics: MetricChoices, files: Mapping[str, str]) -> dict[str, str]:
    """Loads every published model that config section `metrics` measures with, one after the other, and opens the first
    real images, before hours of generation depend on them: key of metrics.published -> SHA-256 of its weights.
    """
    hashes = {}
    for choice in chosen(metrics).values():
        if choice.weights:
            load_part(choice.loader, metrics, files, "cpu")
            hashes |= {name: resource_sha256(files[f"{name}_weights"]) for name in choice.weights}
    return hashes


def read_measuring_model(path: Path, name: str, sizes: Mapping[str, int]) -> nn.Module:
    """Reads an attribute_classifier or a clip of another run; a ValueError names a size, of `sizes` by config key, that
    it does not have.
    """
    file = find_weights(path)
    model = load_model(file, {"attribute_classifier": AttributeClassifier, "clip": ClipModel}[name])
    for key, value in sizes.items():
        field = key.rpartition(".")[2]
        if hasattr(model.config, field):
            check_equal(file, field, value, getattr(model.config, field), key)
    return model
