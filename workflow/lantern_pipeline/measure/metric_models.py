"""Metric models: the models that evaluate generated images. Config section `metrics` selects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from lantern_pipeline.measure.clip_score import ClipScore
from lantern_pipeline.measure.fidelity import PublishedFidelity, ReconstructionFidelity
from lantern_pipeline.measure.registry import SET_KEYS, chosen
from lantern_pipeline.runtime.job import Job, execution_of
from lantern_pipeline.settings.run_config import MetricChoices
from lantern_pipeline.world.attribute_classifier import AttributeClassifier
from lantern_pipeline.world.clip import ClipModel

Device = torch.device | str


class ImageScore(Protocol):
    """Interface of a metric that gives every image a score, such as `ClipScore`."""

    def describe(self) -> dict[str, str | None]:
        """Return two columns of the result table that identify the model: its name and its weights' SHA-256."""
        ...

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Score images against their prompts.

        Args:
            images: float32 (n, 3, height, width) in [-1, 1].
            prompts: one per image.

        Returns:
            Column -> scores, float32 (n,), on the CPU.
        """
        ...


@dataclass(frozen=True)
class MetricModels:
    """All models that are needed to evaluate images, in evaluation mode and on one device.

    Attributes:
        tokenizer: image tokenizer, which decodes codes to images.
        target_model: the target model, which gives the likelihood of tokens.
        text_encoder: text encoder of the target.
        batch_size: number of images that are measured together.
        scores: metrics of single images.
        of_sets: key of config section `metrics` -> comparison of whole sets of images by features of one network, which
            gives FID and similar metrics. Empty if these metrics are off.
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
    """Load the tokenizer, the target model, and the models that config section `metrics` selects.

    Args:
        tokenizer: file of the image tokenizer.
        target: file of the target.
        text_encoder: text encoder of the target.
        files: name -> path of the files of the metric models, as from `registry.metric_files`.
        metrics: config section `metrics`.
        device: device of all models.
        batch_size: number of images that are measured together.
    """
    parts = load_parts(metrics, files, device)
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
    """Load the models that evaluate images in a Snakemake job, from the job's inputs and parameters.

    Args:
        snakemake: the job. Its inputs must include tokenizer, target and the files of `registry.metric_files`. Its
            parameter metrics must be config section `metrics`.
        text_encoder: text encoder of the target.
    """
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
    """Load the model of every metric that the config switches on.

    Args:
        metrics: config section `metrics`.
        files: files of the metric models, name -> path, see `registry.metric_files`.
        device: device of the models.

    Returns:
        Key of config section `metrics` -> loaded metric. A metric that is always measured has no config key. The name
        of its table column is the key instead.
    """
    return {key: load_part(choice.loader, metrics, files, device) for key, choice in chosen(metrics).items()}


def load_part(loader: str, metrics: MetricChoices, files: Mapping[str, str], device: Device) -> Any:
    """Load a metric by the function that the table of metrics names.

    Args:
        loader: name of the function, "<module of this package>:<function>".
        metrics: config section `metrics`.
        files: files of the metric models, name -> path, see `registry.metric_files`.
        device: device of the models.
    """
    module, name = loader.split(":")
    return getattr(import_module(f"lantern_pipeline.measure.{module}"), name)(metrics, files, device)


def check_metric_weights(metrics: MetricChoices, files: Mapping[str, str]) -> dict[str, str]:
    """Load every published metric model once, to find errors before hours of image generation.

    If generated images are to be compared with a folder of real images, the first few of these are opened as well.

    Args:
        metrics: config section `metrics`.
        files: name -> path of the published files that metrics need, as from `registry.published_files`.

    Returns:
        Key of config section metrics.published -> SHA-256 of the weights that it names.
    """
    hashes = {}
    for choice in chosen(metrics).values():
        if choice.weights:
            load_part(choice.loader, metrics, files, "cpu")
            hashes |= {name: resource_sha256(files[f"{name}_weights"]) for name in choice.weights}
    return hashes


def read_metric_model(path: Path, name: str, sizes: Mapping[str, int]) -> nn.Module:
    """Read an attribute classifier or CLIP model that another run has trained, and check its sizes.

    Args:
        path: file or folder of the model.
        name: "attribute_classifier" or "clip".
        sizes: config key -> required value, such as "data.image_size" -> 48. The last part of a key is compared with
            the field of this name in the model's config. Keys without such a field are ignored.

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
