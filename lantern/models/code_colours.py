"""Pictures of codes that only another program can decode: each code is a square of a colour of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from lantern.models.stored import StoredModel
from lantern.models.vq16 import check_codes


@dataclass(frozen=True)
class CodeColoursConfig:
    """Sizes of a codebook, and of the grid that is drawn."""

    grid: int = 32
    codebook_size: int = 16384
    code_dim: int = 2048

    @property
    def image_size(self) -> int:
        """Side of an image in pixels."""
        return self.grid * CodeColours.pixels


class CodeColours(StoredModel):
    """A codebook under the interface of VQ-16. What it draws is no picture of the scene: red, green and blue are the
    codebook's three main directions, so that codes that lie close look alike.
    """

    kind = "code_colours"
    config_class = CodeColoursConfig
    config: CodeColoursConfig
    pixels = 32  # of a code's side, as GLM-Image has

    def __init__(self, config: CodeColoursConfig) -> None:
        super().__init__()
        self.config = config
        self.codebook = nn.Parameter(torch.empty(config.codebook_size, config.code_dim), requires_grad=False)

    @property
    def decoded_codebook(self) -> Tensor:
        """The codes, float32."""
        return self.codebook.float()

    def encode(self, images: Tensor) -> Tensor:
        """There is no encoder: a ValueError."""
        raise ValueError(
            "codes of this model cannot be made of images; let the target draw some (drafter.codes: samples)"
        )

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Return images, float32 (images, 3, size, size) in [-1, 1].

        Args:
            codes: codes of images, (images, tokens). The last grid * grid are drawn, since stored records of GLM-Image
                also hold the smaller image that comes first.

        Raises:
            ValueError: a code is out of range.
        """
        config = self.config
        codes = codes[:, -(config.grid**2) :]
        check_codes(codes, config.grid, config.codebook_size)
        colours = self.colours[codes.long()].unflatten(1, (config.grid, -1)).permute(0, 3, 1, 2)
        return colours.repeat_interleave(self.pixels, 2).repeat_interleave(self.pixels, 3)

    @cached_property
    def colours(self) -> Tensor:
        """Of each code, (codebook_size, 3) in [-1, 1]: its rank along each direction, so that all are used alike."""
        rows = self.codebook.float() - self.codebook.float().mean(0)
        _, directions = torch.linalg.eigh(rows.T @ rows)
        ranks = (rows @ directions[:, -3:].flip(1)).argsort(0).argsort(0)
        return 2 * ranks / (len(rows) - 1) - 1
