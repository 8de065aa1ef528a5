"""The image tokenizer of the shapes dataset: a VQ autoencoder with LlamaGen's interface, small enough for CPUs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern.models.stored import StoredModel
from lantern.models.vq16 import by_lines, check_codes, check_images

_BATCH = 32  # number of images that run together; larger batches exceed the CPU's cache
_GROUPS = 8


@dataclass(frozen=True)
class TokenizerConfig:
    """Sizes of the tokenizer."""

    image_size: int = 48  # side in pixels, a multiple of 2 * grid
    grid: int = 8  # tokens per side; an image has grid * grid tokens
    codebook_size: int = 1024
    code_dim: int = 8  # length of a code
    encoder_width: int = 48  # channels at 2 * grid positions per side; twice this number at grid positions
    decoder_width: int = 64  # the same for the decoder
    decoder_blocks: int = 2  # residual blocks of the decoder at each of the two resolutions


class ImageTokenizer(StoredModel):
    """A tokenizer with an l2-normalised codebook: images become the nearest codes, and codes become images.

    The vectors are normalised as in LlamaGen's vq_model.py (FoundationVision/LlamaGen@ce98ec4). Patches have image_size
    / (2 * grid) pixels. There are blocks at 2 * grid and at grid positions per side.
    """

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
            nn.Conv2d(2 * wide, 4 * wide, 1),
            nn.PixelShuffle(2),
            *(ResidualBlock(wide) for _ in range(config.decoder_blocks)),
            nn.GroupNorm(_GROUPS, wide),
            nn.SiLU(),
            nn.Conv2d(wide, 3 * patch**2, 3, padding=1),
            nn.PixelShuffle(patch),
        )
        rows = torch.randn(config.codebook_size, config.code_dim, generator=torch.Generator().manual_seed(0))
        self.register_buffer("embedding", F.normalize(rows, dim=-1))

    @property
    def codebook(self) -> Tensor:
        """The l2-normalised codes, (codebook_size, code_dim) float32."""
        return F.normalize(self.embedding, dim=-1)

    @property
    def decoded_codebook(self) -> Tensor:
        """The codes as they are decoded."""
        return self.codebook

    def latents(self, images: Tensor) -> Tensor:
        """Return the unit vectors before quantisation, (images, grid * grid, code_dim), row by row of the grid."""
        hidden = self.encoder(images.contiguous(memory_format=torch.channels_last))
        return F.normalize(hidden.flatten(2).transpose(1, 2), dim=-1)

    def reconstruct(self, latents: Tensor) -> Tensor:
        """Decode latent vectors to images, (images, 3, height, width) in pixels, without clamping.

        Args:
            latents: vectors of codes or of an encoder, (images, height, width, code_dim) in codes, or (images, grid *
                grid, code_dim). They are not quantised here.
        """
        hidden = by_lines(latents, self.config.grid).permute(0, 3, 1, 2)
        return self.decoder(hidden.contiguous(memory_format=torch.channels_last))

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Return the nearest codes of images, int64 (images, grid * grid).

        Args:
            images: float32 (images, 3, size, size) in [-1, 1].

        Raises:
            ValueError: the images have another size.
        """
        check_images(images, self.config.image_size)
        return torch.cat([nearest_rows(self.latents(chunk), self.codebook) for chunk in images.split(_BATCH)])

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Return the images of codes, float32 (images, 3, height, width) in pixels, clamped to [-1, 1].

        Args:
            codes: (images, height, width), or (images, grid * grid).

        Raises:
            ValueError: the number of codes differs, or a code is out of range.
        """
        codes = check_codes(codes, self.config.grid, self.config.codebook_size)
        codebook = self.codebook
        chunks = codes.long().split(_BATCH)
        return torch.cat([self.reconstruct(codebook[chunk]).clamp(-1.0, 1.0) for chunk in chunks])


class ResidualBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x)))))). The last convolution is initialised to zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(_GROUPS, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(_GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        for parameter in self.conv2.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Map (images, channels, height, width) to the same shape."""
        hidden = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(hidden)))


def nearest_rows(vectors: Tensor, rows: Tensor) -> Tensor:
    """Return the index of the row nearest to each vector, (...). Ties go to the first.

    Args:
        vectors: unit vectors, (..., dim).
        rows: unit vectors, (rows, dim).
    """
    return (vectors @ rows.T).argmax(-1)
