"""Precision and recall of two sets of images' features, computed by torch-fidelity, real images as input2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lantern_pipeline.metrics.fid import check_features
from lantern_pipeline.metrics.intervals import SHARE, draw_parts, jackknife_error, normal_interval, share_interval

BLOCK = 4096  # images whose distances to all others are held at once


def measure_precision_recall(
    generated: Tensor, reference: Tensor, *, neighbours: int, num_resamples: int, seed: int
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Computes the share of generated images near a real one (precision) and of real ones near a generated one.

    "Near" is inside the ball that reaches to the k-th nearest neighbour among the other set's own images; k is 3 as
    published. Features are (n, width) and (m, width); the device of the real ones computes. Each with the ends of its
    95 % interval over the generated images for a fixed reference: exact for precision, 1.96 standard errors either way
    for recall, nan where half of the images are no more than `neighbours`. Recall moves with the number of images.

    Source: Kynkäänniemi et al. (2019), Improved precision and recall metric for assessing generative models.
    """
    # Imported here: torch-fidelity takes seconds to import, and ablations do without.
    from torch_fidelity.metric_prc import KEY_METRIC_PRECISION, KEY_METRIC_RECALL, prc_features_to_metric

    check_features(generated, reference)
    if neighbours >= min(len(generated), len(reference)):
        raise ValueError(
            f"metrics.prc_neighbours must be less than the number of images, {len(generated)} generated and "
            f"{len(reference)} reference, got {neighbours}; draw more prompts"
        )
    # float64: torch.cdist of wide float32 features loses the digits that decide about the nearest
    generated, reference = generated.to(reference.device).double(), reference.double()
    options = {"prc_neighborhood": neighbours, "prc_batch_size": BLOCK, "save_cpu_ram": True, "verbose": False}
    found = prc_features_to_metric(generated, reference, **options)
    precision, recall = found[KEY_METRIC_PRECISION], found[KEY_METRIC_RECALL]
    ends = share_interval(round(precision * len(generated)), len(generated))
    error = _recall_error(generated, reference, draw_parts(len(generated), num_resamples, seed), neighbours)
    return (precision, *map(float, ends)), (recall, *normal_interval(recall, error, SHARE))


def _recall_error(generated: Tensor, reference: Tensor, parts: Tensor, neighbours: int) -> float:
    """Standard error of recall from its values on parts, whose distances are taken once for all of them."""
    if parts.shape[1] <= neighbours:
        return math.nan
    among, across = (
        torch.cat([torch.cdist(rows, others).float().cpu() for rows in generated.split(BLOCK)])
        for others in (generated, reference)
    )
    recalls = []
    for rows in parts:
        radii = among[rows][:, rows].kthvalue(neighbours + 1).values  # an image's own distance 0 is the first
        recalls.append((across[rows] <= radii[:, None]).any(dim=0).double().mean())
    return jackknife_error(torch.stack(recalls), len(generated))
