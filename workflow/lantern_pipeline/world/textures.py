"""Random backgrounds of the shapes dataset: textures that are computed from given uniform noise.

Captions do not determine the fine detail of a texture. A model that is trained on these images therefore spreads its
next-token distribution over many tokens, as models of real images do.

Lengths are in units of 1/48 of the image's side. Fields are (images, size, size), images (images, 3, size, size), about
in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NUM_COARSE = 3
COARSE_SIZE = 16
NUM_PARAMETERS = 8  # at most three are used by a texture; another number would change all images
# Side of an image in the unit of lengths, whatever its size in pixels.
REFERENCE_SIZE = 48.0


@dataclass(frozen=True)
class TextureNoise:
    """Random numbers from which the backgrounds of a batch of images are computed, uniform in [0, 1), float32."""

    fine: Tensor  # two values per pixel, (images, 2, size, size)
    # Grids of values, from which smooth fields are interpolated.
    coarse: Tensor  # (images, NUM_COARSE, COARSE_SIZE, COARSE_SIZE)
    parameters: Tensor  # values per image, such as phases and offsets, (images, NUM_PARAMETERS)

    def select(self, rows: Tensor) -> TextureNoise:
        """Return the noise of the images with the given indices in the batch."""
        return TextureNoise(self.fine[rows], self.coarse[rows], self.parameters[rows])

    def parameter(self, index: int, low: float, high: float) -> Tensor:
        """Return one random parameter of each image's background, scaled to [low, high), (images, 1, 1)."""
        return (low + (high - low) * self.parameters[:, index])[:, None, None]


def _smooth(noise: TextureNoise, channel: int, height: int, width: int) -> Tensor:
    """Interpolate a smooth field from `height` rows and `width` columns of a coarse grid. Fewer are smoother."""
    corner = noise.coarse[:, channel : channel + 1, :height, :width]
    size = noise.fine.shape[-1]
    return F.interpolate(corner, size=(size, size), mode="bicubic", align_corners=True)[:, 0]


