"""FID, KID, precision and recall of two sets of images' features, by torch-fidelity, with intervals.

The reference is fixed: 95 % intervals are 1.96 standard errors, from the metric's values on `num_resamples` random
halves of the generated images (`draw_parts` of `seed`), nan where a half is too small. No matrix of all images x all
images is held on the way to a value. All values depend on the number of images and on the features: compare rows of one
table only. torch-fidelity is imported where it is used: that takes seconds, and ablations do without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lantern_pipeline.measure.intervals import (
    NON_NEGATIVE,
    SHARE,
    draw_parts,
    jackknife_error,
    normal_interval,
    share_interval,
)

FEWEST = 2  # images that have a covariance
KERNEL_BLOCK, DISTANCE_BLOCK = 2048, 4096  # images whose kernel with, or distances to, all others are held at once


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
    """FID of features (n, width) with the ends of its interval; the reference's device computes."""
    from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_statistics_to_metric

    _check_features(generated, reference.covariance)
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
    """FID without an eigenvalue decomposition of (width, width) for each of hundreds of parts: the trace of the root is
    the sum of the singular values of one matrix.
    """
    centred = (part - part.mean(dim=0)) / math.sqrt(len(part) - 1)
    product = centred @ reference.root
    gram = product @ product.T if len(part) < product.shape[1] else product.T @ product
    trace_of_root = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().sum()
    distance = (part.mean(dim=0) - reference.mean).square().sum()
    return float(distance + centred.square().sum() + reference.covariance.trace() - 2 * trace_of_root)


def measure_kid(
    generated: Tensor, reference: Tensor, *, subset_size: int, num_subsets: int, num_resamples: int, seed: int
) -> tuple[float, float, float, float]:
    """KID of features (n, width) and (m, width), mean over subsets of at most n and m images, with the ends of its
    interval, and the standard deviation over subsets. KID is unbiased: it may lie below 0.
    """
    from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric

    _check_features(generated, reference)
    generated, reference = generated.to(reference.device).double(), reference.double()
    size = subset_size_of(subset_size, len(generated), len(reference))
    options = {"kid_subset_size": size, "kid_subsets": num_subsets, "rng_seed": seed % 2**32, "verbose": False}
    found = kid_features_to_metric(generated, reference, **options)
    value, spread = found[KEY_METRIC_KID_MEAN], found[KEY_METRIC_KID_STD]
    parts, error = draw_parts(len(generated), num_resamples, seed), math.nan
    if parts.shape[1] >= FEWEST:
        error = jackknife_error(_kid_of_parts(generated, reference, parts), len(generated))
    # the choice of the subsets adds to what the images vary
    return value, *normal_interval(value, math.hypot(error, spread / math.sqrt(num_subsets))), spread


def subset_size_of(wanted: int, num_generated: int, num_reference: int) -> int:
    """Images of a subset: torch-fidelity takes no more than either set has."""
    return min(wanted, num_generated, num_reference)


def _kid_of_parts(generated: Tensor, reference: Tensor, parts: Tensor) -> Tensor:
    """Unbiased KID of every part (parts,), up to the reference's own term, which is the same for all: the kernel of all
    images is worked out once, where torch-fidelity would take it anew for each part and only a subset of the reference.
    """
    num_kept = parts.shape[1]
    chosen = generated.new_zeros(len(generated), len(parts))
    chosen.scatter_(0, parts.T.to(generated.device), 1.0)  # (n, parts), 1 where the part has the image
    pairs, across = generated.new_zeros(2, len(parts))
    for first in range(0, len(generated), KERNEL_BLOCK):
        rows = slice(first, first + KERNEL_BLOCK)
        within = _kernel(generated[rows], generated)
        within.diagonal(first).zero_()
        pairs = pairs + ((within @ chosen) * chosen[rows]).sum(dim=0)
        across = across + _kernel(generated[rows], reference).mean(dim=1) @ chosen[rows]
    return pairs / (num_kept * (num_kept - 1)) - 2 * across / num_kept


def _kernel(first: Tensor, second: Tensor) -> Tensor:
    return (first @ second.T / first.shape[1] + 1).pow_(3)


def measure_precision_recall(
    generated: Tensor, reference: Tensor, *, neighbours: int, num_resamples: int, seed: int
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """The share of generated images (n, width) near a real one (precision) and of real ones (m, width) near a generated
    one (recall), each with the ends of its interval, which is exact for precision.

    "Near" is inside the ball that reaches to the k-th nearest neighbour among the other set's own images; k is 3 as
    published. Source: Kynkäänniemi et al. (2019), Improved precision and recall metric for assessing generative models.
    """
    from torch_fidelity.metric_prc import KEY_METRIC_PRECISION, KEY_METRIC_RECALL, prc_features_to_metric

    _check_features(generated, reference)
    if neighbours >= min(len(generated), len(reference)):
        raise ValueError(
            f"metrics.prc_neighbours must be less than the number of images, {len(generated)} generated and "
            f"{len(reference)} reference, got {neighbours}; draw more prompts"
        )
    # float64: torch.cdist of wide float32 features loses the digits that decide about the nearest
    generated, reference = generated.to(reference.device).double(), reference.double()
    options = {"prc_neighborhood": neighbours, "prc_batch_size": DISTANCE_BLOCK, "save_cpu_ram": True, "verbose": False}
    found = prc_features_to_metric(generated, reference, **options)  # real images as input2
    precision, recall = found[KEY_METRIC_PRECISION], found[KEY_METRIC_RECALL]
    ends = share_interval(round(precision * len(generated)), len(generated))
    error = _recall_error(generated, reference, draw_parts(len(generated), num_resamples, seed), neighbours)
    return (precision, *map(float, ends)), (recall, *normal_interval(recall, error, SHARE))


def _recall_error(generated: Tensor, reference: Tensor, parts: Tensor, neighbours: int) -> float:
    """Standard error of recall from its values on parts, whose distances are taken once for all of them."""
    if parts.shape[1] <= neighbours:
        return math.nan
    among, across = (
        torch.cat([torch.cdist(rows, others).float().cpu() for rows in generated.split(DISTANCE_BLOCK)])
        for others in (generated, reference)
    )
    recalls = []
    for rows in parts:
        radii = among[rows][:, rows].kthvalue(neighbours + 1).values  # an image's own distance 0 is the first
        recalls.append((across[rows] <= radii[:, None]).any(dim=0).double().mean())
    return jackknife_error(torch.stack(recalls), len(generated))


def _check_features(generated: Tensor, reference: Tensor) -> None:
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
