"""FID and KID of two sets of images' features, computed by torch-fidelity.

FID's reference may be known by its mean and covariance alone, and no matrix of images x images is ever held. Values
depend on the number of images (FID falls with it) and on the features: compare rows of one table only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_statistics_to_metric
from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric

from lantern_pipeline.metrics.halves import draw_halves, halves_error
from lantern_pipeline.metrics.intervals import normal_interval

FEWEST = 2  # images that have a covariance
BLOCK = 2048  # images whose kernel with all others is held at once
FID_COLUMNS = ("fid", "fid_low", "fid_high")
KID_COLUMNS = ("kid", "kid_std", "kid_low", "kid_high")


@dataclass(frozen=True)
class Gaussian:
    """Mean and covariance of a set's features: what FID knows of it.

    Attributes:
        mean: (width,) float64.
        covariance: (width, width) float64.
    """

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


def measure_fid(generated: Tensor, reference: Gaussian, *, num_resamples: int, seed: int) -> dict[str, float]:
    """Computes FID by torch-fidelity, with a 95 % interval over the generated images for a fixed reference.

    Args:
        generated: (n, width) float.
        reference: of the same extractor and layer; the device that it lies on computes.
        num_resamples: random halves of the images behind the interval, at least 2.
        seed: of the halves.

    Returns:
        FID_COLUMNS, dimensionless; the interval is the estimate plus and minus 1.96 standard errors, for the value that
            n images have on average: FID falls with n. It is nan with fewer than 4 images.

    Raises:
        ValueError: other widths, fewer than 2 images, or a feature that is not finite.
    """
    check_features(generated, reference.covariance)
    # float64: with fewer images than features the covariances are singular, and their product's eigenvalues need the
    # digits
    generated = generated.to(reference.mean.device).double()
    statistics = Gaussian.of(generated).to_numpy()
    value = fid_statistics_to_metric(statistics, reference.to_numpy(), verbose=False)[KEY_METRIC_FID]
    halves = draw_halves(len(generated), num_resamples, seed)
    error = math.nan
    if halves.shape[1] >= FEWEST:
        values = [_fid(generated[rows], reference) for rows in halves]
        error = halves_error(torch.tensor(values, dtype=torch.float64), len(generated))
    return dict(zip(FID_COLUMNS, (value, *normal_interval(value, error)), strict=True))


def measure_kid(
    generated: Tensor, reference: Tensor, *, subset_size: int, num_subsets: int, num_resamples: int, seed: int
) -> dict[str, float]:
    """Computes KID by torch-fidelity, with a 95 % interval over the generated images for a fixed reference.

    Args:
        generated: (n, width) float.
        reference: (m, width) float, of the same extractor and layer; the device that it lies on computes the interval.
        subset_size: images per subset, at most min(n, m).
        num_subsets: subsets averaged.
        num_resamples: random halves of the images behind the interval, at least 2.
        seed: of subsets and halves.

    Returns:
        KID_COLUMNS, dimensionless; kid is the mean over subsets, kid_std the standard deviation over them. The interval
            is the estimate plus and minus 1.96 standard errors; it is nan with fewer than 4 images.

    Raises:
        ValueError: too few images, other widths, or a feature that is not finite.
    """
    check_features(generated, reference)
    fewest = min(len(generated), len(reference))
    if subset_size > fewest:
        raise ValueError(
            f"metrics.kid_subset_size must be at most the number of images, {len(generated)} generated and "
            f"{len(reference)} reference, got {subset_size}"
        )
    generated, reference = generated.to(reference.device).double(), reference.double()
    options = {"kid_subset_size": subset_size, "kid_subsets": num_subsets, "rng_seed": seed % 2**32, "verbose": False}
    found = kid_features_to_metric(generated, reference, **options)
    value, spread = found[KEY_METRIC_KID_MEAN], found[KEY_METRIC_KID_STD]
    halves = draw_halves(len(generated), num_resamples, seed)
    error = math.nan
    if halves.shape[1] >= FEWEST:
        error = halves_error(_kid_of_halves(generated, reference, halves), len(generated))
    # the choice of the subsets adds to what the images vary
    ends = normal_interval(value, math.hypot(error, spread / math.sqrt(num_subsets)))
    return dict(zip(KID_COLUMNS, (value, spread, *ends), strict=True))


def _fid(part: Tensor, reference: Gaussian) -> float:
    """FID of (rows, width). The trace of the root is the sum of the singular values of one matrix."""
    centred = (part - part.mean(dim=0)) / math.sqrt(len(part) - 1)
    product = centred @ reference.root
    gram = product @ product.T if len(part) < product.shape[1] else product.T @ product
    trace_of_root = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().sum()
    distance = (part.mean(dim=0) - reference.mean).square().sum()
    return float(distance + centred.square().sum() + reference.covariance.trace() - 2 * trace_of_root)


def _kid_of_halves(generated: Tensor, reference: Tensor, halves: Tensor) -> Tensor:
    """Unbiased KID of every half (halves,), up to the reference's own term, which is the same for all."""
    num_kept = halves.shape[1]
    chosen = generated.new_zeros(len(generated), len(halves))
    chosen.scatter_(0, halves.T.to(generated.device), 1.0)  # (n, halves), 1 where the half has the image
    pairs, across = generated.new_zeros(2, len(halves))
    for first in range(0, len(generated), BLOCK):
        rows = slice(first, first + BLOCK)
        within = _kernel(generated[rows], generated)
        within.diagonal(first).zero_()
        pairs = pairs + ((within @ chosen) * chosen[rows]).sum(dim=0)
        across = across + _kernel(generated[rows], reference).mean(dim=1) @ chosen[rows]
    return pairs / (num_kept * (num_kept - 1)) - 2 * across / num_kept


def _kernel(first: Tensor, second: Tensor) -> Tensor:
    return (first @ second.T / first.shape[1] + 1).pow_(3)


def check_features(generated: Tensor, reference: Tensor) -> None:
    """Checks that two sets of images can be compared.

    Args:
        generated: (n, width).
        reference: (m, width); FID's covariance in their place.

    Raises:
        ValueError: other widths, fewer than 2 images, or a value that is not finite.
    """
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
