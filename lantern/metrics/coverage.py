"""Precision and recall on a published extractor's raw features, computed by torch-fidelity, real images as input2."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_fidelity.metric_prc import KEY_METRIC_PRECISION, KEY_METRIC_RECALL, prc_features_to_metric

from lantern.metrics.bootstrap import normal_interval, share_interval
from lantern.metrics.halves import draw_halves, halves_error

COVERAGE_COLUMNS = ("precision", "precision_low", "precision_high", "recall", "recall_low", "recall_high")
BLOCK = 4096  # images whose distances to all others torch-fidelity holds at once


def measure_coverage(
    generated: Tensor, reference: Tensor, *, neighbours: int, num_resamples: int, seed: int
) -> dict[str, float]:
    """Computes the share of generated images near a real one (precision) and of real ones near a generated one.

    "Near" is inside the ball that reaches to the k-th nearest neighbour among the other set's own images.

    Args:
        generated: (n, width) float, raw features.
        reference: (m, width) float, of the real images; the device that it lies on computes.
        neighbours: k; 3 as published. Less than n / 2 and m.
        num_resamples: random halves of the images behind the interval of recall.
        seed: of the halves.

    Returns:
        COVERAGE_COLUMNS: shares, and their 95 % intervals over the generated images for a fixed reference: exact for
            precision, plus and minus 1.96 standard errors for recall.

    Raises:
        ValueError: too few images, other widths, or a feature that is not finite.

    Source:
        Kynkäänniemi et al. (2019), Improved precision and recall metric for assessing generative models.
    """
    _check(generated, reference, neighbours)
    # float64: torch.cdist of wide float32 features loses the digits that decide about the nearest
    generated, reference = generated.to(reference.device).double(), reference.double()
    found = prc_features_to_metric(
        generated, reference, prc_neighborhood=neighbours, prc_batch_size=BLOCK, save_cpu_ram=True, verbose=False
    )
    precision, recall = found[KEY_METRIC_PRECISION], found[KEY_METRIC_RECALL]
    among, across = (_distances(generated, others) for others in (generated, reference))
    recalls = [_recall(among, across, rows, neighbours) for rows in draw_halves(len(generated), num_resamples, seed)]
    error = halves_error(torch.tensor(recalls), len(generated))
    ends = (
        *share_interval(round(precision * len(generated)), len(generated)),
        *normal_interval(recall, error, is_share=True),
    )
    values = (precision, *ends[:2], recall, *ends[2:])
    return {name: float(value) for name, value in zip(COVERAGE_COLUMNS, values, strict=True)}


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """Distances (n, m) float32, on the CPU."""
    return torch.cat([torch.cdist(rows, second).float().cpu() for rows in first.split(BLOCK)])


def _recall(among: Tensor, across: Tensor, rows: Tensor, neighbours: int) -> float:
    """Recall of a part of the images, whose balls are those among the part; distances (n, n) and (n, m)."""
    radii = among[rows][:, rows].kthvalue(neighbours + 1).values  # its own distance 0 is the first
    return float((across[rows] <= radii[:, None]).any(dim=0).double().mean())


def _check(generated: Tensor, reference: Tensor, neighbours: int) -> None:
    if generated.shape[1] != reference.shape[1]:
        raise ValueError(
            f"the generated images have {generated.shape[1]} features and the reference {reference.shape[1]}: they are "
            "of different extractors or layers"
        )
    fewest = min(len(generated) // 2, len(reference))
    if neighbours >= fewest:
        raise ValueError(
            f"metrics.prc_neighbours must be less than half of the {len(generated)} generated images and than the "
            f"{len(reference)} of the reference, got {neighbours}"
        )
    for name, features in (("generated", generated), ("reference", reference)):
        if not torch.isfinite(features).all():
            raise ValueError(f"the features of the {name} images hold a value that is not finite")