def _streaks(fine: Tensor, height: int, width: int) -> Tensor:
    """Average white noise over a rectangle around each pixel, rescaled to mean 0 and deviation about 1.

    A long, thin rectangle gives streaks.
    """
    scale = fine.shape[-1] / REFERENCE_SIZE
    # `| 1` makes the sides odd, so that the rectangle has a central pixel.
    kernel = [max(1, round(length * scale)) | 1 for length in (height, width)]
    padding = [length // 2 for length in kernel]
    mean = F.avg_pool2d(fine[:, None] - 0.5, kernel, 1, padding, count_include_pad=False)[:, 0]
    # A uniform number has variance 1/12, the mean of n of them 1/(12 n).
    return mean * (12.0 * kernel[0] * kernel[1]) ** 0.5


def _coordinates(noise: TextureNoise) -> tuple[Tensor, Tensor]:
    """Return x and y of the pixels' centres, (1, 1, size) and (1, size, 1)."""
    size = noise.fine.shape[-1]
    line = (torch.arange(size, dtype=torch.float32) + 0.5) * (REFERENCE_SIZE / size)
    return line[None, None, :], line[None, :, None]


def _mix(low: tuple[float, float, float], high: tuple[float, float, float], weight: Tensor) -> Tensor:
    """Blend two colours: `low` at weight 0, `high` at weight 1."""
    start = torch.tensor(low)[None, :, None, None]
    return start + (torch.tensor(high)[None, :, None, None] - start) * weight[:, None]


def _grass(noise: TextureNoise) -> Tensor:
    blades = 0.5 + 0.24 * _streaks(noise.fine[:, 0], 9, 3) + 0.06 * _streaks(noise.fine[:, 1], 5, 1)
    patches = _smooth(noise, 0, 5, 5) - 0.5
    image = _mix((0.13, 0.25, 0.07), (0.50, 0.62, 0.24), blades + 0.5 * patches)
    return image + 0.10 * patches[:, None] * torch.tensor([1.0, 0.4, 0.0])[None, :, None, None]


def _sand(noise: TextureNoise) -> Tensor:
    x, y = _coordinates(noise)
    # Phase of the ripples, in radians: a random one below 2 pi, bent by a smooth field.
    bend = 7.0 * _smooth(noise, 0, 5, 5) + noise.parameter(0, 0.0, 6.3)
    ripples = torch.sin(noise.parameter(1, 0.5, 0.8) * y + noise.parameter(2, -0.3, 0.3) * x + bend)
    grain = 0.03 * _streaks(noise.fine[:, 0], 1, 1) + 0.10 * _streaks(noise.fine[:, 1], 3, 3)
    weight = 0.52 + 0.22 * ripples + grain + 0.3 * (_smooth(noise, 1, 6, 6) - 0.5)
    return _mix((0.55, 0.43, 0.27), (0.93, 0.84, 0.64), weight)


def _water(noise: TextureNoise) -> Tensor:
    _, y = _coordinates(noise)
    swell = _smooth(noise, 0, 12, 5) - 0.5
    waves = 0.5 * swell + 0.10 * _streaks(noise.fine[:, 0], 3, 7) + 0.12 * (y / REFERENCE_SIZE - 0.5)
    # Only the peaks of the streaks, above 0.9 deviations, reflect light.
    glints = F.avg_pool2d((_streaks(noise.fine[:, 1], 3, 9) - 0.9).clamp(0.0, 1.2)[:, None], 3, 1, 1)
    return _mix((0.02, 0.24, 0.36), (0.22, 0.56, 0.66), 0.5 + waves) + 0.45 * glints


def _clouds(noise: TextureNoise) -> Tensor:
    _, y = _coordinates(noise)
    # Octaves of noise: each is finer and weaker. The weights have the sum 1.
    billows = 0.62 * _smooth(noise, 0, 5, 4) + 0.26 * _smooth(noise, 1, 11, 9) + 0.12 * _smooth(noise, 2, 16, 16)
    # A steep threshold gives clouds an edge. A random level makes some skies clearer.
    cover = ((billows - noise.parameter(0, 0.40, 0.52)) * 5.0).clamp(0.0, 1.0)
    shade = 0.05 * _streaks(noise.fine[:, 0], 5, 5)
    sky = _mix((0.36, 0.58, 0.84), (0.66, 0.81, 0.93), (y / REFERENCE_SIZE).expand_as(cover) + shade)
    grey = (0.93 - 0.5 * (billows - 0.5).clamp(min=0.0) + 0.5 * shade)[:, None]
    return sky + (grey - sky) * cover[:, None]


def _night(noise: TextureNoise) -> Tensor:
    haze = 0.55 * _smooth(noise, 0, 4, 4) + 0.45 * _smooth(noise, 1, 11, 11)
    sky = _mix((0.02, 0.03, 0.11), (0.14, 0.16, 0.36), 2.0 * haze - 0.6)
    # 0.9 % of the pixels are stars.
    bright = ((noise.fine[:, 0] - 0.991) * 90.0).clamp(0.0, 0.6)
    # A star is a bright pixel with a dimmer cross and a soft square around it.
    across = F.avg_pool2d(bright[:, None], (1, 3), 1, (0, 1)) + F.avg_pool2d(bright[:, None], (3, 1), 1, (1, 0))
    glow = 1.5 * across + 4.0 * F.avg_pool2d(bright[:, None], 3, 1, 1)
    return sky + (0.4 * bright[:, None] + glow) * torch.tensor([1.0, 0.97, 0.85])[None, :, None, None]


def _brick(noise: TextureNoise) -> Tensor:
    x, y = _coordinates(noise)
    height, width = 6.0, 12.0
    row = (y + noise.parameter(0, 0.0, height)) / height
    # Every other row is shifted by half a brick.
    shift = 0.5 * torch.remainder(row.floor(), 2.0)
    column = (x + noise.parameter(1, 0.0, width)) / width + shift
    # Distance to the nearest joint: `height / 2` in the middle of a brick, 0 in the middle of a joint.
    inside = torch.minimum((row - row.floor() - 0.5).abs().mul(-height).add(height / 2).expand_as(column),
                           (column - column.floor() - 0.5).abs().mul(-width).add(width / 2))  # fmt: skip
    mortar = (1.25 - inside).clamp(0.0, 1.0)
    # The number of a brick chooses its tone from the coarse noise. An image has fewer than 16 rows and columns.
    brick = (row.floor() * COARSE_SIZE + column.floor()).long().flatten(1)  # (images, size * size)
    tone = noise.coarse[:, 0].flatten(1).gather(1, brick).view_as(mortar)
    grain = 0.03 * _streaks(noise.fine[:, 0], 1, 1) + 0.10 * _streaks(noise.fine[:, 1], 3, 5)
    wall = _mix((0.36, 0.19, 0.14), (0.66, 0.40, 0.30), 0.9 * tone + grain)
    return wall + (0.62 + 0.25 * grain[:, None] - wall) * mortar[:, None]


TEXTURES: dict[str, Callable[[TextureNoise], Tensor]] = {
    "grass": _grass,
    "sand": _sand,
    "water": _water,
    "clouds": _clouds,
    "night": _night,
    "brick": _brick,
}


def paint_backgrounds(names: list[str], noise: TextureNoise) -> Tensor:
    """Paint one background, a key of TEXTURES, per image. The result is not clamped to [0, 1]."""
    size = noise.fine.shape[-1]
    images = torch.empty(len(names), 3, size, size)
    for name in sorted(set(names)):
        rows = torch.tensor([row for row, other in enumerate(names) if other == name])
        images[rows] = TEXTURES[name](noise.select(rows))
    return images
