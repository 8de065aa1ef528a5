"""VQ-16, the image tokenizer of LlamaGen and Janus. With other options, it is the tokenizer of Chameleon.

It is a convolutional autoencoder with a codebook. The encoder maps an image (n, 3, height, width) in [-1, 1] to
*latents*, one vector per code. Each is replaced by the nearest *code vector* of the codebook. The decoder maps code
vectors to an image. Encoder and decoder consist of *levels*. The first level of the encoder has the resolution of the
image, and each further level has half the resolution. The decoder has the same levels in reverse.

Modules are named so that parameters have the names of LlamaGen's file. Codes are (images, lines, columns), or (images,
codes) in raster order for images of the config's shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from lantern.models.stored import StoredModel
from lantern_models.sizes import Sides, shape_of, sides_of

_GROUPS = 32  # of the group norms
_PIXELS = 8 * 256 * 256  # number of pixels that run together; more would need gigabytes for activations


class ImageSizes(ABC):
    """Base class of configs. `grid` is the height and width of an image in codes."""

    grid: Sides

    def __post_init__(self) -> None:
        # JSON has lists, and a square may be given in two forms. One form is kept, so that equal configs compare equal.
        object.__setattr__(self, "grid", sides_of(self.shape))

    @property
    @abstractmethod
    def code_pixels(self) -> int:
        """Side, in pixels, of the square of the image that one code represents."""

    @property
    def shape(self) -> tuple[int, int]:
        """`grid` as a pair."""
        return shape_of(self.grid)

    @property
    def image_size(self) -> Sides:
        """Height and width of an image in pixels, or the side of a square."""
        height, width = self.shape
        return sides_of((height * self.code_pixels, width * self.code_pixels))


@dataclass(frozen=True)
class VQ16Config(ImageSizes):
    """Sizes of the tokenizer. The defaults are those of LlamaGen's `vq_ds16_t2i.pt` for images of 256 pixels.

    Attributes:
        grid: as in the base class. The same weights work for other sizes, for example a grid of 32 for 512 pixels.
        channels: channels of the first convolution, a multiple of 32.
        channel_multipliers: channels of each level, as multiples of `channels`.
        num_blocks: number of residual blocks per level of the encoder. The decoder has one more per level.
        latent_channels: channels of the encoder's output and the decoder's input. 1 x 1 convolutions convert between
            these channels and the `code_dim` channels of a code vector.
        has_attention: whether the level of the lowest resolution has attention. If not, as in Chameleon, only the
            middle block has it.
        is_normalised: whether latents and code vectors are scaled to unit length. False for Chameleon.
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
    @override
    def code_pixels(self) -> int:
        # All levels but the last halve the resolution.
        return 2 ** (len(self.channel_multipliers) - 1)


class _Codes(nn.Module):
    """Holder of the codebook, whose parameter is thus called quantize.embedding.weight."""

    def __init__(self, config: VQ16Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.codebook_size, config.code_dim)


