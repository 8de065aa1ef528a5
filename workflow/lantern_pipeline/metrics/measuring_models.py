"""What images are measured with, loaded as config section `metrics` chooses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lantern.checkpoints.files import compare_with_config, find_weights
from lantern.checkpoints.native import load_model
from lantern.models.target import TargetModel
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern_pipeline.data.image_files import Preprocessing
from lantern_pipeline.downloads.manifest import resource_path, resource_sha256
from lantern_pipeline.metrics.clip_score import ClipScore, load_open_clip
from lantern_pipeline.metrics.feature_extractors import Extractor, load_inception, load_vgg16
from lantern_pipeline.metrics.fidelity import ClassifierFidelity, PublishedFidelity
from lantern_pipeline.metrics.prompt_accuracy import AccuracyScore
from lantern_pipeline.metrics.reference_statistics import INCEPTION, VGG16, check_images, load_reference
from lantern_pipeline.metrics.registry import MetricFiles, chosen
from lantern_pipeline.world.attribute_classifier import AttributeClassifier
from lantern_pipeline.world.clip import ClipModel, ClipScorer
from lantern_pipeline.world.tokenizer import load_tokenizer

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
    """What images are measured with; models are in evaluation mode and on one device.

    Attributes:
        tokenizer: draws images from codes.
        target_model: gives tokens their likelihood.
        text_encoder: of the target.
        scores: what measures single images.
        fidelity: what measures sets of images; None where nothing does.
    """

    tokenizer: nn.Module
    target_model: TargetModel
    text_encoder: TextEncoder
    scores: Sequence[ImageScore] = ()
    fidelity: ClassifierFidelity | PublishedFidelity | None = None

    def describe(self) -> dict[str, Any]:
        """Says in columns of a row what measures: names, hashes of weights, preprocessing."""
        parts = [part.describe() for part in (self.fidelity, *self.scores) if part is not None]
        return {name: value for part in parts for name, value in part.items()}

    @property
    def device(self) -> torch.device:
        """Where the models lie."""
        return self.target_model.head.weight.device


def load_measuring_models(
    tokenizer: str,
    target: str,
    text_encoder: TextEncoder,
    files: MetricFiles,
    metrics: Mapping[str, Any],
    device: Device,
) -> MeasuringModels:
    """Loads the tokenizer and the target model, and what config section `metrics` measures with."""
    return MeasuringModels(
        load_tokenizer(tokenizer).to(device),
        load_model(target, TargetModel, dtype=None).to(device),
        text_encoder,
        [load_score(key, metrics, files, device) for key in chosen(metrics) if key != "fidelity"],
        load_fidelity(metrics, files, device) if metrics["fidelity"] else None,
    )


def read_measuring_model(path: Path, name: str, sizes: Mapping[str, Any]) -> nn.Module:
    """Reads an attribute_classifier or a clip of another run; a ValueError names a size, of `sizes` by config key, that
    it does not have.
    """
    file = find_weights(path)
    model = load_model(file, {"attribute_classifier": AttributeClassifier, "clip": ClipModel}[name])
    for key, value in sizes.items():
        field = key.rpartition(".")[2]
        if hasattr(model.config, field):
            compare_with_config(file, field, value, getattr(model.config, field), key)
    return model


def load_score(key: str, metrics: Mapping[str, Any], files: MetricFiles, device: Device) -> ImageScore:
    """Loads what a key of config section `metrics` measures single images with."""
    published = metrics["published"]
    match key, metrics[key]:
        case "clip", "own":
            return ClipScore(ClipScorer.from_checkpoint(files.clip, device=device), resource_sha256(files.clip))
        case "clip", "openai":
            options = {"prompt_prefix": published["clip_prefix"], "preprocessing": published["preprocessing"]}
            scorer = load_open_clip(published["clip_architecture"], files.clip_weights, **options, device=device)
            return ClipScore(scorer, resource_sha256(files.clip_weights))
        case "prompt_accuracy", True:
            classifier = load_model(files.attribute_classifier, AttributeClassifier).to(device)
            return AccuracyScore(classifier, resource_sha256(files.attribute_classifier))
        case "hps", True:
            scorer = load_open_clip(published["hps_architecture"], files.hps_weights, device=device)
            return ClipScore(scorer, resource_sha256(files.hps_weights), metric="hps", column="hps")
        case _:
            raise ValueError(
                f"metrics.{key} measures no single images with {metrics[key]!r}; add a case beside this one"
            )


def load_fidelity(
    metrics: Mapping[str, Any], files: MetricFiles, device: Device
) -> ClassifierFidelity | PublishedFidelity:
    """Loads what metrics.fidelity measures sets of images with."""
    if metrics["fidelity"] == "attribute_classifier":
        classifier = load_model(files.attribute_classifier, AttributeClassifier).to(device)
        return ClassifierFidelity(classifier, resource_sha256(files.attribute_classifier))
    published = metrics["published"]
    extractors, way = load_extractors(files, published["vgg16_layer"], device), published["preprocessing"]
    real = load_reference(files.reference, extractors, way, published["reference"]["name"]).to(device)
    return PublishedFidelity(extractors, Preprocessing(way), real)


def load_extractors(files: MetricFiles, vgg16_layer: str, device: Device) -> dict[str, Extractor]:
    """Loads the extractors of published fidelity: INCEPTION and VGG16 -> extractor."""
    inception = load_inception(files.inception_weights, device)
    return {INCEPTION: inception, VGG16: load_vgg16(files.vgg16_weights, device, vgg16_layer)}


def check_metric_weights(metrics: Mapping[str, Any], files: MetricFiles) -> dict[str, str]:
    """Loads every published model that config section `metrics` measures with, one after the other, and opens the first
    real images, before hours of generation depend on them: key of metrics.published -> SHA-256 of its weights.
    """
    hashes, published = {}, metrics["published"]
    for key, choice in chosen(metrics).items():
        if choice.has_reference:
            extractors, way = load_extractors(files, published["vgg16_layer"], "cpu"), published["preprocessing"]
            if files.reference_images:  # measured later, by a rule of its own
                check_images(resource_path(files.reference_images), way)
            else:
                load_reference(files.reference_statistics, extractors, way, published["reference"]["name"])
        elif choice.weights:
            load_score(key, metrics, files, "cpu")
        hashes |= {name: resource_sha256(getattr(files, f"{name}_weights")) for name in choice.weights}
    return hashes
