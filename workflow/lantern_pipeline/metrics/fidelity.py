"""What measures whole sets of images (FID, KID, precision, recall): a trained net, published ones, or nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lantern_pipeline.data.image_files import Preprocessing
from lantern_pipeline.metrics.feature_extractors import Extractor
from lantern_pipeline.metrics.features import EXTRACTOR_NAME, LAYER, extract_features, feature_scale
from lantern_pipeline.metrics.image_rulers import Instrument
from lantern_pipeline.metrics.precision_recall import COVERAGE_COLUMNS, measure_coverage
from lantern_pipeline.metrics.reference_statistics import INCEPTION, VGG16, ReferenceSet
from lantern_pipeline.metrics.set_distance import FID_COLUMNS, KID_COLUMNS, Gaussian, measure_fid, measure_kid
from lantern_pipeline.world.attribute_classifier import AttributeClassifier

SET_COLUMNS = (*FID_COLUMNS, *KID_COLUMNS, *COVERAGE_COLUMNS)


class Comparison(Protocol):
    """A reference set, ready to be compared with."""

    def describe(self) -> Mapping[str, Any]:
        """Says in columns of a row what the reference is: reference, num_reference, reference_sha256."""
        ...

    def compare(self, features: Tensor) -> dict[str, float]:
        """Compares a set of images (n, width): SET_COLUMNS, nan where something is not known."""
        ...

    def distance(self, features: Tensor, others: Tensor) -> Tensor:
        """Distance of each image from another one (n,), both (n, width); nan where there is none."""
        ...


class SetRuler(Protocol):
    """Measures sets of images by their features."""

    def describe(self) -> Mapping[str, str | None]:
        """Says in columns of a row what it measures with."""
        ...

    def extract(self, images: Tensor) -> Tensor:
        """Features of images (n, 3, S, S) in [-1, 1]: (n, width) float32 on the CPU."""
        ...

    def prepare(
        self, reconstructions: Iterable[Tensor], name: str, settings: Mapping[str, Any], seed: int
    ) -> Comparison:
        """Prepares the reference.

        Args:
            reconstructions: batches of held-out images drawn by the tokenizer; read only by a ruler whose reference
                they are.
            name: of these reconstructions, for tables.
            settings: config section `metrics`: kid_subset_size, kid_subsets, prc_neighbours, fidelity_resamples.
            seed: of subsets and intervals.
        """
        ...


@dataclass(frozen=True)
class KnownFeatures:
    """What is known of the reference's features, on the device that computes.

    Attributes:
        gaussian: of the features that FID and KID compare.
        of_distance: these features (images, width); None where their statistics are all that is known: no KID then.
        of_coverage: features (images, width) that precision and recall compare; None where they are not known.
    """

    gaussian: Gaussian
    of_distance: Tensor | None
    of_coverage: Tensor | None

    def compare(
        self, of_distance: Tensor, of_coverage: Tensor, settings: Mapping[str, Any], seed: int
    ) -> dict[str, float]:
        """Compares a set of images with the reference.

        Args:
            of_distance: (n, width), for FID and KID.
            of_coverage: (n, width), for precision and recall.
            settings: config section `metrics`: kid_subset_size, kid_subsets, prc_neighbours, fidelity_resamples.
            seed: of subsets and intervals.

        Returns:
            SET_COLUMNS, nan where the reference is not known.
        """
        options = {"num_resamples": settings["fidelity_resamples"], "seed": seed}
        values = dict.fromkeys(SET_COLUMNS, math.nan)
        values |= measure_fid(of_distance, self.gaussian, **options)
        if self.of_distance is not None:
            subsets = {"subset_size": settings["kid_subset_size"], "num_subsets": settings["kid_subsets"]}
            values |= measure_kid(of_distance, self.of_distance, **subsets, **options)
        if self.of_coverage is not None:
            neighbours = settings["prc_neighbours"]
            values |= measure_coverage(of_coverage, self.of_coverage, neighbours=neighbours, **options)
        return values


class AttributeClassifierRuler:
    """FID and the others on the attribute classifier's features, standardised; reference: reconstructions.

    Not the held-out images themselves: what the tokenizer cannot draw is no fault of the decoder.

    Args:
        attribute_classifier: in evaluation mode.
        sha256: of its weights.
    """

    def __init__(self, attribute_classifier: AttributeClassifier, sha256: str | None = None) -> None:
        self.attribute_classifier, self.instrument = (
            attribute_classifier,
            Instrument(f"{EXTRACTOR_NAME}/{LAYER}", sha256),
        )

    def describe(self) -> dict[str, str | None]:
        """See `SetRuler.describe`."""
        return {**self.instrument.describe("fid"), **self.instrument.describe("prc")}

    def extract(self, images: Tensor) -> Tensor:
        """See `SetRuler.extract`."""
        return extract_features(self.attribute_classifier, images, batch_size=len(images))

    def prepare(
        self, reconstructions: Iterable[Tensor], name: str, settings: Mapping[str, Any], seed: int
    ) -> AttributeClassifierComparison:
        """See `SetRuler.prepare`."""
        raw = torch.cat([extract_features(self.attribute_classifier, images) for images in reconstructions])
        mean, std = feature_scale(raw)
        scaled = (raw - mean) / std
        return AttributeClassifierComparison(
            KnownFeatures(Gaussian.of(scaled), scaled, scaled), mean, std, name, settings, seed
        )


@dataclass(frozen=True)
class AttributeClassifierComparison:
    """Standardised features of the reconstructions and the scale that standardises others."""

    known: KnownFeatures
    mean: Tensor
    std: Tensor
    name: str
    settings: Mapping[str, Any]
    seed: int

    def describe(self) -> dict[str, Any]:
        """See `Comparison.describe`."""
        return {"reference": self.name, "num_reference": len(self.known.of_distance)}

    def compare(self, features: Tensor) -> dict[str, float]:
        """See `Comparison.compare`."""
        scaled = (features - self.mean) / self.std
        return self.known.compare(scaled, scaled, self.settings, self.seed)

    def distance(self, features: Tensor, others: Tensor) -> Tensor:
        """See `Comparison.distance`: root mean square over standardised features."""
        return ((features - others) / self.std).square().mean(dim=1).sqrt()


class PublishedRuler:
    """FID and KID on Inception's raw features, precision and recall on VGG16's, against a stored set of real images.

    Args:
        extractors: "inception" and "vgg16".
        preprocessing: name of a `Preprocessing`, the reference's.
        reference: the real images.
    """

    def __init__(self, extractors: Mapping[str, Extractor], preprocessing: str, reference: ReferenceSet) -> None:
        self.extractors, self.preprocessing = extractors, Preprocessing(preprocessing)
        self.reference = reference

    def describe(self) -> dict[str, str | None]:
        """See `SetRuler.describe`."""
        found = {"fid": self.extractors[INCEPTION], "prc": self.extractors[VGG16]}
        columns = {k: v for m, e in found.items() for k, v in Instrument(e.name, e.sha256).describe(m).items()}
        return {"preprocessing": self.preprocessing.name, **columns}

    def extract(self, images: Tensor) -> Tensor:
        """See `SetRuler.extract`: Inception's features, then VGG16's."""
        pixels = self.preprocessing.prepare(images)
        return torch.cat([self.extractors[key].extract(pixels) for key in (INCEPTION, VGG16)], dim=1)

    def prepare(
        self, reconstructions: Iterable[Tensor], name: str, settings: Mapping[str, Any], seed: int
    ) -> PublishedComparison:
        """See `SetRuler.prepare`."""
        features = self.reference.features
        known = KnownFeatures(self.reference.gaussian, features.get(INCEPTION), features.get(VGG16))
        return PublishedComparison(self.reference, known, settings, seed)


@dataclass(frozen=True)
class PublishedComparison:
    """Real images, by the features or the statistics that are known of them."""

    reference: ReferenceSet
    known: KnownFeatures
    settings: Mapping[str, Any]
    seed: int

    def describe(self) -> dict[str, Any]:
        """See `Comparison.describe`."""
        found = self.reference
        return {"reference": found.name, "num_reference": found.num_images, "reference_sha256": found.sha256}

    def compare(self, features: Tensor) -> dict[str, float]:
        """See `Comparison.compare`: KID, precision and recall need the reference's features, FID its statistics."""
        width = len(self.known.gaussian.mean)
        return self.known.compare(features[:, :width], features[:, width:], self.settings, self.seed)

    def distance(self, features: Tensor, others: Tensor) -> Tensor:
        """See `Comparison.distance`: none."""
        return torch.full((len(features),), torch.nan)


class NoSetRuler:
    """Nothing is measured on sets of images."""

    def describe(self) -> dict[str, Any]:
        """See `SetRuler.describe`."""
        return {}

    def extract(self, images: Tensor) -> Tensor:
        """See `SetRuler.extract`."""
        return torch.empty(len(images), 0)

    def prepare(
        self, reconstructions: Iterable[Tensor], name: str, settings: Mapping[str, Any], seed: int
    ) -> NoSetRuler:
        """See `SetRuler.prepare`."""
        return self

    def compare(self, features: Tensor) -> dict[str, float]:
        """See `Comparison.compare`."""
        return dict.fromkeys(SET_COLUMNS, math.nan)

    def distance(self, features: Tensor, others: Tensor) -> Tensor:
        """See `Comparison.distance`."""
        return torch.full((len(features),), torch.nan)
