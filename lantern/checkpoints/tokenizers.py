"""Functions that read image tokenizers: LlamaGen's VQ-16, Lantern's, Chameleon's, Emu3's and those of transformers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypedDict

from lantern.cards.card import ImageSettings
from lantern.checkpoints.files import WeightFile, check_equal, find_weights, read_weights
from lantern.checkpoints.names import vq16_names
from lantern.checkpoints.native import load_model, load_weights, read_metadata
from lantern.models.code_colours import CodeColours, CodeColoursConfig
from lantern.models.config import Sides, shape_of, sides_of
from lantern.models.emu3 import Emu3Tokenizer, Emu3TokenizerConfig
from lantern.models.image_tokenizer import ImageTokenizer
from lantern.models.vq16 import VQ16, VQ16Config

ImageModel = ImageTokenizer | VQ16 | Emu3Tokenizer | CodeColours
_PREFIXES = ("model.vqmodel.", "vqmodel.")  # of the names of a tokenizer's tensors in a transformers model


class _Sizes(TypedDict):
    """The config values that VQ-16 and Emu3's image tokenizer have in common, by field name."""

    grid: Sides
    codebook_size: int
    code_dim: int
    channels: int
    channel_multipliers: tuple[int, ...]
    num_blocks: int


def load_tokenizer(path: Path | str) -> ImageModel:
    """Read an image tokenizer that `save_model` wrote, in evaluation mode. Its class is found in the file."""
    kinds = {kind.kind: kind for kind in (ImageTokenizer, VQ16, Emu3Tokenizer, CodeColours)}
    return load_model(path, kinds.get((read_metadata(path) or {}).get("kind", ""), ImageTokenizer))


def read_tokenizer(path: Path, sizes: ImageSettings) -> ImageModel:
    """Read an image tokenizer in any layout, in evaluation mode and float32.

    Args:
        path: the file or folder.
        sizes: expected sizes of the images and of the codebook.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is damaged, does not hold an image tokenizer, or has other sizes than expected.
    """
    file = find_weights(path)
    is_native = read_metadata(file) is not None
    model = load_tokenizer(file) if is_native else read_image_tokenizer(file, sizes.size)
    check_equal(file, "image_size", sizes.size, model.config.image_size, "image size")
    for name in ("grid", "codebook_size", "code_dim"):
        check_equal(file, name, getattr(sizes, name), getattr(model.config, name), name)
    return model


def read_image_tokenizer(path: Path, image_size: Sides) -> ImageModel:
    """Read an image tokenizer in a published layout, in evaluation mode.

    Args:
        path: the file or folder.
        image_size: height and width of an image in pixels, or the side of a square.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is damaged or holds no image tokenizer, or the image size is not a multiple of the
            downsampling factor.
    """
    return make_image_tokenizer(read_weights(path), image_size)


def make_image_tokenizer(weights: WeightFile, image_size: Sides | None = None, grid: Sides | None = None) -> ImageModel:
    """Make an image tokenizer from published weights, in evaluation mode. Its sizes are read from the tensors.

    Args:
        weights: weights of VQ-16, of Chameleon's or Emu3's tokenizer, or of a transformers model. If a transformers
            model has no image decoder (Chameleon, GLM-Image), the result is `CodeColours`, which shows codes as
            colours.
        image_size: height and width of an image in pixels, or the side of a square. Needed if `grid` is not given.
        grid: height and width of an image in codes, or the side of a square.

    Raises:
        ValueError: the weights belong to something else, both sizes are missing, or the image size is not a multiple of
            the downsampling factor.
    """
    found = weights.tensors
    prefix = next((prefix for prefix in _PREFIXES if f"{prefix}quantize.embedding.weight" in found), "")
    tensors = {name.removeprefix(prefix): found[name] for name in found if name.startswith(prefix)}
    weights = WeightFile(weights.path, tensors)
    if "decoder.conv_in.weight" not in tensors and prefix:
        codebook = tensors["quantize.embedding.weight"]
        sides = _grid_of(image_size, grid, CodeColours.pixels)
        colours = CodeColours(CodeColoursConfig(sides, len(codebook), codebook.shape[1]))
        return load_weights(colours, {"codebook": codebook}, weights.path)
    if "encoder.time_conv.0.conv.conv.weight" in tensors:  # only Emu3's tokenizer has a time axis
        return _make_emu3(weights, image_size, grid)
    is_chameleon = "encoder.mid.attn_1.q.weight" in tensors and not prefix
    if "encoder.mid.attn_1.q.weight" in tensors:
        weights.tensors = vq16_names(tensors)
    weights.tensors.pop("quantize.codebook_used", None)  # a statistic of training
    sizes = _sizes(weights, "encoder.conv_blocks.{}.res.", image_size, grid)
    weights.require("encoder.conv_out.weight")
    latent_channels = len(weights.tensors["encoder.conv_out.weight"])
    config = VQ16Config(
        **sizes, latent_channels=latent_channels, has_attention=not is_chameleon, is_normalised=not is_chameleon
    )
    return load_weights(VQ16(config), weights.tensors, weights.path)


