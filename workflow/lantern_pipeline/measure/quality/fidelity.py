"""Comparison of sets of images by FID and KID (or other distances), precision and recall.

A distance is called FID or KID only if it is computed from Inception's features. With features of the run's attribute
classifier or of EfficientNet-lite0, the same formulas give the Fréchet distance and the kernel distance. Values from
different networks cannot be compared.

Images are float32 (n, 3, height, width) in [-1, 1], features float32 (n, width) on the CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from lantern.models.stored import load_model
from lantern_pipeline.data.image_files import Preprocessing
from lantern_pipeline.fetch.manifest import resource_path, resource_sha256
from lantern_pipeline.measure.quality.distances import Gaussian
from lantern_pipeline.measure.quality.feature_extractors import (
    INCEPTION,
    VGG16,
    Extractor,
    classifier_features,
    describe_weights,
    load_extractors,
)
from lantern_pipeline.measure.quality.reference_statistics import (
    OF_CLASSIFIER,
    OF_INCEPTION,
    Reference,
    check_images,
    load_reference,
)
from lantern_pipeline.schema.run_config import MetricChoices
from lantern_pipeline.world.attribute_classifier import AttributeClassifier


class ReconstructionFidelity(ABC):
    """Base class of metrics that compare generated images with *reconstructions*, by the features of one network.

    Reconstructions are held-out images that the tokenizer has encoded and decoded again. If generated images were
    compared with the held-out images themselves, errors of the tokenizer would count as errors of the decoding method.
    """

    @abstractmethod
    def describe(self) -> dict[str, str | None]:
        """Return the columns of `describe_weights` for the network."""

    @abstractmethod
    def extract(self, images: Tensor) -> Tensor:
        """Extract the features of images, before any standardisation."""

    @abstractmethod
    def reference(self, reconstructions: Iterable[Tensor], name: str) -> Reference:
        """Build the reference set from batches of reconstructions. The results call it `name`."""


class ClassifierFidelity(ReconstructionFidelity):
    """Comparison by features of the attribute classifier, standardised with the scale of the reconstructions."""

    def __init__(self, classifier: AttributeClassifier, sha256: str | None = None) -> None:
        self.classifier, self.sha256 = classifier, sha256

    @override
    def describe(self) -> dict[str, str | None]:
        name = "attribute_classifier/features"
        # Distances and precision have separate columns, because PublishedFidelity has a network for each.
        columns = describe_weights(OF_CLASSIFIER.frechet, name, self.sha256)
        return {**columns, **describe_weights("prc", name, self.sha256)}

    @override
    def extract(self, images: Tensor) -> Tensor:
        return classifier_features(self.classifier, images)

    @override
    def reference(self, reconstructions: Iterable[Tensor], name: str) -> Reference:
        raw = torch.cat([self.extract(images) for images in reconstructions])
        mean, std = feature_scale(raw)
        scaled, columns = (raw - mean) / std, {"reference": name, "num_reference": len(raw)}
        return Reference(columns, Gaussian.of(scaled), scaled, scaled, (mean, std), OF_CLASSIFIER)


@dataclass(frozen=True)
class PublishedFidelity:
    """Comparison with real images, as in publications: Inception for FID and KID, VGG16 for precision and recall.

    Attributes:
        extractors: INCEPTION and VGG16 -> extractor.
        real: reference set of real images. None if it is not needed, or its features are not extracted yet.
    """

    extractors: Mapping[str, Extractor]
    preprocessing: Preprocessing
    real: Reference | None

    def describe(self) -> dict[str, str | None]:
        """Return the preprocessing and both networks, as columns of the result table."""
        found = {OF_INCEPTION.frechet: self.extractors[INCEPTION], "prc": self.extractors[VGG16]}
        columns = {k: v for part, e in found.items() for k, v in describe_weights(part, e.name, e.sha256).items()}
        return {"preprocessing": self.preprocessing.name, **columns}

    def extract(self, images: Tensor) -> Tensor:
        """Extract the features of both networks, concatenated."""
        pixels = self.preprocessing.prepare(images)
        # In this order, because `Reference` takes the first columns for FID and KID, and the others for precision.
        return torch.cat([self.extractors[key].extract(pixels) for key in (INCEPTION, VGG16)], dim=1)


def feature_scale(reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation, (width,) each, with which features are standardised."""
    # Raw features of a network have arbitrary scales. Once standardised, all have equal weight in KID's cubic kernel
    # and in distances. A constant feature has nothing to scale: it becomes 0.
    std = reference.std(dim=0)
    return reference.mean(dim=0), torch.where(std > 1e-6, std, torch.ones_like(std))


def load_classifier(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> ClassifierFidelity:
    """Load the attribute classifier, for config value `metrics.fidelity: attribute_classifier`."""
    classifier = load_model(files["attribute_classifier"], AttributeClassifier).to(device)
    return ClassifierFidelity(classifier, resource_sha256(files["attribute_classifier"]))


def load_published(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> PublishedFidelity:
    """Load Inception, VGG16 and the real images' reference set, for config value `metrics.fidelity: inception`."""
    published = metrics.published
    extractors = load_extractors(files, published.vgg16_layer, device)
    way = published.preprocessing
    if "reference_images" in files:
        # A later rule extracts the features of these images. Opening a few of them here finds errors early.
        check_images(resource_path(files["reference_images"]), way)
        real = None
    elif given := files.get("reference") or files.get("reference_statistics"):
        real = load_reference(given, extractors, way, published.reference.name, device)
    else:  # this job measures single images only
        real = None
    return PublishedFidelity(extractors, Preprocessing(way), real)
