"""FID of two sets of images' features, computed by torch-fidelity.

The reference may be known by its mean and covariance alone, and no matrix of images x images is ever held. Values
depend on the number of images (FID falls with it) and on the features: compare rows of one table only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lantern_pipeline.metrics.intervals import NON_NEGATIVE, draw_parts, jackknife_error, normal_interval

FEWEST = 2  # images that have a covariance


@dataclass(frozen=True)
class Gaussian:
    """What FID knows of a set's features: mean (width,) and covariance (width, width), float64."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Gaussian:
        """Estimates both from features (n, width), n at least 2."""
        features = features.double()
        return cls(features.mean(dim=0), torch.cov(features.T))

    @cached_property
    def root(self) -> Tensor:
        """Square root of the covariance, (width, width)."""
        eigenvalues, vectors = torch.linalg.eigh(self.covariance)
        return (vectors * eigenvalues.clamp(min=0).sqrt()) @ vectors.T

    def to(self, device: torch.device | str) -> Gaussian:
        """The same on another device; what is compared with it is computed there."""
        return Gaussian(self.mean.to(device), self.covariance.to(device))

    def to_numpy(self) -> dict:
        """The form that torch-fidelity takes."""
        return {"mu": self.mean.cpu().numpy(), "sigma": self.covariance.cpu().numpy()}


def measure_fid(generated: Tensor, reference: Gaussian, *, num_resamples: int, seed: int) -> tuple[float, float, float]:
    """Computes FID of features (n, width) against a fixed reference of the same extractor, on its device, with the ends
    of a 95 % interval: 1.96 standard errors from `num_resamples` random halves of the images, nan with fewer than 4.
    """
    # Imported here: torch-fidelity takes seconds to import, and ablations do without.
    from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_statistics_to_metric

    check_features(generated, reference.covariance)
    # float64: with fewer images than features the covariances are singular, and the product's eigenvalues need digits
    generated = generated.to(reference.mean.device).double()
    statistics = Gaussian.of(generated).to_numpy()
    value = fid_statistics_to_metric(statistics, reference.to_numpy(), verbose=False)[KEY_METRIC_FID]
    parts, error = draw_parts(len(generated), num_resamples, seed), math.nan
    if parts.shape[1] >= FEWEST:
        values = [_fid_of_part(generated[rows], reference) for rows in parts]
        error = jackknife_error(torch.tensor(values, dtype=torch.float64), len(generated))
    return value, *normal_interval(value, error, NON_NEGATIVE)


def _fid_of_part(part: Tensor, reference: Gaussian) -> float:
    """The same of features (rows, width) without an eigenvalue decomposition of (width, width) for each of hundreds of
    parts: the trace of the root is the sum of the singular values of one matrix.
    """
    centred = (part - part.mean(dim=0)) / math.sqrt(len(part) - 1)
    product = centred @ reference.root
    gram = product @ product.T if len(part) < product.shape[1] else product.T @ product
    trace_of_root = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().sum()
    distance = (part.mean(dim=0) - reference.mean).square().sum()
    return float(distance + centred.square().sum() + reference.covariance.trace() - 2 * trace_of_root)


def check_features(generated: Tensor, reference: Tensor) -> None:
    """Checks that features (n, width) and (m, width), or FID's covariance in their place, can be compared."""
    if generated.shape[1] != reference.shape[1]:
        raise ValueError(
            f"the generated images have {generated.shape[1]} features and the reference {reference.shape[1]}: they are "
            "of different extractors or layers"
        )
    if min(len(generated), len(reference)) < FEWEST:
        raise ValueError(
            f"sets of at least {FEWEST} images are compared, got {len(generated)} generated and {len(reference)} "
            "reference ones; draw more prompts"
        )
    for name, features in (("generated", generated), ("reference", reference)):
        if not torch.isfinite(features).all():
            raise ValueError(f"the features of the {name} images hold a value that is not finite")
