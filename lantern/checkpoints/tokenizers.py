"""Published image tokenizers as our models: VQ-16 alone or within Janus, Chameleon's, Emu3's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from lantern.checkpoints.files import WeightFile, read_weights
from lantern.checkpoints.names import EMU3_TOKENIZER, chameleon_tokenizer, rename
from lantern.checkpoints.native import load_weights
from lantern.checkpoints.target import JANUS_HEAD
from lantern.models.emu3 import Emu3Tokenizer, Emu3TokenizerConfig
from lantern.models.vq16 import VQ16, VQ16Config


def read_image_tokenizer(path: Path, image_size: int) -> VQ16 | Emu3Tokenizer:
    """Reads an image tokenizer for images of so many pixels, in evaluation mode, float32; its sizes are read off it.

    Raises:
        FileNotFoundError: a missing file; names it.
        ValueError: the file is damaged or holds something else, or the image size is no multiple of the model's factor.
    """
    weights = read_weights(path)
    if "encoder.time_conv.0.conv.conv.weight" in weights.tensors:  # of image tokenizers Emu3's alone has time
        return _read_emu3(weights, image_size)
    if JANUS_HEAD in weights.tensors:
        prefix, found = "gen_vision_model.", weights.tensors
        weights.tensors = {name.removeprefix(prefix): found[name] for name in found if name.startswith(prefix)}
    if is_chameleon := "encoder.mid.attn_1.q.weight" in weights.tensors:
        weights.tensors = chameleon_tokenizer(weights.tensors)
    weights.tensors.pop("quantize.codebook_used", None)  # a statistic of training
    sizes = _sizes(weights, image_size, "encoder.conv_blocks.{}.res.")
    weights.require("encoder.conv_out.weight")
    latent_channels = len(weights.tensors["encoder.conv_out.weight"])
    kind = {"has_attention": not is_chameleon, "is_normalised": not is_chameleon}
    return load_weights(
        VQ16(VQ16Config(**sizes, **kind, latent_channels=latent_channels)), weights.tensors, weights.path
    )


def _read_emu3(weights: WeightFile, image_size: int) -> Emu3Tokenizer:
    sizes = _sizes(weights, image_size, "encoder.down.{}.block.")
    levels = range(len(sizes["channel_multipliers"]))
    attention = tuple(level for level in levels if f"encoder.down.{level}.attn.0.q.weight" in weights.tensors)
    tensors = rename(weights.tensors, EMU3_TOKENIZER)
    # One by one convolutions are matrices in transformers.
    tensors = {name: value[..., 0, 0] if name.endswith("_proj.weight") else value for name, value in tensors.items()}
    own = {f"vqvae.{name}": value for name, value in tensors.items()}
    return load_weights(Emu3Tokenizer(Emu3TokenizerConfig(**sizes, attention_levels=attention)), own, weights.path)


def _sizes(weights: WeightFile, image_size: int, blocks: str) -> dict[str, Any]:
    """Sizes that both classes have, read off the tensors; `blocks` are the encoder's of a level."""
    pattern = blocks.replace(".", r"\.").replace("{}", r"(\d+)") + r"(\d+)\.conv1\.weight"
    found = [match for name in weights.tensors if (match := re.fullmatch(pattern, name))]
    num_levels, num_blocks = (max(1, len({match[part] for match in found})) for part in (1, 2))
    firsts = [f"{blocks.format(level)}0.conv1.weight" for level in range(num_levels)]
    weights.require("quantize.embedding.weight", "encoder.conv_in.weight", *firsts)
    channels, codebook = len(weights.tensors["encoder.conv_in.weight"]), weights.tensors["quantize.embedding.weight"]
    factor = 2 ** (num_levels - 1)
    if image_size % factor:
        raise ValueError(f"{weights.path}: data.image_size should be a multiple of {factor}, got {image_size}")
    return {
        "grid": image_size // factor,
        "codebook_size": len(codebook),
        "code_dim": codebook.shape[1],
        "channels": channels,
        "channel_multipliers": tuple(len(weights.tensors[name]) // channels for name in firsts),
        "num_blocks": num_blocks,
    }
