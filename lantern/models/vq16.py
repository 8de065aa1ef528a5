"""VQ-16, the image tokenizer of LlamaGen and Janus. With other options, it is the tokenizer of Chameleon.

It is a convolutional autoencoder with a codebook. Parameters have the names that they have in LlamaGen's file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern.models.config import Sides, shape_of, sides_of
from lantern.models.stored import StoredModel

_GROUPS = 32
_PIXELS = 8 * 256 * 256  # number of pixels that run together; more would need gigabytes for activations


class ImageSizes(ABC):
    """Base class of the configs of image tokenizers, which computes the sizes of images in codes and in pixels.

    Attributes:
        grid: height and width of an image in codes, or the side of a square.
    """

    grid: Sides

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid", sides_of(self.shape))  # JSON has lists

    @property
    @abstractmethod
    def code_pixels(self) -> int:
        """Side, in pixels, of the square of the image that one code represents."""

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of an image in codes."""
        return shape_of(self.grid)

    @property
    def image_size(self) -> Sides:
        """Height and width of an image in pixels, or the side of a square."""
        height, width = self.shape
        return sides_of((height * self.code_pixels, width * self.code_pixels))


@dataclass(frozen=True)
class VQ16Config(ImageSizes):
    """Sizes of the tokenizer. The defaults are those of LlamaGen's `vq_ds16_t2i.pt` for images of 256 pixels.

    The encoder and the decoder consist of *levels*. The first level of the encoder has the resolution of the image.
    Each further level has half the resolution.

    Attributes:
        grid: height and width of an image in codes, or the side of a square. The same weights work for other sizes, for
            example a grid of 32 for 512 pixels. `decode` takes images of any height and width.
        codebook_size: number of codes.
        code_dim: channels of a code.
        channels: channels of the first convolution.
        channel_multipliers: channels of each level, as multiples of `channels`.
        num_blocks: number of residual blocks per level of the encoder. The decoder has one more per level.
        latent_channels: channels of the encoder's output and the decoder's input. 1 x 1 convolutions convert between
            these channels and the `code_dim` channels of a code.
        has_attention: whether the level of the lowest resolution has attention. If not, as in Chameleon, only the
            middle block has it.
        is_normalised: whether latent vectors and codes have unit length. False for Chameleon.

    Raises:
        ValueError: `channels` is not a multiple of the number of groups of the norms, 32.
    """

    grid: Sides = 16
    codebook_size: int = 16384
    code_dim: int = 8
    channels: int = 128
    channel_multipliers: tuple[int, ...] = (1, 1, 2, 2, 4)
    num_blocks: int = 2
    latent_channels: int = 256
    has_attention: bool = True
    is_normalised: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "channel_multipliers", tuple(self.channel_multipliers))
        if self.channels < _GROUPS or self.channels % _GROUPS:
            raise ValueError(f"channels of a VQ-16 must be a multiple of {_GROUPS}, got {self.channels}")

    @property
    def code_pixels(self) -> int:
        """Side, in pixels, of the square of the image that one code represents."""
        return 2 ** (len(self.channel_multipliers) - 1)


class _Codes(nn.Module):
    """Module that only holds the codebook, so that the codebook has the same parameter name as in LlamaGen's file."""

    def __init__(self, config: VQ16Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.codebook_size, config.code_dim)


