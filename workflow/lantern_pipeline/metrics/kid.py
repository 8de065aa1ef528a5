"""KID of two sets of images' features, computed by torch-fidelity; no matrix of images x images is ever held."""

from __future__ import annotations

import math

from torch import Tensor

from lantern_pipeline.metrics.fid import FEWEST, check_features
from lantern_pipeline.metrics.intervals import draw_parts, jackknife_error, normal_interval

BLOCK = 2048  # images whose kernel with all others is held at once


def measure_kid(
    generated: Tensor, reference: Tensor, *, subset_size: int, num_subsets: int, num_resamples: int, seed: int
) -> tuple[float, float, float, float]:
    """Computes KID of features (n, width) and (m, width) of one extractor, on the reference's device: the mean over
    subsets, its 95 % interval for a fixed reference, and the standard deviation over subsets.

    Subsets hold at most as many images as either set. The interval is 1.96 standard errors either way from
    `num_resamples` random halves of the images; nan with fewer than 4. KID is unbiased: it may lie below 0.
    """
    # Imported here: torch-fidelity takes seconds to import, and ablations do without.
    from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric

    check_features(generated, reference)
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
    for first in range(0, len(generated), BLOCK):
        rows = slice(first, first + BLOCK)
        within = _kernel(generated[rows], generated)
        within.diagonal(first).zero_()
        pairs = pairs + ((within @ chosen) * chosen[rows]).sum(dim=0)
        across = across + _kernel(generated[rows], reference).mean(dim=1) @ chosen[rows]
    return pairs / (num_kept * (num_kept - 1)) - 2 * across / num_kept


def _kernel(first: Tensor, second: Tensor) -> Tensor:
    return (first @ second.T / first.shape[1] + 1).pow_(3)
