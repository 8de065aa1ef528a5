"""Comparison of sets of images: features, statistics of a reference set, then distances, precision and recall.

Only Inception's features give an FID and a KID. The attribute classifier was trained on procedural shapes. On its
features the same formulas have other names, because numbers of the two extractors cannot be compared.
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
    """Comparison of standardised features of the attribute classifier.

    The reference is the tokenizer's reconstructions of held-out images, not the images themselves: a limit of the
    tokenizer is not a fault of the decoder.
    """

    def __init__(self, classifier: AttributeClassifier, sha256: str | None = None) -> None:
        self.classifier, self.sha256 = classifier, sha256

    def describe(self) -> dict[str, str | None]:
        """Return columns that name the classifier and the hash of its weights."""
        name, (metric, _) = "attribute_classifier/features", OF_CLASSIFIER
        return {**describe_weights(metric, name, self.sha256), **describe_weights("prc", name, self.sha256)}

    def extract(self, images: Tensor) -> Tensor:
        """Extract features of images (n, 3, S, S) in [-1, 1]: (n, num_features) float32, on the CPU."""
        return classifier_features(self.classifier, images)

    def reference(self, reconstructions: Iterable[Tensor], name: str) -> Reference:
        """Build a reference from batches of held-out images that the tokenizer reconstructed."""
        raw = torch.cat([self.extract(images) for images in reconstructions])
        mean, std = feature_scale(raw)
        scaled, columns = (raw - mean) / std, {"reference": name, "num_reference": len(raw)}
        return Reference(columns, Gaussian.of(scaled), scaled, scaled, (mean, std), OF_CLASSIFIER)


@dataclass(frozen=True)
class PublishedFidelity:
    """Comparison with real images: Inception's raw features for FID and KID, VGG16's for precision and recall."""

    extractors: Mapping[str, Extractor]
    preprocessing: Preprocessing
    real: Reference | None

    def describe(self) -> dict[str, str | None]:
        """Return columns that name the extractors, the hashes of their weights, and the preprocessing."""
        found = {OF_INCEPTION[0]: self.extractors[INCEPTION], "prc": self.extractors[VGG16]}
        columns = {k: v for part, e in found.items() for k, v in describe_weights(part, e.name, e.sha256).items()}
        return {"preprocessing": self.preprocessing.name, **columns}

    def extract(self, images: Tensor) -> Tensor:
        """Extract Inception's and VGG16's features, in this order, of images (n, 3, S, S) in [-1, 1].

        Returns:
            (n, sum of both widths) float32, on the CPU.
        """
        pixels = self.preprocessing.prepare(images)
        return torch.cat([self.extractors[key].extract(pixels) for key in (INCEPTION, VGG16)], dim=1)


def feature_scale(reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation, both (width,), of features (n, width).

    Standardised features have equal weight in KID's cubic kernel and in distances. The scale of a network's raw
    features means nothing. A feature that is constant over the reference gets standard deviation 1.
    """
    std = reference.std(dim=0)
    return reference.mean(dim=0), torch.where(std > 1e-6, std, torch.ones_like(std))


def load_classifier(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> ClassifierFidelity:
    """Load the classifier of config value metrics.fidelity: attribute_classifier."""
    classifier = load_model(files["attribute_classifier"], AttributeClassifier).to(device)
    return ClassifierFidelity(classifier, resource_sha256(files["attribute_classifier"]))


def load_published(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> PublishedFidelity:
    """Load the extractors and the reference of config value metrics.fidelity: inception.

    A Snakemake rule measures a folder of real images later. Here only its first images are opened, to check them early.
    """
    published = metrics.published
    extractors = load_extractors(files, published.vgg16_layer, device)
    way = published.preprocessing
    if "reference_images" in files:
        check_images(resource_path(files["reference_images"]), way)
        real = None
    elif given := files.get("reference") or files.get("reference_statistics"):
        real = load_reference(given, extractors, way, published.reference.name, device)
    else:  # this job measures single images only
        real = None
    return PublishedFidelity(extractors, Preprocessing(way), real)