class VQ16(StoredModel):
    """Image tokenizer that turns images into codes, and codes into images.

    Args:
        config: the sizes.

    Source: FoundationVision/LlamaGen@ce98ec4, tokenizer/tokenizer_image/vq_model.py, for the architecture and its
    norms; facebookresearch/chameleon, chameleon/inference/vqgan.py, for the options of Chameleon.
    """

    kind = "vq16"
    config_class = VQ16Config
    config: VQ16Config

    def __init__(self, config: VQ16Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.quant_conv = nn.Conv2d(config.latent_channels, config.code_dim, 1)
        self.post_quant_conv = nn.Conv2d(config.code_dim, config.latent_channels, 1)
        self.quantize = _Codes(config)

    @property
    def codebook(self) -> Tensor:
        """The code vectors as they are stored, not normalised, (codebook_size, code_dim).

        LANTERN's authors compute each code's nearest codes, for relaxed acceptance, from these vectors.
        """
        return self.quantize.embedding.weight

    @property
    def decoded_codebook(self) -> Tensor:
        """The code vectors that the decoder gets, float32 (codebook_size, code_dim).

        The vectors have unit length if `is_normalised` of the config is set.
        """
        return self._normalise(self.codebook.float())

    def latents(self, images: Tensor) -> Tensor:
        """Encode images as vectors, which are not yet normalised or replaced by the nearest codes.

        Args:
            images: (images, 3, height, width) in [-1, 1].

        Returns:
            (images, codes, code_dim).
        """
        return self.quant_conv(self.encoder(images)).flatten(2).transpose(1, 2)

    def reconstruct(self, latents: Tensor) -> Tensor:
        """Decode latent vectors to images, without clamping.

        Args:
            latents: code vectors or outputs of the encoder, (images, lines, columns, code_dim), or (images, codes,
                code_dim) for images of the config's shape.

        Returns:
            (images, 3, height, width).
        """
        latents = by_lines(latents, self.config.shape)
        return self.decoder(self.post_quant_conv(latents.permute(0, 3, 1, 2)))

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Encode images as codes, int64 (images, codes).

        Each position gets the code whose vector is nearest to the encoder's output. Of several nearest codes, the first
        is taken.

        Args:
            images: (images, 3, height, width) in [-1, 1].

        Raises:
            ValueError: the images do not have the size of the config.
        """
        check_images(images, self.config.image_size)
        rows = self.decoded_codebook
        # |x - row|^2 is least if x row - |row|^2 / 2 is greatest. For unit rows the last term is constant.
        offset = 0 if self.config.is_normalised else rows.square().sum(-1) / 2
        chunks = images.to(self.quant_conv.weight.dtype).split(_images_at_once(images.shape[2] * images.shape[3]))
        codes = [(self._normalise(self.latents(chunk).float()) @ rows.T - offset).argmax(-1) for chunk in chunks]
        return torch.cat(codes)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes to images, float32 (images, 3, height, width) in pixels, clamped to [-1, 1].

        Args:
            codes: integers (images, lines, columns), or (images, codes) for images of the config's shape.

        Raises:
            ValueError: an image does not have the number of codes of the config, or a code is out of range.
        """
        config = self.config
        codes = check_codes(codes, config.shape, config.codebook_size)
        rows = self.decoded_codebook.to(self.quant_conv.weight.dtype)
        pixels = codes.shape[1] * codes.shape[2] * config.code_pixels**2
        chunks = codes.long().split(_images_at_once(pixels))
        images = [self.reconstruct(rows[chunk]).float().clamp(-1.0, 1.0) for chunk in chunks]
        return torch.cat(images)

    def _normalise(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1) if self.config.is_normalised else vectors


def _images_at_once(pixels: int) -> int:
    """Return the number of images that are encoded or decoded at once, so that memory stays bounded.

    Args:
        pixels: number of pixels of an image.
    """
    return max(1, _PIXELS // pixels)


class Encoder(nn.Module):
    """The encoder of `VQ16`, which maps images (n, 3, size, size) to latents (n, latent_channels, grid, grid)."""

    def __init__(self, config: VQ16Config) -> None:
        super().__init__()
        widths = [config.channels * multiplier for multiplier in config.channel_multipliers]
        self.conv_in = nn.Conv2d(3, config.channels, 3, padding=1)
        self.conv_blocks = levels([config.channels, *widths], config.num_blocks, "down", config.has_attention)
        self.mid = middle(widths[-1])
        self.norm_out = GroupNorm(_GROUPS, widths[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[-1], config.latent_channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, 3, size, size) to latents (n, latent_channels, grid, grid)."""
        x = self.conv_in(x)
        for part in [*self.conv_blocks, *self.mid]:
            x = part(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Decoder(nn.Module):
    """The decoder of `VQ16`, which maps latents (n, latent_channels, grid, grid) to images (n, 3, size, size)."""

    def __init__(self, config: VQ16Config) -> None:
        super().__init__()
        widths = [config.channels * multiplier for multiplier in reversed(config.channel_multipliers)]
        self.conv_in = nn.Conv2d(config.latent_channels, widths[0], 3, padding=1)
        self.mid = middle(widths[0])
        self.conv_blocks = levels([widths[0], *widths], config.num_blocks + 1, "up", config.has_attention)
        self.norm_out = GroupNorm(_GROUPS, widths[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map latents (n, latent_channels, grid, grid) to images (n, 3, size, size)."""
        x = self.conv_in(x)
        for part in [*self.mid, *self.conv_blocks]:
            x = part(x)
        return self.conv_out(F.silu(self.norm_out(x)))


def levels(widths: list[int], num_blocks: int, resize: str, has_attention: bool) -> nn.ModuleList:
    """Make the levels of the encoder or the decoder. After each level except the last, the resolution changes.

    Args:
        widths: channels before the first level, then after each level.
        num_blocks: residual blocks per level.
        resize: "down" to halve the side after each level, "up" to double it.
        has_attention: whether the level of the lowest resolution has attention.
    """
    last = len(widths) - 2
    lowest = last if resize == "down" else 0
    return nn.ModuleList(
        Level(before, width, num_blocks, has_attention and index == lowest, resize if index < last else None)
        for index, (before, width) in enumerate(pairwise(widths))
    )


class Level(nn.Module):
    """One level of the encoder or the decoder: blocks at one resolution, then a change of resolution.

    Args:
        before: channels before the level.
        width: channels after the level.
        num_blocks: number of residual blocks.
        has_attention: whether attention follows each block.
        resize: "down" halves the side, "up" doubles it, None keeps it.
    """

    def __init__(self, before: int, width: int, num_blocks: int, has_attention: bool, resize: str | None) -> None:
        super().__init__()
        self.res = nn.ModuleList(ResidualBlock(before if index == 0 else width, width) for index in range(num_blocks))
        self.attn = nn.ModuleList(AttentionBlock(width) for _ in range(num_blocks * has_attention))
        if resize == "down":
            self.downsample = nn.ModuleDict({"conv": nn.Conv2d(width, width, 3, stride=2)})
        if resize == "up":
            self.upsample = nn.ModuleDict({"conv": nn.Conv2d(width, width, 3, padding=1)})
        self.resize = resize

    def forward(self, x: Tensor) -> Tensor:
        """Map features with `before` channels, (n, before, side, side), to `width` channels, (n, width, s, s).

        The new side s is half, twice or equal to the old one.
        """
        for index, block in enumerate(self.res):
            x = block(x)
            if self.attn:
                x = self.attn[index](x)
        if self.resize == "down":  # zeros are added on the right and at the bottom only
            return self.downsample["conv"](F.pad(x, (0, 1, 0, 1)))
        if self.resize == "up":
            return self.upsample["conv"](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return x


class GroupNorm(nn.GroupNorm):
    """A group norm that also takes one value per group, as the only code of an image has in a narrow model.

    `nn.GroupNorm` takes it in a batch of several images only. The result is the bias.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise features (n, channels, side, side)."""
        return torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class ResidualBlock(nn.Module):
    """Residual block: x + conv(silu(norm(conv(silu(norm(x)))))).

    If the number of channels changes, a 1 x 1 convolution is applied to x in the sum.

    Args:
        before: number of input channels.
        width: number of output channels.
    """

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.norm1 = GroupNorm(_GROUPS, before, eps=1e-6)
        self.conv1 = nn.Conv2d(before, width, 3, padding=1)
        self.norm2 = GroupNorm(_GROUPS, width, eps=1e-6)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(before, width, 1) if before != width else None

    def forward(self, x: Tensor) -> Tensor:
        """Map features with `before` channels, (n, before, side, side), to `width` channels, (n, width, side, side)."""
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        return (x if self.nin_shortcut is None else self.nin_shortcut(x)) + hidden


class AttentionBlock(nn.Module):
    """Self-attention with one head over the positions of a feature map, added to its input.

    Args:
        width: number of channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = GroupNorm(_GROUPS, width, eps=1e-6)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, width, side, side) to the same shape."""
        normed = self.norm(x)
        rows = [part(normed).flatten(2).transpose(1, 2) for part in (self.q, self.k, self.v)]  # (n, side * side, width)
        attended = F.scaled_dot_product_attention(*rows)
        return x + self.proj_out(attended.transpose(1, 2).reshape(x.shape))


def middle(width: int) -> nn.ModuleList:
    """Make the blocks at the lowest resolution: residual, attention, residual.

    These blocks follow the levels of the encoder, and precede the levels of the decoder.

    Args:
        width: number of channels.
    """
    return nn.ModuleList([ResidualBlock(width, width), AttentionBlock(width), ResidualBlock(width, width)])


def check_images(images: Tensor, size: Sides) -> None:
    """Check that images have the shape (n, 3, height, width).

    Args:
        images: the images.
        size: height and width in pixels, or the side of a square.

    Raises:
        ValueError: the images have another shape.
    """
    height, width = shape_of(size)
    if images.ndim != 4 or images.shape[1:] != (3, height, width):
        raise ValueError(f"images must have shape (n, 3, {height}, {width}), got {tuple(images.shape)}; resize them")


def by_lines(latents: Tensor, shape: tuple[int, int]) -> Tensor:
    """Arrange the vectors of images by line and column, (images, height, width, dim).

    Args:
        latents: vectors of images in raster order, (images, codes, dim), or vectors that are already arranged.
        shape: height and width of an image in codes.
    """
    return latents.unflatten(1, shape) if latents.ndim == 3 else latents


def check_codes(codes: Tensor, shape: tuple[int, int], codebook_size: int) -> Tensor:
    """Check that codes are in [0, codebook_size), and return them by line and column, (n, height, width).

    Args:
        codes: codes of n images, (n, height, width), or in raster order, (n, codes).
        shape: height and width, in codes, of images whose codes are in raster order.
        codebook_size: number of codes of the tokenizer.

    Raises:
        ValueError: the codes have another shape or are out of range.
    """
    num_codes = shape[0] * shape[1]
    if codes.ndim != 3 and (codes.ndim != 2 or codes.shape[1] != num_codes):
        raise ValueError(
            f"codes must have shape (n, {num_codes}), got {tuple(codes.shape)}; pass those of an image of another "
            "shape as (n, height, width)"
        )
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < codebook_size:
        raise ValueError(
            f"codes must be in [0, {codebook_size}), got {int(codes.min())} to {int(codes.max())}; "
            "were they made with another tokenizer?"
        )
    return codes.unflatten(1, shape) if codes.ndim == 2 else codes
