"""Images of coloured squares, one square per code, for models whose codes Lantern cannot decode to real images.

An example is GLM-Image, whose codes only another program can decode. The squares do not show what the prompt describes.
Similar codes have similar colours: red, green and blue are the three principal directions of the codebook.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from typing_extensions import override

from lantern.models.stored import StoredModel
from lantern_models.images.vq16 import ImageSizes, check_codes
from lantern_models.sizes import Sides


@dataclass(frozen=True)
class CodeColoursConfig(ImageSizes):
    """Sizes of a codebook, and of the images of `CodeColours`. The defaults are GLM-Image's."""

    grid: Sides = 32
    codebook_size: int = 16384
    code_dim: int = 2048

    @property
    @override
    def code_pixels(self) -> int:
        return CodeColours.pixels


class CodeColours(StoredModel):
    """The interface of `VQ16` without an encoder."""

    kind = "code_colours"
    config_class = CodeColoursConfig
    config: CodeColoursConfig
    pixels = 32  # side of a code's square, as in GLM-Image

    def __init__(self, config: CodeColoursConfig) -> None:
        super().__init__()
        self.config = config
        self.codebook = nn.Parameter(torch.empty(config.codebook_size, config.code_dim), requires_grad=False)

    @property
    def decoded_codebook(self) -> Tensor:
        """The code vectors in float32, (codebook_size, code_dim)."""
        return self.codebook.float()

    def encode(self, images: Tensor) -> Tensor:
        """Raise a ValueError."""
        raise ValueError(
            "codes of this model cannot be made from images; let the target generate some (drafter.codes: samples)"
        )

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes to images of any shape, float32 (images, 3, height, width) in pixels, in [-1, 1]."""
        codes = check_codes(codes, self.config.shape, self.config.codebook_size)
        colours = self.colours[codes.long()].permute(0, 3, 1, 2)  # (images, 3, lines, columns)
        return colours.repeat_interleave(self.pixels, 2).repeat_interleave(self.pixels, 3)

    @cached_property
    def colours(self) -> Tensor:
        """RGB colour of each code, float32 (codebook_size, 3) in [-1, 1]."""
        rows = self.codebook.float() - self.codebook.float().mean(0)
        # Principal directions are eigenvectors of the covariance. eigh sorts them by increasing eigenvalue, so red is
        # the last one.
        _, directions = torch.linalg.eigh(rows.T @ rows)
        # argsort twice gives ranks. Ranks instead of projections use all colour values equally often.
        ranks = (rows @ directions[:, -3:].flip(1)).argsort(0).argsort(0)
        return 2 * ranks / (len(rows) - 1) - 1
