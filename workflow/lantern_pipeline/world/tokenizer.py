"""The embedded image tokenizer: a vector-quantised autoencoder with LlamaGen's interface and a stem made for CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern.checkpoints.files import check_equal, find_weights
from lantern.checkpoints.native import load_model, read_metadata
from lantern.checkpoints.tokenizers import ImageModel, read_image_tokenizer
from lantern.models.code_colours import CodeColours
from lantern.models.emu3 import Emu3Tokenizer
from lantern.models.vq16 import VQ16, check_codes, check_images
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, evaluate_attribute_classifier
from lantern_pipeline.world.scenes import Scene

_BATCH = 32  # images; larger batches leave the cache
_GROUPS = 8


@dataclass(frozen=True)
class TokenizerConfig:
    """Sizes of the tokenizer."""

    image_size: int = 48  # side in pixels, a multiple of 2 * grid
    grid: int = 8  # tokens a side; an image has grid * grid tokens
    codebook_size: int = 1024
    code_dim: int = 8  # length of a code
    encoder_width: int = 48  # channels at 2 * grid a side; twice as many at the grid
    decoder_width: int = 64  # the same for the decoder
    decoder_blocks: int = 2  # residual blocks of the decoder at each of the two resolutions


class ImageTokenizer(nn.Module):
    """Images to the nearest rows of the l2-normalised codebook and back, normalised as in LlamaGen's vq_model.py
    (FoundationVision/LlamaGen@ce98ec4); patches of image_size / (2 * grid) pixels, blocks at 2 * grid and at grid.
    """

    kind = "image_tokenizer"  # of its checkpoints
    config_class = TokenizerConfig

    def __init__(self, config: TokenizerConfig) -> None:
        super().__init__()
        self.config = config
        patch = config.image_size // (2 * config.grid)
        width, wide = config.encoder_width, config.decoder_width
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
        """Return unit vectors before quantisation, (images, grid * grid, code_dim), row by row of the grid."""
        hidden = self.encoder(images.contiguous(memory_format=torch.channels_last))
        return F.normalize(hidden.flatten(2).transpose(1, 2), dim=-1)

    def reconstruct(self, latents: Tensor) -> Tensor:
        """Return images (images, 3, size, size), not clamped, from vectors (images, grid * grid, code_dim)."""
        grid = self.config.grid
        hidden = latents.transpose(1, 2).unflatten(2, (grid, grid))
        return self.decoder(hidden.contiguous(memory_format=torch.channels_last))

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Nearest codes (images, grid * grid) int64 of images (images, 3, size, size) float32 in [-1, 1]."""
        check_images(images, self.config.image_size)
        return torch.cat([nearest_rows(self.latents(chunk), self.codebook) for chunk in images.split(_BATCH)])

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Return the images of codes (images, grid * grid): (images, 3, size, size) float32, clamped to [-1, 1]."""
        check_codes(codes, self.config.grid, self.config.codebook_size)
        codebook = self.codebook
        chunks = codes.long().split(_BATCH)
        return torch.cat([self.reconstruct(codebook[chunk]).clamp(-1.0, 1.0) for chunk in chunks])


class ResidualBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x)))))), the last convolution zero at first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(_GROUPS, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2 = nn.GroupNorm(_GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (images, channels, height, width) to the same shape."""
        hidden = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(hidden)))


def nearest_rows(vectors: Tensor, rows: Tensor) -> Tensor:
    """Index (...,) of the row (rows, dim) nearest to each vector (..., dim), all of unit length; the first on ties."""
    return (vectors @ rows.T).argmax(-1)


@torch.no_grad()
def evaluate_tokenizer(
    tokenizer: ImageTokenizer,
    attribute_classifier: AttributeClassifier | None,
    images: Tensor,
    scenes: Sequence[Scene | dict] | None,
) -> dict[str, float]:
    """Measure reconstructions of held-out images (images, 3, size, size) in [-1, 1]: psnr_db (mean over images),
    codes_used_share (of the codebook), perplexity (of the code frequencies, in codes) and, with scenes,
    `evaluate_attribute_classifier`.
    """
    codes = tokenizer.encode(images)
    reconstructions = tokenizer.decode(codes)
    error = (reconstructions - images).square().mean((1, 2, 3)).clamp(min=1e-10)
    counts = torch.bincount(codes.flatten(), minlength=tokenizer.config.codebook_size).double()
    frequency = counts / counts.sum()
    result = {
        "psnr_db": float((10.0 * torch.log10(4.0 / error)).mean()),
        "codes_used_share": float((counts > 0).double().mean()),
        "perplexity": float(torch.exp(-torch.xlogy(frequency, frequency).sum())),
    }
    if attribute_classifier is not None and scenes is not None:
        result.update(evaluate_attribute_classifier(attribute_classifier, reconstructions, scenes))
    return result


def load_tokenizer(path: Path | str) -> ImageTokenizer | ImageModel:
    """Reads a tokenizer in evaluation mode, the embedded world's or a published one, whichever the file holds."""
    published = {kind.kind: kind for kind in (VQ16, Emu3Tokenizer, CodeColours)}
    return load_model(path, published.get((read_metadata(path) or {}).get("kind"), ImageTokenizer))


def read_tokenizer(
    path: Path, image_size: int, grid: int, codebook_size: int, code_dim: int
) -> ImageTokenizer | ImageModel:
    """Reads a published tokenizer, or one in our own layout, in evaluation mode, of the sizes that the config names."""
    file = find_weights(path)
    is_own = read_metadata(file) is not None
    model = load_tokenizer(file) if is_own else read_image_tokenizer(file, image_size)
    check_equal(file, "image_size", image_size, model.config.image_size, "data.image_size")
    for name, value in {"grid": grid, "codebook_size": codebook_size, "code_dim": code_dim}.items():
        check_equal(file, name, value, getattr(model.config, name), f"tokenizer.{name}")
    return model
