"""KID of two sets of images' features, computed by torch-fidelity; no matrix of images x images is ever held."""

from __future__ import annotations

import math

from torch import Tensor

from lantern_pipeline.metrics.fid import FEWEST, check_features
from lantern_pipeline.metrics.intervals import draw_parts, jackknife_error, normal_interval

BLOCK = 2048  # images whose kernel with all others is held at once
KID_COLUMNS = ("kid", "kid_std", "kid_low", "kid_high")


def measure_kid(
    generated: Tensor, reference: Tensor, *, subset_size: int, num_subsets: int, num_resamples: int, seed: int
) -> dict[str, float]:
    """Computes KID of features (n, width) and (m, width) by torch-fidelity, with a 95 % interval over the generated
    images for a fixed reference of the same extractor and layer, on whose device it is computed.

    Gives KID_COLUMNS, dimensionless: the mean and the standard deviation over subsets, and 1.96 standard errors either
    way from `num_resamples` random parts of the images; nan with fewer than 4. KID is unbiased, so that the estimate
    and its interval may reach below 0.
    """
    # Imported here: torch-fidelity takes seconds to import, and ablations do without.
    from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric

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
    parts, error = draw_parts(len(generated), num_resamples, seed), math.nan
    if parts.shape[1] >= FEWEST:
        error = jackknife_error(_kid_of_parts(generated, reference, parts), len(generated))
    # the choice of the subsets adds to what the images vary
    ends = normal_interval(value, math.hypot(error, spread / math.sqrt(num_subsets)))
    return dict(zip(KID_COLUMNS, (value, spread, *ends), strict=True))


def _kid_of_parts(generated: Tensor, reference: Tensor, parts: Tensor) -> Tensor:
    """Unbiased KID of every part (parts,), up to the reference's own term, which is the same for all."""
    num_kept = parts.shape[1]
    chosen = generated.new_zeros(len(generated), len(parts))
    chosen.scatter_(0, parts.T.to(generated.device), 1.0)  # (n, parts), 1 where the part has the image
    pairs, across = generated.new_zeros(2, len(parts))
    for first in range(0, len(generated), BLOCK):
        rows = slice(first, first + BLOCK)
        within = _kernel(generated[rows], generated)
        within.diagonal(first).zero_()
        pairs = pairs + ((within @ chosen) * chosen[rows]).sum(dim=0)
        across = across + _kernel(generated[rows], reference).mean(dim=1) @ chosen[rows]
    return pairs / (num_kept * (num_kept - 1)) - 2 * across / num_kept


def _kernel(first: Tensor, second: Tensor) -> Tensor:
    return (first @ second.T / first.shape[1] + 1).pow_(3)
