"""FID, KID, precision and recall of two sets of image features, (images, width), computed by torch-fidelity.

Results depend on the number of images and on the network that computes the features. Compare only results with the
same of both. These metrics have no confidence intervals, because a bootstrap repeats some images, which biases them.

torch-fidelity is imported inside the functions, because the import takes seconds, and ablations do not need it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FEWEST = 2  # smallest number of images per set; one image has no covariance
DISTANCE_BLOCK = 4096  # images whose distances to all others are in memory at once, instead of the whole matrix


@dataclass(frozen=True)
class Gaussian:
    """Mean (width,) and covariance (width, width) of image features in float64, which FID compares."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Gaussian:
        """Compute both from features of any dtype."""
        features = features.double()
        return cls(features.mean(dim=0), torch.cov(features.T))

    def to(self, device: torch.device | str) -> Gaussian:
        """Return a copy on another device, on which `measure_fid` then computes the statistics of generated images."""
        return Gaussian(self.mean.to(device), self.covariance.to(device))

    def to_numpy(self) -> dict:
        """Return the dict of NumPy arrays that torch-fidelity reads."""
        return {"mu": self.mean.cpu().numpy(), "sigma": self.covariance.cpu().numpy()}


def measure_fid(generated: Tensor, reference: Gaussian) -> float:
    """Compute the FID from the features of generated images. NumPy finds the eigenvalues on the CPU."""
    from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_statistics_to_metric

    _check_features(generated, reference.covariance)
    # float64: with fewer images than features the covariances are singular, and float32 eigenvalues are too imprecise.
    generated = generated.to(reference.mean.device).double()
    statistics = Gaussian.of(generated).to_numpy()
    return fid_statistics_to_metric(statistics, reference.to_numpy(), verbose=False)[KEY_METRIC_FID]


def measure_kid(
    generated: Tensor, reference: Tensor, *, subset_size: int, num_subsets: int, seed: int
) -> tuple[float, float]:
    """Return KID as mean and standard deviation over random subsets. The estimate is unbiased and may be below 0."""
    from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric

    _check_features(generated, reference)
    generated, reference = generated.to(reference.device).double(), reference.double()
    # torch-fidelity refuses a subset that is larger than a set, since it draws without replacement.
    size = subset_size_of(subset_size, len(generated), len(reference))
    # NumPy's RandomState takes seeds of 32 bits.
    options = {"kid_subset_size": size, "kid_subsets": num_subsets, "rng_seed": seed % 2**32, "verbose": False}
    found = kid_features_to_metric(generated, reference, **options)
    return found[KEY_METRIC_KID_MEAN], found[KEY_METRIC_KID_STD]


def subset_size_of(wanted: int, num_generated: int, num_reference: int) -> int:
    """Return the number of images per subset of KID, which results state because it may be less than `wanted`."""
    return min(wanted, num_generated, num_reference)


def measure_precision_recall(generated: Tensor, reference: Tensor, *, neighbours: int) -> tuple[float, float]:
    """Compute precision and recall of generated images, both in [0, 1].

    Every image has a radius: the distance to its k-th nearest neighbour in its own set. Precision is the share of
    generated images within the radius of a real image. Recall is the share of real images within the radius of a
    generated image. The paper uses k = 3.

    Source: Kynkäänniemi et al. (2019), Improved precision and recall metric for assessing generative models.
    """
    from torch_fidelity.metric_prc import KEY_METRIC_PRECISION, KEY_METRIC_RECALL, prc_features_to_metric

    _check_features(generated, reference)
    if neighbours >= min(len(generated), len(reference)):  # an image is no neighbour of itself
        raise ValueError(
            f"metrics.prc_neighbours must be less than the number of images, {len(generated)} generated and "
            f"{len(reference)} reference, got {neighbours}; use more prompts"
        )
    # float64: torch.cdist of wide float32 features is too imprecise to order near neighbours.
    generated, reference = generated.to(reference.device).double(), reference.double()
    options = {"prc_neighborhood": neighbours, "prc_batch_size": DISTANCE_BLOCK, "save_cpu_ram": True, "verbose": False}
    found = prc_features_to_metric(generated, reference, **options)  # the second set is the real one
    return found[KEY_METRIC_PRECISION], found[KEY_METRIC_RECALL]


def _check_features(generated: Tensor, reference: Tensor) -> None:
    # For FID, `reference` is the covariance (width, width), whose second size is the width, too.
    if generated.shape[1] != reference.shape[1]:
        raise ValueError(
            f"the generated images have {generated.shape[1]} features and the reference {reference.shape[1]}: measure "
            "both with the same extractor and layer"
        )
    if min(len(generated), len(reference)) < FEWEST:
        raise ValueError(
            f"each set must have at least {FEWEST} images, got {len(generated)} generated and {len(reference)} "
            "reference images; use more prompts"
        )
    for name, features in (("generated", generated), ("reference", reference)):
        if not torch.isfinite(features).all():
            raise ValueError(f"the features of the {name} images hold a value that is not finite")
