"""FID, KID, precision and recall of sets of images: on the attribute classifier's features, or the published nets'."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lantern_pipeline.data.image_files import Preprocessing
from lantern_pipeline.metrics.feature_extractors import Extractor, classifier_features, describe_weights
from lantern_pipeline.metrics.fid import Gaussian, measure_fid
from lantern_pipeline.metrics.kid import measure_kid
from lantern_pipeline.metrics.precision_recall import measure_precision_recall
from lantern_pipeline.metrics.reference_statistics import INCEPTION, VGG16, ReferenceSet
from lantern_pipeline.world.attribute_classifier import AttributeClassifier


@dataclass(frozen=True)
class Reference:
    """What images are compared with, on the device that computes.

    Attributes:
        columns: that say so in a row: reference, num_reference, reference_sha256.
        gaussian: of the features that FID and KID compare.
        of_fid: these features (images, width); None where their statistics are all that is known: no KID then.
        of_prc: features (images, width) that precision and recall compare; None where they are not known.
        scale: mean and standard deviation (width,) by which features are standardised; None leaves them alone.
    """

    columns: Mapping[str, Any]
    gaussian: Gaussian
    of_fid: Tensor | None
    of_prc: Tensor | None
    scale: tuple[Tensor, Tensor] | None = None
    _measured: dict[bytes, dict[str, float]] = field(default_factory=dict)

    def compare(self, features: Tensor, settings: Mapping[str, Any], seed: int) -> dict[str, float]:
        """Compares a set of images, raw features (n, width): the columns of what is known of the reference. Methods
        that made the same images are measured once. `settings` are config section `metrics`; `seed` is of subsets and
        intervals.
        """
        key = hashlib.sha256(features.numpy()).digest()
        if key not in self._measured:
            self._measured[key] = self._compare(features, settings, seed)
        return self._measured[key]

    def distance(self, features: Tensor, others: Tensor) -> Tensor:
        """Distance of each image from another one (n,): root mean square over standardised features (n, width)."""
        return ((features - others) / self.scale[1]).square().mean(dim=1).sqrt()

    def _compare(self, features: Tensor, settings: Mapping[str, Any], seed: int) -> dict[str, float]:
        scaled = features if self.scale is None else (features - self.scale[0]) / self.scale[1]
        width, options = len(self.gaussian.mean), {"num_resamples": settings["fidelity_resamples"], "seed": seed}
        of_fid, of_prc = scaled[:, :width], scaled[:, width:] if scaled.shape[1] > width else scaled
        values = measure_fid(of_fid, self.gaussian, **options)
        if self.of_fid is not None:
            subsets = {"subset_size": settings["kid_subset_size"], "num_subsets": settings["kid_subsets"]}
            values |= measure_kid(of_fid, self.of_fid, **subsets, **options)
        if self.of_prc is not None:
            neighbours = settings["prc_neighbours"]
            values |= measure_precision_recall(of_prc, self.of_prc, neighbours=neighbours, **options)
        return values


class ClassifierFidelity:
    """Compares the attribute classifier's features, standardised, with those of the tokenizer's reconstructions.

    Not with the held-out images themselves: what the tokenizer cannot draw is no fault of the decoder.
    """

    def __init__(self, classifier: AttributeClassifier, sha256: str | None = None) -> None:
        self.classifier, self.sha256 = classifier, sha256

    def describe(self) -> dict[str, str | None]:
        """Says in columns of a row what measures."""
        name = "attribute_classifier/features"
        return {**describe_weights("fid", name, self.sha256), **describe_weights("prc", name, self.sha256)}

    def extract(self, images: Tensor) -> Tensor:
        """Features of images (n, 3, S, S) in [-1, 1]: (n, num_features) float32, on the CPU."""
        return classifier_features(self.classifier, images)

    def reference(self, reconstructions: Iterable[Tensor], name: str) -> Reference:
        """Makes a reference of batches of held-out images, drawn by the tokenizer."""
        raw = torch.cat([self.extract(images) for images in reconstructions])
        mean, std = feature_scale(raw)
        scaled, columns = (raw - mean) / std, {"reference": name, "num_reference": len(raw)}
        return Reference(columns, Gaussian.of(scaled), scaled, scaled, (mean, std))


@dataclass(frozen=True)
class PublishedFidelity:
    """Compares Inception's raw features (FID, KID) and VGG16's (precision, recall) with those of real images."""

    extractors: Mapping[str, Extractor]
    preprocessing: Preprocessing
    real: ReferenceSet

    def describe(self) -> dict[str, str | None]:
        """Says in columns of a row what measures."""
        found = {"fid": self.extractors[INCEPTION], "prc": self.extractors[VGG16]}
        columns = {k: v for metric, e in found.items() for k, v in describe_weights(metric, e.name, e.sha256).items()}
        return {"preprocessing": self.preprocessing.name, **columns}

    def extract(self, images: Tensor) -> Tensor:
        """Features of images (n, 3, S, S) in [-1, 1]: (n, width) float32, on the CPU; Inception's, then VGG16's."""
        pixels = self.preprocessing.prepare(images)
        return torch.cat([self.extractors[key].extract(pixels) for key in (INCEPTION, VGG16)], dim=1)

    def reference(self) -> Reference:
        """Makes a reference of what is known of the real images."""
        real = self.real
        columns = {"reference": real.name, "num_reference": real.num_images, "reference_sha256": real.sha256}
        return Reference(columns, real.gaussian, real.features.get(INCEPTION), real.features.get(VGG16))


def feature_scale(reference: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (width,) by which features (n, width) are standardised before any distance is taken;
    a feature that is constant over the reference gets std 1.

    KID's cubic kernel and the distances behind precision and recall depend on the scale of the features; a net's raw
    features have none that means anything, and a few loud ones would decide. Standardised by the reference set, all
    count alike.
    """
    if len(reference) < 2:
        raise ValueError(f"standardising features needs at least 2 reference images, got {len(reference)}")
    std = reference.std(dim=0)
    return reference.mean(dim=0), torch.where(std > 1e-6, std, torch.ones_like(std))
