"""The image tokenizer of the shapes dataset: a VQ autoencoder that is small enough to be trained on a CPU.

It has the interface of `VQ16`. Encoder and decoder work at two resolutions. The finer one has 2 * grid positions per
side, one for each patch of image_size / (2 * grid) pixels. The coarser one has grid positions per side, one for each
code. Latents and code vectors have unit length, as in LlamaGen's vq_model.py (FoundationVision/LlamaGen@ce98ec4).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from lantern.models.stored import StoredModel
from lantern_models.images.vq16 import by_lines, check_codes, check_images

_BATCH = 32  # number of images that run together; larger batches exceed the CPU's cache
_GROUPS = 8  # of the group norms


@dataclass(frozen=True)
class TokenizerConfig:
    """Sizes of an `ImageTokenizer`, which is trained on square images.

    Attributes:
        image_size: side of the image in pixels, a multiple of 2 * grid.
        grid: number of codes per side.
        encoder_width: channels of the encoder at the finer resolution. At the coarser one it has twice as many.
        decoder_width: the same for the decoder.
        decoder_blocks: number of residual blocks of the decoder at each of the two resolutions.
    """

    image_size: int = 48
    grid: int = 8
    codebook_size: int = 1024
    code_dim: int = 8
    encoder_width: int = 48
    decoder_width: int = 64
    decoder_blocks: int = 2

    @property
    def code_pixels(self) -> int:
        """Side, in pixels, of the square of the image that one code represents."""
        return self.image_size // self.grid

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in codes."""
        return self.grid, self.grid


class ImageTokenizer(StoredModel):
    """The autoencoder. `embedding` holds the code vectors before they are scaled to unit length."""

    kind = "image_tokenizer"
    config_class = TokenizerConfig
    config: TokenizerConfig
    embedding: Tensor

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.config = config
        patch = config.image_size // (2 * config.grid)
        width = config.encoder_width
        wide = config.decoder_width
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(patch),
            nn.Conv2d(3 * patch**2, width, 3, padding=1),
            ResidualBlock(width),
            nn.Conv2d(width, 2 * width, 2, stride=2),
            ResidualBlock(2 * width),
            nn.GroupNorm(_GROUPS, 2 * width),
            nn.SiLU(),
            nn.Conv2d(2 * width, config.code_dim, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(config.code_dim, 2 * wide, 3, padding=1),
            *(ResidualBlock(2 * wide) for _ in range(config.decoder_blocks)),
            # To the finer resolution: four times `wide` channels become `wide` channels of 2 x 2 positions.
            nn.Conv2d(2 * wide, 4 * wide, 1),
            nn.PixelShuffle(2),
            *(ResidualBlock(wide) for _ in range(config.decoder_blocks)),
            nn.GroupNorm(_GROUPS, wide),
            nn.SiLU(),
            nn.Conv2d(wide, 3 * patch**2, 3, padding=1),
            nn.PixelShuffle(patch),
        )
        # A buffer, since training moves code vectors to moving averages of latents, not by gradients.
        rows = torch.randn(config.codebook_size, config.code_dim, generator=torch.Generator().manual_seed(0))
        self.register_buffer("embedding", F.normalize(rows, dim=-1))

    @property
    def codebook(self) -> Tensor:
        """The code vectors of unit length, float32 (codebook_size, code_dim)."""
        return F.normalize(self.embedding, dim=-1)

    @property
    def decoded_codebook(self) -> Tensor:
        """The code vectors that the decoder gets. They differ from `codebook` in other tokenizers."""
        return self.codebook

    def latents(self, images: Tensor) -> Tensor:
        """Encode images as latents, (images, grid * grid, code_dim), in raster order."""
        # channels_last is the faster layout for convolutions on a CPU.
        hidden = self.encoder(images.contiguous(memory_format=torch.channels_last))
        return F.normalize(hidden.flatten(2).transpose(1, 2), dim=-1)

    def reconstruct(self, latents: Tensor) -> Tensor:
        """Decode latents or code vectors to images of any shape, (images, 3, height, width), without clamping."""
        hidden = by_lines(latents, self.config.shape).permute(0, 3, 1, 2)
        return self.decoder(hidden.contiguous(memory_format=torch.channels_last))

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Encode images of the config's size as codes, int64 (images, grid * grid)."""
        check_images(images, self.config.image_size)
        return torch.cat([nearest_rows(self.latents(chunk), self.codebook) for chunk in images.split(_BATCH)])

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes to images of any shape, float32 (images, 3, height, width) in pixels, clamped to [-1, 1]."""
        codes = check_codes(codes, self.config.shape, self.config.codebook_size)
        codebook = self.codebook
        chunks = codes.long().split(_BATCH)
        return torch.cat([self.reconstruct(codebook[chunk]).clamp(-1.0, 1.0) for chunk in chunks])


class ResidualBlock(nn.Module):
    """Residual block: x + conv(silu(norm(conv(silu(norm(x))))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(_GROUPS, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(_GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        # The untrained block returns its input.
        for parameter in self.conv2.parameters():
            nn.init.zeros_(parameter)

    @override
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(hidden)))


def nearest_rows(vectors: Tensor, rows: Tensor) -> Tensor:
    """Return the index of the row nearest to each vector, int64 (...). Ties go to the first row."""
    # |v - row|^2 = 2 - 2 v row, since both have unit length.
    return (vectors @ rows.T).argmax(-1)