class VQ16(StoredModel):
    """VQ-16. All image tokenizers have its `codebook`, `decoded_codebook`, `encode` and `decode`.

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
        """The code vectors that the decoder gets, float32 (codebook_size, code_dim)."""
        return self._normalise(self.codebook.float())

    def latents(self, images: Tensor) -> Tensor:
        """Encode images as latents before normalisation, (images, codes, code_dim)."""
        return self.quant_conv(self.encoder(images)).flatten(2).transpose(1, 2)

    def reconstruct(self, latents: Tensor) -> Tensor:
        """Decode latents or code vectors to images, (images, 3, height, width), without clamping.

        latents is (images, lines, columns, code_dim), or (images, codes, code_dim) for images of the config's shape.
        """
        latents = by_lines(latents, self.config.shape)
        return self.decoder(self.post_quant_conv(latents.permute(0, 3, 1, 2)))

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Encode images of the config's size as codes, int64 (images, codes). Ties go to the first code."""
        check_images(images, self.config.image_size)
        rows = self.decoded_codebook
        # |x - row|^2 is least if x row - |row|^2 / 2 is greatest. For unit rows the last term is constant.
        offset = 0 if self.config.is_normalised else rows.square().sum(-1) / 2
        chunks = images.to(self.quant_conv.weight.dtype).split(_images_at_once(images.shape[2] * images.shape[3]))
        codes = [(self._normalise(self.latents(chunk).float()) @ rows.T - offset).argmax(-1) for chunk in chunks]
        return torch.cat(codes)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes to images of any shape, float32 (images, 3, height, width) in pixels, clamped to [-1, 1]."""
        config = self.config
        codes = check_codes(codes, config.shape, config.codebook_size)
        rows = self.decoded_codebook.to(self.quant_conv.weight.dtype)
        # The number of pixels comes from the codes, since their shape may differ from the config's.
        pixels = codes.shape[1] * codes.shape[2] * config.code_pixels**2
        chunks = codes.long().split(_images_at_once(pixels))
        images = [self.reconstruct(rows[chunk]).float().clamp(-1.0, 1.0) for chunk in chunks]
        return torch.cat(images)

    def _normalise(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1) if self.config.is_normalised else vectors


def _images_at_once(pixels: int) -> int:
    # At least 1: an image larger than _PIXELS runs alone.
    return max(1, _PIXELS // pixels)


class Encoder(nn.Module):
    """Maps images to latents before `quant_conv`, (n, latent_channels, lines, columns)."""

    def __init__(self, config: VQ16Config) -> None:
        super().__init__()
        widths = [config.channels * multiplier for multiplier in config.channel_multipliers]
        self.conv_in = nn.Conv2d(3, config.channels, 3, padding=1)
        self.conv_blocks = levels([config.channels, *widths], config.num_blocks, "down", config.has_attention)
        self.mid = middle(widths[-1])
        self.norm_out = GroupNorm(_GROUPS, widths[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[-1], config.latent_channels, 3, padding=1)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for part in [*self.conv_blocks, *self.mid]:
            x = part(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Decoder(nn.Module):
    """Maps the output of `post_quant_conv`, (n, latent_channels, lines, columns), to images."""

    def __init__(self, config: VQ16Config) -> None:
        super().__init__()
        widths = [config.channels * multiplier for multiplier in reversed(config.channel_multipliers)]
        self.conv_in = nn.Conv2d(config.latent_channels, widths[0], 3, padding=1)
        self.mid = middle(widths[0])
        self.conv_blocks = levels([widths[0], *widths], config.num_blocks + 1, "up", config.has_attention)
        self.norm_out = GroupNorm(_GROUPS, widths[-1], eps=1e-6)
        self.conv_out = nn.Conv2d(widths[-1], 3, 3, padding=1)

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for part in [*self.mid, *self.conv_blocks]:
            x = part(x)
        return self.conv_out(F.silu(self.norm_out(x)))


def levels(widths: list[int], num_blocks: int, resize: str, has_attention: bool) -> nn.ModuleList:
    """Make the levels of the encoder or the decoder.

    widths are the channels before the first level, then after each level. resize is "down" to halve the side after each
    level except the last, "up" to double it.
    """
    # len(widths) - 1 levels. The encoder ends at the lowest resolution, and the decoder starts there.
    last = len(widths) - 2
    lowest = last if resize == "down" else 0
    return nn.ModuleList(
        Level(before, width, num_blocks, has_attention and index == lowest, resize if index < last else None)
        for index, (before, width) in enumerate(pairwise(widths))
    )


class Level(nn.Module):
    """One level: blocks at one resolution, each followed by attention if there is any, then a resize."""

    def __init__(self, before: int, width: int, num_blocks: int, has_attention: bool, resize: str | None) -> None:
        super().__init__()
        self.res = nn.ModuleList(ResidualBlock(before if index == 0 else width, width) for index in range(num_blocks))
        # A bool counts as 0 or 1.
        self.attn = nn.ModuleList(AttentionBlock(width) for _ in range(num_blocks * has_attention))
        if resize == "down":
            self.downsample = nn.ModuleDict({"conv": nn.Conv2d(width, width, 3, stride=2)})
        if resize == "up":
            self.upsample = nn.ModuleDict({"conv": nn.Conv2d(width, width, 3, padding=1)})
        self.resize = resize

    @override
    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.res):
            x = block(x)
            if self.attn:
                x = self.attn[index](x)
        if self.resize == "down":  # LlamaGen pads on the right and at the bottom only
            return self.downsample["conv"](F.pad(x, (0, 1, 0, 1)))
        if self.resize == "up":
            return self.upsample["conv"](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return x


class GroupNorm(nn.GroupNorm):
    """A group norm that also takes groups of one value, which occur in images of one code in a level of 32 channels.

    `nn.GroupNorm` takes it in a batch of several images only. The result is the bias.
    """

    @override
    def forward(self, input: Tensor) -> Tensor:
        # F.group_norm, which nn.GroupNorm calls, raises an error for one value per group. torch.group_norm does not.
        return torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class ResidualBlock(nn.Module):
    """Residual block: x + conv(silu(norm(conv(silu(norm(x))))))."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.norm1 = GroupNorm(_GROUPS, before, eps=1e-6)
        self.conv1 = nn.Conv2d(before, width, 3, padding=1)
        self.norm2 = GroupNorm(_GROUPS, width, eps=1e-6)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(before, width, 1) if before != width else None

    @override
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        return (x if self.nin_shortcut is None else self.nin_shortcut(x)) + hidden


