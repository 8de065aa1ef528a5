"""What compares sets of images: features, then statistics of a reference set, then distances, precision and recall.

Only Inception's features make an FID and a KID. Those of the attribute classifier, which was trained on procedural
shapes, give the same formulas under names of their own: numbers of the two can not be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lantern.checkpoints.native import load_model
from lantern_pipeline.data.image_files import Preprocessing
from lantern_pipeline.fetch.manifest import resource_path, resource_sha256
from lantern_pipeline.measure.distances import Gaussian
from lantern_pipeline.measure.feature_extractors import (
    INCEPTION,
    VGG16,
    Extractor,
    classifier_features,
    describe_weights,
    load_extractors,
)
from lantern_pipeline.measure.reference_statistics import (
    OF_CLASSIFIER,
    OF_INCEPTION,
    Reference,
    check_images,
    load_reference,
)
from lantern_pipeline.settings.run_config import MetricChoices
from lantern_pipeline.world.attribute_classifier import AttributeClassifier


class ClassifierFidelity:
    """Compares the attribute classifier's features, standardised, with those of the tokenizer's reconstructions.

    Not with the held-out images themselves: what the tokenizer cannot draw is no fault of the decoder.
    """

    def __init__(self, classifier: AttributeClassifier, sha256: str | None = None) -> None:
        self.classifier, self.sha256 = classifier, sha256

    def describe(self) -> dict[str, str | None]:
        """Says in columns of a row what measures."""
        name, (metric, _) = "attribute_classifier/features", OF_CLASSIFIER
        return {**describe_weights(metric, name, self.sha256), **describe_weights("prc", name, self.sha256)}

    def extract(self, images: Tensor) -> Tensor:
        """Features of images (n, 3, S, S) in [-1, 1]: (n, num_features) float32, on the CPU."""
        return classifier_features(self.classifier, images)

    def reference(self, reconstructions: Iterable[Tensor], name: str) -> Reference:
        """Makes a reference of batches of held-out images, drawn by the tokenizer."""
        raw = torch.cat([self.extract(images) for images in reconstructions])
        mean, std = feature_scale(raw)
        scaled, columns = (raw - mean) / std, {"reference": name, "num_reference": len(raw)}
        return Reference(columns, Gaussian.of(scaled), scaled, scaled, (mean, std), OF_CLASSIFIER)


@dataclass(frozen=True)
class PublishedFidelity:
    """Compares Inception's raw features (FID, KID) and VGG16's (precision, recall) with those of real images."""

    extractors: Mapping[str, Extractor]
    preprocessing: Preprocessing
    real: Reference | None

    def describe(self) -> dict[str, str | None]:
        """Says in columns of a row what measures."""
        found = {OF_INCEPTION[0]: self.extractors[INCEPTION], "prc": self.extractors[VGG16]}
        columns = {k: v for part, e in found.items() for k, v in describe_weights(part, e.name, e.sha256).items()}
        return {"preprocessing": self.preprocessing.name, **columns}

    def extract(self, images: Tensor) -> Tensor:
        """Features of images (n, 3, S, S) in [-1, 1]: (n, width) float32, on the CPU; Inception's, then VGG16's."""
        pixels = self.preprocessing.prepare(images)
        return torch.cat([self.extractors[key].extract(pixels) for key in (INCEPTION, VGG16)], dim=1)


def feature_scale(reference: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (width,) by which features (n, width) are standardised, so that all count alike in
    KID's cubic kernel and in distances: a net's raw features have no scale that means anything. A feature that is
    constant over the reference gets std 1.
    """
    std = reference.std(dim=0)
    return reference.mean(dim=0), torch.where(std > 1e-6, std, torch.ones_like(std))


def load_classifier(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> ClassifierFidelity:
    """Loads what metrics.fidelity: attribute_classifier measures with."""
    classifier = load_model(files["attribute_classifier"], AttributeClassifier).to(device)
    return ClassifierFidelity(classifier, resource_sha256(files["attribute_classifier"]))


def load_published(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> PublishedFidelity:
    """Loads what metrics.fidelity: inception measures with. Real images that a rule of its own measures later are
    looked at only: the first ones are opened as they will be.
    """
    published = metrics.published
    extractors = load_extractors(files, published.vgg16_layer, device)
    way = published.preprocessing
    if "reference_images" in files:
        check_images(resource_path(files["reference_images"]), way)
        real = None
    elif given := files.get("reference") or files.get("reference_statistics"):
        real = load_reference(given, extractors, way, published.reference.name, device)
    else:  # single images are measured
        real = None
    return PublishedFidelity(extractors, Preprocessing(way), real)
