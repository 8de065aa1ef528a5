"""Images of coloured squares, one square per code, for models whose codes Lantern cannot decode to real images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from lantern.models.config import Sides
from lantern.models.stored import StoredModel
from lantern.models.vq16 import ImageSizes, check_codes


@dataclass(frozen=True)
class CodeColoursConfig(ImageSizes):
    """Sizes of a codebook, and of the images that `CodeColours` makes, with one coloured square per code.

    Attributes:
        grid: height and width of an image in codes, or the side of a square. `decode` takes other shapes too.
        codebook_size: number of codes.
        code_dim: channels of a code.
    """

    grid: Sides = 32
    codebook_size: int = 16384
    code_dim: int = 2048

    @property
    def code_pixels(self) -> int:
        """Side, in pixels, of the square of the image that one code represents."""
        return CodeColours.pixels


class CodeColours(StoredModel):
    """An image tokenizer that shows each code as a square of one colour. It has the interface of `VQ16`.

    It serves models such as GLM-Image, whose codes only another program can decode to an image. The squares do not show
    what the prompt describes. Red, green and blue are the codebook's three principal directions, so that similar codes
    have similar colours.

    Args:
        config: the sizes.
    """

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
        """The code vectors, float32 (codebook_size, code_dim)."""
        return self.codebook.float()

    def encode(self, images: Tensor) -> Tensor:
        """Raise an error, since there is no encoder that makes codes from images.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "codes of this model cannot be made from images; let the target generate some (drafter.codes: samples)"
        )

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Return coloured squares for codes, float32 (images, 3, height, width) in [-1, 1].

        Args:
            codes: integers (images, lines, columns), or (images, codes) for images of the config's shape.

        Raises:
            ValueError: an image does not have the number of codes of the config, or a code is out of range.
        """
        codes = check_codes(codes, self.config.shape, self.config.codebook_size)
        colours = self.colours[codes.long()].permute(0, 3, 1, 2)
        return colours.repeat_interleave(self.pixels, 2).repeat_interleave(self.pixels, 3)

    @cached_property
    def colours(self) -> Tensor:
        """RGB colour of each code, float32 (codebook_size, 3) in [-1, 1].

        Red, green and blue belong to the three principal directions of the codebook. The codes are ranked along each
        direction, and the ranks are the colour values. All values are therefore used equally often.
        """
        rows = self.codebook.float() - self.codebook.float().mean(0)
        _, directions = torch.linalg.eigh(rows.T @ rows)
        ranks = (rows @ directions[:, -3:].flip(1)).argsort(0).argsort(0)
        return 2 * ranks / (len(rows) - 1) - 1