class AttentionBlock(nn.Module):
    """Self-attention with one head over the positions of a feature map, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = GroupNorm(_GROUPS, width, eps=1e-6)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(width, width, 1) for _ in range(4))

    @override
    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        rows = [part(normed).flatten(2).transpose(1, 2) for part in (self.q, self.k, self.v)]  # (n, codes, width)
        attended = F.scaled_dot_product_attention(*rows)
        return x + self.proj_out(attended.transpose(1, 2).reshape(x.shape))


def middle(width: int) -> nn.ModuleList:
    """Make the blocks at the lowest resolution, after the encoder's levels and before the decoder's."""
    return nn.ModuleList([ResidualBlock(width, width), AttentionBlock(width), ResidualBlock(width, width)])


def check_images(images: Tensor, size: Sides) -> None:
    """Raise a ValueError if images do not have the shape (n, 3, height, width)."""
    height, width = shape_of(size)
    if images.ndim != 4 or images.shape[1:] != (3, height, width):
        raise ValueError(f"images must have shape (n, 3, {height}, {width}), got {tuple(images.shape)}; resize them")


def by_lines(latents: Tensor, shape: tuple[int, int]) -> Tensor:
    """Arrange vectors in raster order, (images, codes, dim), by line and column, unless they are already."""
    return latents.unflatten(1, shape) if latents.ndim == 3 else latents


def check_codes(codes: Tensor, shape: tuple[int, int], codebook_size: int) -> Tensor:
    """Raise a ValueError if codes are out of range or misshapen. Return them by line and column."""
    num_codes = shape[0] * shape[1]
    if codes.ndim != 3 and (codes.ndim != 2 or codes.shape[1] != num_codes):
        raise ValueError(
            f"codes must have shape (n, {num_codes}), got {tuple(codes.shape)}; pass those of an image of another "
            "shape as (n, height, width)"
        )
    # min and max of no codes would be an error.
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < codebook_size:
        raise ValueError(
            f"codes must be in [0, {codebook_size}), got {int(codes.min())} to {int(codes.max())}; "
            "were they made with another tokenizer?"
        )
    return codes.unflatten(1, shape) if codes.ndim == 2 else codes
