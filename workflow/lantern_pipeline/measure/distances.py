"""FID, KID, precision and recall of two sets of images' features, by torch-fidelity.

All values depend on the number of images and on the features: compare rows of one table only. None has an interval: a
bootstrap draws some images twice, which shifts these metrics. No matrix of all images x all images is held on the way
to a value. torch-fidelity is imported where it is used: that takes seconds, and ablations do without.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FEWEST = 2  # images that have a covariance
DISTANCE_BLOCK = 4096  # images whose distances to all others are held at once


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

    def to(self, device: torch.device | str) -> Gaussian:
        """The same on another device; what is compared with it is computed there."""
        return Gaussian(self.mean.to(device), self.covariance.to(device))

    def to_numpy(self) -> dict:
        """The form that torch-fidelity takes."""
        return {"mu": self.mean.cpu().numpy(), "sigma": self.covariance.cpu().numpy()}


def measure_fid(generated: Tensor, reference: Gaussian) -> float:
    """Measure the FID of features (n, width) on the reference's device."""
    from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_statistics_to_metric

    _check_features(generated, reference.covariance)
    # float64: with fewer images than features the covariances are singular, and the product's eigenvalues need digits
    generated = generated.to(reference.mean.device).double()
    statistics = Gaussian.of(generated).to_numpy()
    return fid_statistics_to_metric(statistics, reference.to_numpy(), verbose=False)[KEY_METRIC_FID]


def measure_kid(
    generated: Tensor, reference: Tensor, *, subset_size: int, num_subsets: int, seed: int
) -> tuple[float, float]:
    """Measure the KID of features (n, width) and (m, width), which is unbiased and may be below 0.

    Returns:
        The mean and the standard deviation over subsets of at most n and m images.
    """
    from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric

    _check_features(generated, reference)
    generated, reference = generated.to(reference.device).double(), reference.double()
    size = subset_size_of(subset_size, len(generated), len(reference))
    options = {"kid_subset_size": size, "kid_subsets": num_subsets, "rng_seed": seed % 2**32, "verbose": False}
    found = kid_features_to_metric(generated, reference, **options)
    return found[KEY_METRIC_KID_MEAN], found[KEY_METRIC_KID_STD]


def subset_size_of(wanted: int, num_generated: int, num_reference: int) -> int:
    """Images of a subset: torch-fidelity takes no more than either set has."""
    return min(wanted, num_generated, num_reference)


def measure_precision_recall(generated: Tensor, reference: Tensor, *, neighbours: int) -> tuple[float, float]:
    """Measure the share of generated images (n, width) near a real one (precision) and of real ones (m, width) near a
    generated one (recall).

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
    return found[KEY_METRIC_PRECISION], found[KEY_METRIC_RECALL]


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
