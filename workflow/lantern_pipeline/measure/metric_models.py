"""Metric models: the models that measure images, loaded as config section `metrics` chooses them."""

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
from lantern_pipeline.runtime.job import Job, execution_of
from lantern_pipeline.settings.run_config import MetricChoices
from lantern_pipeline.world.attribute_classifier import AttributeClassifier
from lantern_pipeline.world.clip import ClipModel

Device = torch.device | str


class ImageScore(Protocol):
    """Interface of a metric of single images, such as `ClipScore`."""

    def describe(self) -> dict[str, str | None]:
        """Return columns that name the model and the hash of its weights."""
        ...

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Score images against their prompts.

        Args:
            images: float32 (n, 3, S, S) in [-1, 1].
            prompts: one per image.

        Returns:
            column -> scores, (n,) float32, on the CPU.
        """
        ...


@dataclass(frozen=True)
class MetricModels:
    """Models that measure images, in evaluation mode and on one device."""

    tokenizer: ImageModel  # decodes codes to images
    target_model: Target  # gives the likelihood of tokens
    text_encoder: TextEncoder  # text encoder of the target
    batch_size: int  # images measured together
    scores: Sequence[ImageScore] = ()  # metrics of single images
    # metrics of sets of images; None if these are off
    fidelity: ClassifierFidelity | PublishedFidelity | None = None

    def describe(self) -> dict[str, str | None]:
        """Return columns that name the metric models: names, hashes of weights, preprocessing."""
        parts = [part.describe() for part in (self.fidelity, *self.scores) if part is not None]
        return {name: value for part in parts for name, value in part.items()}

    @property
    def device(self) -> torch.device:
        """Device of the models."""
        return self.target_model.device


def load_metric_models(
    tokenizer: str,
    target: str,
    text_encoder: TextEncoder,
    files: Mapping[str, str],
    metrics: MetricChoices,
    device: Device,
    batch_size: int,
) -> MetricModels:
    """Load the tokenizer, the target model, and the models that config section `metrics` chooses."""
    parts = load_parts(metrics, files, device)
    fidelity = parts.pop(FIDELITY, None)
    return MetricModels(
        load_tokenizer(tokenizer).to(device),
        load_target(target).to(device),
        text_encoder,
        batch_size,
        list(parts.values()),
        fidelity,
    )


def load_job_metric_models(snakemake: Job, text_encoder: TextEncoder) -> MetricModels:
    """Load the metric models of a job from its inputs and parameters, as `load_metric_models` does."""
    files = snakemake.input
    execution = execution_of(snakemake)
    return load_metric_models(
        files.tokenizer,
        files.target,
        text_encoder,
        dict(files.items()),
        MetricChoices(**snakemake.params.metrics),
        execution.device,
        execution.scoring_batch_size,
    )


def load_parts(metrics: MetricChoices, files: Mapping[str, str], device: Device) -> dict[str, Any]:
    """Load the metric of every key of config section `metrics` that is on."""
    return {key: load_part(choice.loader, metrics, files, device) for key, choice in chosen(metrics).items()}


def load_part(loader: str, metrics: MetricChoices, files: Mapping[str, str], device: Device) -> Any:
    """Call a loader, "<module of this package>:<function>", as in `Choice.loader`."""
    module, name = loader.split(":")
    return getattr(import_module(f"lantern_pipeline.measure.{module}"), name)(metrics, files, device)


def check_metric_weights(metrics: MetricChoices, files: Mapping[str, str]) -> dict[str, str]:
    """Load every published metric model once, and open the first real images.

    Errors thus appear before hours of generation.

    Returns:
        Key of metrics.published -> SHA-256 of its weights.
    """
    hashes = {}
    for choice in chosen(metrics).values():
        if choice.weights:
            load_part(choice.loader, metrics, files, "cpu")
            hashes |= {name: resource_sha256(files[f"{name}_weights"]) for name in choice.weights}
    return hashes


def read_metric_model(path: Path, name: str, sizes: Mapping[str, int]) -> nn.Module:
    """Read an attribute_classifier or clip that another run trained.

    Args:
        path: the model's file or folder.
        name: "attribute_classifier" or "clip".
        sizes: config key -> required size.

    Raises:
        ValueError: a size of the model differs from `sizes`.
    """
    file = find_weights(path)
    model = load_model(file, {"attribute_classifier": AttributeClassifier, "clip": ClipModel}[name])
    for key, value in sizes.items():
        field = key.rpartition(".")[2]
        if hasattr(model.config, field):
            check_equal(file, field, value, getattr(model.config, field), key)
    return model
