"""Metric models: the models that evaluate generated images. Config section `metrics` selects them.

`files` maps names to the paths of their files, as from `registry.metric_files`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lantern.codebook import ImageModel
from lantern.models.stored import load_model
from lantern.models.target import Target
from lantern.prompts import Prompt, TextEncoder
from lantern_models.checkpoints.image_tokenizers import load_tokenizer
from lantern_models.checkpoints.target import load_target
from lantern_models.checkpoints.weight_files import check_equal, find_weights
from lantern_pipeline.fetch.manifest import resource_sha256
from lantern_pipeline.job.context import Job, execution_of
from lantern_pipeline.measure.quality.clip_score import ClipScore
from lantern_pipeline.measure.quality.fidelity import PublishedFidelity, ReconstructionFidelity
from lantern_pipeline.measure.registry import SET_KEYS, chosen
from lantern_pipeline.schema.run_config import MetricChoices
from lantern_pipeline.world.attribute_classifier import AttributeClassifier
from lantern_pipeline.world.clip import ClipModel

Device = torch.device | str


class ImageScore(Protocol):
    """Interface of a metric that gives every image a score, such as `ClipScore`."""

    def describe(self) -> dict[str, str | None]:
        """Return the columns of `describe_weights` for the model."""
        ...

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Return column -> scores, float32 (n,) on the CPU, of images (n, 3, height, width) in [-1, 1]."""
        ...


@dataclass(frozen=True)
class MetricModels:
    """All models that are needed to evaluate images, in evaluation mode and on one device.

    Attributes:
        scores: metrics of single images.
        of_sets: key of config section `metrics` -> metric of whole sets of images, such as FID, by features of one
            network.
    """

    tokenizer: ImageModel
    target_model: Target
    text_encoder: TextEncoder
    batch_size: int
    scores: Sequence[ImageScore] = ()
    of_sets: Mapping[str, ReconstructionFidelity | PublishedFidelity] = field(default_factory=dict)

    def describe(self) -> dict[str, str | None]:
        """Return the columns of the result table that identify all metric models and the preprocessing of images."""
        parts = [part.describe() for part in (*self.of_sets.values(), *self.scores)]
        return {name: value for part in parts for name, value in part.items()}

    def count_cut(self, prompts: Sequence[Prompt]) -> dict[str, int]:
        """Return a column per CLIP model with the number of prompts that it does not read to their end."""
        parts = [part.count_cut(prompts) for part in self.scores if isinstance(part, ClipScore)]
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
    """Load the tokenizer, the target, and the models that config section `metrics` selects, on one device."""
    parts = load_parts(metrics, files, device)
    # Metrics of sets give features, all others give scores.
    of_sets = {key: parts.pop(key) for key in SET_KEYS if key in parts}
    return MetricModels(
        load_tokenizer(tokenizer).to(device),
        load_target(target).to(device),
        text_encoder,
        batch_size,
        list(parts.values()),
        of_sets,
    )


def load_job_metric_models(snakemake: Job, text_encoder: TextEncoder) -> MetricModels:
    """Load them for a Snakemake job with inputs tokenizer, target and `files`, and parameter metrics."""
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
    """Load the metrics that are on, under the keys of `registry.chosen`."""
    return {key: load_part(choice.loader, metrics, files, device) for key, choice in chosen(metrics).items()}


def load_part(loader: str, metrics: MetricChoices, files: Mapping[str, str], device: Device) -> Any:
    """Load a metric by a function that is named as "<module of this package>:<function>"."""
    # Imported only now: some modules take seconds to import, or need packages that are optional.
    module, name = loader.split(":")
    return getattr(import_module(f"lantern_pipeline.measure.quality.{module}"), name)(metrics, files, device)


def check_metric_weights(metrics: MetricChoices, files: Mapping[str, str]) -> dict[str, str]:
    """Load every published metric model once, to find errors before hours of image generation.

    Returns:
        Key of config section metrics.published -> SHA-256 of the weights that it names.
    """
    hashes = {}
    for choice in chosen(metrics).values():
        # Only published weights exist before the run has trained its own models.
        if choice.weights:
            load_part(choice.loader, metrics, files, "cpu")
            hashes |= {name: resource_sha256(files[f"{name}_weights"]) for name in choice.weights}
    return hashes


def read_metric_model(path: Path, name: str, sizes: Mapping[str, int]) -> nn.Module:
    """Read an attribute classifier or CLIP model that another run has trained, and check its sizes.

    `sizes` maps config keys to required values, such as "data.image_size" -> 48.
    """
    file = find_weights(path)
    model = load_model(file, {"attribute_classifier": AttributeClassifier, "clip": ClipModel}[name])
    for key, value in sizes.items():
        # The last part of the key names the field in the model's config. Not every model has every size.
        field = key.rpartition(".")[2]
        if hasattr(model.config, field):
            check_equal(file, field, value, getattr(model.config, field), key)
    return model
