"""Functions that read image tokenizers: LlamaGen's VQ-16, Lantern's, Chameleon's, Emu3's and those of transformers.

An *image size* is height and width in pixels, or the side of a square. A *grid* is the same in codes. Their ratio is
the downsampling factor, which the image size must be a multiple of.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypedDict

from lantern.codebook import ImageModel
from lantern.models.stored import load_model, load_weights, restore_model
from lantern_models.cards.card import ImageSettings
from lantern_models.checkpoints.tensor_names import vq16_names
from lantern_models.checkpoints.weight_files import WeightFile, check_equal, read_weights
from lantern_models.images.code_colours import CodeColours, CodeColoursConfig
from lantern_models.images.emu3 import Emu3Tokenizer, Emu3TokenizerConfig
from lantern_models.images.shapes import ImageTokenizer
from lantern_models.images.vq16 import VQ16, VQ16Config
from lantern_models.sizes import Sides, shape_of, sides_of

_OWN_CLASSES = (CodeColours, Emu3Tokenizer, VQ16, ImageTokenizer)
_PREFIXES = ("model.vqmodel.", "vqmodel.")  # of the names of a tokenizer's tensors in a transformers model


class _Sizes(TypedDict):
    """The config values that VQ-16 and Emu3's image tokenizer have in common."""

    grid: Sides
    codebook_size: int
    code_dim: int
    channels: int
    channel_multipliers: tuple[int, ...]
    num_blocks: int


def load_tokenizer(path: Path | str) -> ImageModel:
    """Read an image tokenizer that `save_model` wrote, in evaluation mode."""
    return load_model(path, _OWN_CLASSES)


def read_tokenizer(path: Path, sizes: ImageSettings) -> ImageModel:
    """Read an image tokenizer in any layout, in evaluation mode and float32, see `make_tokenizer`."""
    return make_tokenizer(read_weights(path), sizes)


def make_tokenizer(weights: WeightFile, sizes: ImageSettings) -> ImageModel:
    """Make an image tokenizer from weights in any layout, in evaluation mode and float32.

    Raises:
        ValueError: the weights are no image tokenizer's, or have other sizes than expected.
    """
    file = weights.path
    if weights.layout == "lantern":
        model = restore_model(file, weights.tensors, weights.metadata or {}, _OWN_CLASSES)
    else:
        model = make_image_tokenizer(weights, sizes.size)
    check_equal(file, "image_size", sizes.size, model.config.image_size, "image size")
    for name in ("grid", "codebook_size", "code_dim"):
        check_equal(file, name, getattr(sizes, name), getattr(model.config, name), name)
    return model


def make_image_tokenizer(weights: WeightFile, image_size: Sides | None = None, grid: Sides | None = None) -> ImageModel:
    """Make an image tokenizer from published weights, in evaluation mode. Its sizes are read from the tensors.

    Image size or grid must be given. If a transformers model has no image decoder (Chameleon, GLM-Image), the result is
    `CodeColours`, which shows codes as colours.
    """
    found = weights.tensors
    # In a file of a whole transformers model, only the tensors of its tokenizer are kept.
    prefix = next((prefix for prefix in _PREFIXES if f"{prefix}quantize.embedding.weight" in found), "")
    tensors = {name.removeprefix(prefix): found[name] for name in found if name.startswith(prefix)}
    weights = WeightFile(weights.path, tensors)
    # `and prefix`: a file of a tokenizer alone must have a decoder, which `load_weights` checks.
    if "decoder.conv_in.weight" not in tensors and prefix:
        codebook = tensors["quantize.embedding.weight"]
        sides = _grid_of(image_size, grid, CodeColours.pixels)
        colours = CodeColours(CodeColoursConfig(sides, len(codebook), codebook.shape[1]))
        return load_weights(colours, {"codebook": codebook}, weights.path)
    if "encoder.time_conv.0.conv.conv.weight" in tensors:  # only Emu3's tokenizer has a time axis
        return _make_emu3(weights, image_size, grid)
    # Chameleon's names occur with a prefix, too, in Janus's tokenizer, which is a VQ-16.
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
    # A level has attention if its first block has its weights.
    attention = tuple(level for level in levels if name.format(level) in weights.tensors)
    # `Emu3Tokenizer` holds transformers' model as its attribute `vqvae`.
    renamed = {f"vqvae.{name}": value for name, value in weights.tensors.items()}
    return load_weights(Emu3Tokenizer(Emu3TokenizerConfig(**sizes, attention_levels=attention)), renamed, weights.path)


def _grid_of(image_size: Sides | None, grid: Sides | None, pixels: int) -> Sides:
    """Return the grid, or the image size divided by `pixels`, the downsampling factor."""
    if grid is not None:
        return grid
    if image_size is None:
        raise ValueError("an image tokenizer needs image_size or grid, got neither; pass one of them")
    height, width = shape_of(image_size)
    return sides_of((height // pixels, width // pixels))


def _sizes(weights: WeightFile, blocks: str, image_size: Sides | None, grid: Sides | None) -> _Sizes:
    """Read the sizes of a convolutional image tokenizer from its tensors.

    `blocks` begins the names of the encoder's blocks at level {}, as in "encoder.conv_blocks.{}.res.".
    """
    pattern = blocks.replace(".", r"\.").replace("{}", r"(\d+)") + r"(\d+)\.conv1\.weight"
    found = [match for name in weights.tensors if (match := re.fullmatch(pattern, name))]
    # max(1, ...): a file of something else has no match, and the check below says what it lacks.
    num_levels, num_blocks = (max(1, len({match[part] for match in found})) for part in (1, 2))
    firsts = [f"{blocks.format(level)}0.conv1.weight" for level in range(num_levels)]
    weights.require("quantize.embedding.weight", "encoder.conv_in.weight", *firsts)
    channels = len(weights.tensors["encoder.conv_in.weight"])
    codebook = weights.tensors["quantize.embedding.weight"]
    # Each level but the last halves the resolution.
    factor = 2 ** (num_levels - 1)
    if image_size is not None and any(side % factor for side in shape_of(image_size)):
        raise ValueError(f"{weights.path}: the image size should be a multiple of {factor}, got {image_size}")
    return {
        "grid": _grid_of(image_size, grid, factor),
        "codebook_size": len(codebook),
        "code_dim": codebook.shape[1],
        "channels": channels,
        # The first convolution of a level has as many outputs as the level has channels.
        "channel_multipliers": tuple(len(weights.tensors[name]) // channels for name in firsts),
        "num_blocks": num_blocks,
    }