def _make_emu3(weights: WeightFile, image_size: Sides | None, grid: Sides | None) -> Emu3Tokenizer:
    sizes = _sizes(weights, "encoder.down_block.down.{}.block.", image_size, grid)
    levels = range(len(sizes["channel_multipliers"]))
    name = "encoder.down_block.down.{}.attn.0.q_proj.weight"
    attention = tuple(level for level in levels if name.format(level) in weights.tensors)
    renamed = {f"vqvae.{name}": value for name, value in weights.tensors.items()}
    return load_weights(Emu3Tokenizer(Emu3TokenizerConfig(**sizes, attention_levels=attention)), renamed, weights.path)


def _grid_of(image_size: Sides | None, grid: Sides | None, pixels: int) -> Sides:
    """Return the sides of an image in codes: `grid` if it is given, else the image size divided by `pixels`.

    Args:
        image_size: height and width of an image in pixels, or the side of a square, or None.
        grid: height and width of an image in codes, or the side of a square, or None.
        pixels: downsampling factor, which is the number of pixels per code in each direction.

    Raises:
        ValueError: both sizes are missing.
    """
    if grid is not None:
        return grid
    if image_size is None:
        raise ValueError("an image tokenizer needs image_size or grid, got neither; pass one of them")
    height, width = shape_of(image_size)
    return sides_of((height // pixels, width // pixels))


def _sizes(weights: WeightFile, blocks: str, image_size: Sides | None, grid: Sides | None) -> _Sizes:
    """Read the sizes of a convolutional image tokenizer from its tensors.

    Args:
        weights: the weights.
        blocks: prefix of the names of the encoder's blocks at one resolution level, with {} in place of the number of
            the level. An example is "encoder.conv_blocks.{}.res.".
        image_size: height and width of an image in pixels, or the side of a square. Needed if `grid` is not given.
        grid: height and width of an image in codes, or the side of a square.

    Raises:
        ValueError: a tensor is missing, both sizes are missing, or the image size is not a multiple of the
            downsampling factor.
    """
    pattern = blocks.replace(".", r"\.").replace("{}", r"(\d+)") + r"(\d+)\.conv1\.weight"
    found = [match for name in weights.tensors if (match := re.fullmatch(pattern, name))]
    num_levels, num_blocks = (max(1, len({match[part] for match in found})) for part in (1, 2))
    firsts = [f"{blocks.format(level)}0.conv1.weight" for level in range(num_levels)]
    weights.require("quantize.embedding.weight", "encoder.conv_in.weight", *firsts)
    channels = len(weights.tensors["encoder.conv_in.weight"])
    codebook = weights.tensors["quantize.embedding.weight"]
    factor = 2 ** (num_levels - 1)
    if image_size is not None and any(side % factor for side in shape_of(image_size)):
        raise ValueError(f"{weights.path}: the image size should be a multiple of {factor}, got {image_size}")
    return {
        "grid": _grid_of(image_size, grid, factor),
        "codebook_size": len(codebook),
        "code_dim": codebook.shape[1],
        "channels": channels,
        "channel_multipliers": tuple(len(weights.tensors[name]) // channels for name in firsts),
        "num_blocks": num_blocks,
    }
