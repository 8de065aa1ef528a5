"""FID, KID, precision and recall, computed by torch-fidelity on standardised recogniser features.

The reference is the tokenizer's reconstruction of held-out images, not the images themselves: what the tokenizer cannot
draw is no fault of the decoder. Values depend on the number of images (FID falls with it) and on the features: compare
rows of one table only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, KEY_METRIC_KID_STD, kid_features_to_metric
from torch_fidelity.metric_prc import KEY_METRIC_PRECISION, KEY_METRIC_RECALL, prc_features_to_metric


def measure_fidelity(
    generated: Tensor,
    reference: Tensor,
    *,
    kid_subset_size: int,
    kid_subsets: int = 50,
    prc_neighbours: int = 3,
    seed: int = 0,
) -> dict[str, float]:
    """Compares the features of generated images with those of the reference.

    Args:
        generated: (n, features) float, standardised.
        reference: (m, features) float, standardised with the same scale.
        kid_subset_size: images per KID subset, at most min(n, m).
        kid_subsets: KID subsets averaged.
        prc_neighbours: k of the k-nearest-neighbour balls; less than n and m.
        seed: of the KID subsets.

    Returns:
        fid, kid (mean over subsets), kid_std (over subsets), precision, recall. Dimensionless.

    Raises:
        ValueError: too few images for a setting, or a feature that is not finite.
    """
    _check(generated, reference, kid_subset_size, prc_neighbours)
    # float64: with fewer images than features the covariances are singular, and their product's eigenvalues need the
    # digits.
    generated, reference = generated.double(), reference.double()
    statistics = [fid_features_to_statistics(features) for features in (generated, reference)]
    fid = fid_statistics_to_metric(*statistics, verbose=False)
    kid = kid_features_to_metric(
        generated,
        reference,
        kid_subset_size=kid_subset_size,
        kid_subsets=kid_subsets,
        rng_seed=seed % 2**32,
        verbose=False,
    )
    # torch-fidelity's convention: generated images first, real ones second.
    prc = prc_features_to_metric(generated, reference, prc_neighborhood=prc_neighbours, verbose=False)
    return {
        "fid": fid[KEY_METRIC_FID],
        "kid": kid[KEY_METRIC_KID_MEAN],
        "kid_std": kid[KEY_METRIC_KID_STD],
        "precision": prc[KEY_METRIC_PRECISION],
        "recall": prc[KEY_METRIC_RECALL],
    }


def _check(generated: Tensor, reference: Tensor, kid_subset_size: int, prc_neighbours: int) -> None:
    fewest = min(len(generated), len(reference))
    if kid_subset_size > fewest:
        raise ValueError(
            f"metrics.kid_subset_size must be at most the number of images, {len(generated)} generated and "
            f"{len(reference)} reference, got {kid_subset_size}"
        )
    if prc_neighbours >= fewest:
        raise ValueError(
            f"metrics.prc_neighbours must be less than the number of images, {fewest}, got {prc_neighbours}"
        )
    for name, features in (("generated", generated), ("reference", reference)):
        if not torch.isfinite(features).all():
            raise ValueError(f"the features of the {name} images hold a value that is not finite")
