"""Outlines of the embedded world's objects as signed distance functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def signed_distance(shapes: Sequence[str], x: Tensor, y: Tensor, radius: Tensor, angle: Tensor) -> Tensor:
    """Signed distance to each image's outline, negative inside: (images, size, size), in the unit of `radius`.

    x (images, 1, size) and y (images, size, 1), downwards, are offsets from the centre; `angle` (images,) in radians.
    """
    distance = torch.empty(len(shapes), y.shape[1], x.shape[2])
    for shape in sorted(set(shapes)):
        rows = torch.tensor([row for row, other in enumerate(shapes) if other == shape])
        cos, sin = angle[rows].cos()[:, None, None], angle[rows].sin()[:, None, None]
        turned_x = cos * x[rows] + sin * y[rows]
        turned_y = cos * y[rows] - sin * x[rows]
        distance[rows] = DISTANCES[shape](turned_x, turned_y, radius[rows, None, None])
    return distance


def _circle(x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    return (x * x + y * y).sqrt() - r


def _square(x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    return torch.maximum(x.abs(), y.abs()) - 0.88 * r


def _triangle(x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    below = y - 0.72 * r
    return torch.maximum(below, 0.866 * x.abs() - 0.5 * (y + 0.02 * r) - 0.56 * r)


def _cross(x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    long, short = 1.05 * r, 0.37 * r
    upright = torch.maximum(x.abs() - short, y.abs() - long)
    return torch.minimum(upright, torch.maximum(x.abs() - long, y.abs() - short))


def _ring(x: Tensor, y: Tensor, r: Tensor) -> Tensor:
    return ((x * x + y * y).sqrt() - 0.73 * r).abs() - 0.29 * r


DISTANCES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
    "ring": _ring,
}
SHAPES = tuple(DISTANCES)
