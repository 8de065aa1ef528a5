"""Precision and recall of two sets of images' features, computed by torch-fidelity, real images as input2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lantern_pipeline.metrics.fid import check_features
from lantern_pipeline.metrics.intervals import SHARE, draw_parts, jackknife_error, normal_interval, share_interval

PRECISION_RECALL_COLUMNS = ("precision", "precision_low", "precision_high", "recall", "recall_low", "recall_high")
BLOCK = 4096  # images whose distances to all others torch-fidelity holds at once


def measure_precision_recall(
    generated: Tensor, reference: Tensor, *, neighbours: int, num_resamples: int, seed: int
) -> dict[str, float]:
    """Computes the share of generated images near a real one (precision) and of real ones near a generated one.

    "Near" is inside the ball that reaches to the k-th nearest neighbour among the other set's own images; k is 3 as
    published. Features are (n, width) and (m, width); the device of the real ones computes.

    Gives PRECISION_RECALL_COLUMNS: shares, and their 95 % intervals over the generated images for a fixed reference:
    exact for precision, 1.96 standard errors either way for recall, which is nan where half of the images are no more
    than `neighbours`. Recall moves with the number of images.

    Source: Kynkäänniemi et al. (2019), Improved precision and recall metric for assessing generative models.
    """
    # Imported here: torch-fidelity takes seconds to import, and ablations do without.
    from torch_fidelity.metric_prc import KEY_METRIC_PRECISION, KEY_METRIC_RECALL, prc_features_to_metric

    _check(generated, reference, neighbours)
    # float64: torch.cdist of wide float32 features loses the digits that decide about the nearest
    generated, reference = generated.to(reference.device).double(), reference.double()
    found = prc_features_to_metric(
        generated, reference, prc_neighborhood=neighbours, prc_batch_size=BLOCK, save_cpu_ram=True, verbose=False
    )
    precision, recall = found[KEY_METRIC_PRECISION], found[KEY_METRIC_RECALL]
    error = _recall_error(generated, reference, draw_parts(len(generated), num_resamples, seed), neighbours)
    of_precision = share_interval(round(precision * len(generated)), len(generated))
    values = (precision, *of_precision, recall, *normal_interval(recall, error, SHARE))
    return {name: float(value) for name, value in zip(PRECISION_RECALL_COLUMNS, values, strict=True)}


def _recall_error(generated: Tensor, reference: Tensor, parts: Tensor, neighbours: int) -> float:
    if parts.shape[1] <= neighbours:
        return math.nan
    among, across = (_distances(generated, others) for others in (generated, reference))
    recalls = [_recall(among, across, rows, neighbours) for rows in parts]
    return jackknife_error(torch.tensor(recalls, dtype=torch.float64), len(generated))


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """Distances (n, m) float32, on the CPU."""
    return torch.cat([torch.cdist(rows, second).float().cpu() for rows in first.split(BLOCK)])


def _recall(among: Tensor, across: Tensor, rows: Tensor, neighbours: int) -> float:
    """Recall of a part of the images, whose balls are those among the part; distances (n, n) and (n, m)."""
    radii = among[rows][:, rows].kthvalue(neighbours + 1).values  # its own distance 0 is the first
    return float((across[rows] <= radii[:, None]).any(dim=0).double().mean())


def _check(generated: Tensor, reference: Tensor, neighbours: int) -> None:
    check_features(generated, reference)
    if neighbours >= min(len(generated), len(reference)):
        raise ValueError(
            f"metrics.prc_neighbours must be less than the number of images, {len(generated)} generated and "
            f"{len(reference)} reference, got {neighbours}"
        )
