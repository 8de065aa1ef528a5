"""Published checkpoints as our models: targets in LlamaGen's original layout (for captions or classes) and in the
LANTERN authors', and VQ-16.

A file is compared with what the config says before it is read into a model; a mismatch of any kind is one sentence with
the file, the key, what was expected and what was found. Files in our own layout are read as well.

Source: key lists of FoundationVision/LlamaGen@ce98ec4 and jadohu/LANTERN@3a56e45.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import replace
from pathlib import Path

import torch

from lantern.checkpoints import chameleon, janus
from lantern.checkpoints.emu3 import is_emu3_tokenizer, read_emu3_tokenizer
from lantern.checkpoints.files import WeightFile, check_equal, find_weights, read_weights
from lantern.checkpoints.layers import LLAMA_LAYER, ORIGINAL_LAYER, layer_places
from lantern.checkpoints.llama import llama_reader
from lantern.checkpoints.native import Model, copy_tensors, empty_model, load_model, load_weights, read_metadata
from lantern.models.config import LLAMAGEN_SIZES, TargetConfig
from lantern.models.emu3 import Emu3Tokenizer
from lantern.models.target import TargetModel
from lantern.models.vq16 import VQ16, VQ16Config

# Where the config says what a field of a `TargetConfig` is, and config.json's name of it.
CONFIG_KEYS = {
    "dim": ("target.dim", "hidden_size"),
    "num_layers": ("target.num_layers", "num_hidden_layers"),
    "num_heads": ("target.num_heads", "num_attention_heads"),
    "vocab_size": ("tokenizer.codebook_size", "vocab_size"),
    "grid": ("tokenizer.grid", "block_size"),
    "num_text_tokens": ("text.max_tokens", "cls_token_num"),
    "caption_dim": ("text.caption_dim", "caption_dim"),
}
_CLASSES = "cls_embedding.embedding_table.weight"  # of a target that reads classes, the null class behind the others
NULL_CAPTION_ROWS = 120  # rows of LlamaGen's null caption, whatever the model's number of caption rows

log = logging.getLogger(__name__)


def read_target(path: Path, expected: TargetConfig, dtype: torch.dtype = torch.float32) -> TargetModel:
    """Reads a target of whatever family and layout its tensors tell: LlamaGen's original file, the LANTERN authors'
    Hugging Face layout, one of `checkpoints.llama`, or our own; in evaluation mode, all weights but
    `TargetModel.wide` of `dtype`.

    `norm_eps`, `rope_base` and the feed-forward width of a Hugging Face layout are read from its config.json; an
    original file holds none of them and has the expected ones.

    Raises:
        FileNotFoundError: a missing file; names it.
        ValueError: the file is damaged, holds another model, or has other sizes than expected.
    """
    file = find_weights(path)
    if read_metadata(file) is not None:
        return load_own(file, TargetModel, expected, dtype)
    weights = read_weights(file)
    if (reader := llama_reader(weights)) is not None:
        return reader(weights, expected, dtype)
    is_hugging_face = "lm_head.weight" in weights.tensors or any(name.startswith("model.") for name in weights.tensors)
    if is_hugging_face:
        config = _read_config(weights, expected)
        _cut_null_caption(weights.tensors, config)
    else:
        check_original(weights, expected)
        config = expected
        if "cls_token_num" in weights.args:
            _cut_null_caption(weights.tensors, config)
    model = empty_model(TargetModel, config, dtype)
    copy_tensors(weights.tensors, target_places(model, is_hugging_face), weights.path)
    return model.eval()


def load_own(file: Path, cls: type[Model], target: TargetConfig, dtype: torch.dtype) -> Model:
    """Reads a target or a drafter in our own layout; a ValueError where its sizes are not the target's."""
    model = load_model(file, cls, dtype)
    for name, (config_key, _) in {**CONFIG_KEYS, "num_prompt_ids": ("text.num_classes", "num_classes")}.items():
        if hasattr(model.config, name):
            check_equal(file, name, getattr(target, name), getattr(model.config, name), config_key)
    return model


def target_places(model: TargetModel, is_hugging_face: bool) -> dict[str, torch.Tensor]:
    """Where each tensor of a published target goes: part of a model's weights by published name."""
    prefix, table, head = ("model.", "embed_tokens", "lm_head") if is_hugging_face else ("", "tok_embeddings", "output")
    own = model.state_dict()
    places = {
        f"{prefix}{table}.weight": own["token_embedding.weight"],
        f"{prefix}norm.weight": own["final_norm.weight"],
        f"{head}.weight": own["head.weight"],
    }
    if model.config.num_prompt_ids:
        places[f"{prefix}{_CLASSES}"] = own["prompt_embedding.weight"]
    else:
        places |= {
            f"{prefix}cls_embedding.uncond_embedding": own["null_caption"],
            f"{prefix}cls_embedding.cap_proj.fc1.weight": own["caption_in.weight"],
            f"{prefix}cls_embedding.cap_proj.fc2.weight": own["caption_out.weight"],
        }
    for index, layer in enumerate(model.layers):
        places |= layer_places(layer, f"{prefix}layers.{index}", LLAMA_LAYER if is_hugging_face else ORIGINAL_LAYER)
    return places


def read_vq16(path: Path, image_size: int, codebook: tuple[int, int]) -> VQ16 | Emu3Tokenizer:
    """Reads a published VQ-16, alone or among Janus' tensors, Chameleon's or Emu3's tokenizer, in evaluation mode,
    float32; widths and depths are read off it. `image_size` is in pixels, `codebook` (codes, length of a code).

    Raises:
        FileNotFoundError: a missing file; names it.
        ValueError: the file is damaged, holds something else, has another codebook, or the image size is no multiple of
            the model's factor.
    """
    weights = read_weights(path)
    if is_emu3_tokenizer(weights.tensors):
        return read_emu3_tokenizer(weights, image_size)
    if janus.is_janus(weights.tensors):
        weights.tensors = janus.image_tokenizer(weights.tensors)
    if is_chameleon := "encoder.mid.attn_1.q.weight" in weights.tensors:
        weights.tensors = chameleon.image_tokenizer(weights.tensors)
    config = _vq16_config(weights, image_size, codebook)
    config = replace(config, has_attention=not is_chameleon, is_normalised=not is_chameleon)
    weights.tensors.pop("quantize.codebook_used", None)  # a statistic of training
    return load_weights(VQ16(config), weights.tensors, weights.path)


def check_original(weights: WeightFile, expected: TargetConfig) -> None:
    """Compares prompts, stage and number of heads with the expected ones, as far as an original file tells, by a
    ValueError; logs what it does not tell: stages, and models of any number of heads, have tensors of the same names
    and shapes.
    """
    wanted, found = ("classes" if ids else "captions" for ids in (expected.num_prompt_ids, _CLASSES in weights.tensors))
    check_equal(weights.path, "what it draws from", wanted, found, "text.encoder")
    # Stage 1 (256 pixels) and stage 2 (512) have the same tensors: only the file's name and training args tell.
    pixels = 16 * expected.grid
    args = weights.args
    named = re.fullmatch(r"[ct]2i_.*_(256|384|512)\.pth?", weights.path.name)
    if "cls_token_num" in args:
        found = args["cls_token_num"]
        check_equal(weights.path, "args.cls_token_num", expected.num_text_tokens, found, "text.max_tokens")
    if "image_size" in args:
        wanted = expected.grid * args.get("downsample_size", 16)
        check_equal(weights.path, "args.image_size", wanted, args["image_size"], "tokenizer.grid")
    elif named and pixels in (256, 384, 512):
        check_equal(weights.path, "the image size in the file's name", pixels, int(named[1]), "tokenizer.grid")
    else:
        log.warning(
            "%s: neither the file's name nor its training's arguments say whether it is of stage 1 or 2; that it draws "
            "images of %d x %d tokens, as tokenizer.grid says, was not checked",
            weights.path,
            expected.grid,
            expected.grid,
        )
    _check_heads_of_size(weights.path, expected)


def read_grid(weights: WeightFile) -> int:
    """Side of the image in tokens that config.json gives; a ValueError where its block_size is no square."""
    tokens = weights.setting("block_size")
    if math.isqrt(tokens) ** 2 != tokens:
        raise ValueError(f"{weights.settings_path}: block_size should be a square number of tokens, found {tokens}")
    return math.isqrt(tokens)


def check_heads(weights: WeightFile) -> None:
    """Makes sure that config.json gives every head keys and values of its own, by a ValueError."""
    heads = weights.setting("num_attention_heads")
    groups = weights.require_settings().get("num_key_value_heads") or heads
    if groups != heads:
        raise ValueError(
            f"{weights.settings_path}: num_key_value_heads should be num_attention_heads = {heads}, found {groups}"
        )


def _cut_null_caption(tensors: dict[str, torch.Tensor], config: TargetConfig) -> None:
    """LlamaGen keeps 120 rows even for a model of fewer caption rows; believed only where the file says how many."""
    for name in [name for name in tensors if name.endswith("uncond_embedding")]:
        if len(tensors[name]) == NULL_CAPTION_ROWS:
            tensors[name] = tensors[name][: config.num_text_tokens]


def _read_config(weights: WeightFile, expected: TargetConfig) -> TargetConfig:
    """Sizes that config.json gives, compared with the expected ones."""
    input_type = weights.setting("input_type", str)
    if input_type != "t2i":
        raise ValueError(
            f"{weights.settings_path}: input_type should be t2i (a target that reads captions), found {input_type}"
        )
    check_heads(weights)
    for name, (config_key, key) in CONFIG_KEYS.items():
        found, wanted = weights.setting(key), getattr(expected, name)
        if name == "grid":
            found, wanted = read_grid(weights) ** 2, wanted**2
        check_equal(weights.settings_path, key, wanted, found, config_key)
    hidden = weights.setting("intermediate_size")
    has_base = "rope_base" in weights.require_settings()
    return replace(
        expected,
        ffn_width=0 if hidden == expected.ffn_hidden else hidden,
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=weights.setting("rope_base", float) if has_base else expected.rope_base,
    )


def _check_heads_of_size(path: Path, expected: TargetConfig) -> None:
    """An original file's tensors do not tell the number of heads; width and depth of a named size do."""
    for name, size in LLAMAGEN_SIZES.items():
        if (size["dim"], size["num_layers"]) != (expected.dim, expected.num_layers):
            continue
        if expected.num_heads != size["num_heads"]:
            raise ValueError(
                f"{path}: num_heads should be {size['num_heads']}, which LlamaGen-{name} has, found "
                f"{expected.num_heads} in target.num_heads; set target.size to {name}"
            )
        return
    log.warning(
        "%s: width %d and depth %d are of no named size of LlamaGen; the %d heads of target.num_heads were not checked",
        path,
        expected.dim,
        expected.num_layers,
        expected.num_heads,
    )


def _vq16_config(weights: WeightFile, image_size: int, codebook: tuple[int, int]) -> VQ16Config:
    path, state = weights.path, weights.tensors

    def tensor(name: str) -> torch.Tensor:
        if name not in state:
            raise ValueError(f"{path} lacks the tensor {name}; found {len(state)} tensors of no VQ-16")
        return state[name]

    if (found := tuple(tensor("quantize.embedding.weight").shape)) != codebook:
        raise ValueError(
            f"{path}: tensor quantize.embedding.weight should have shape {codebook} as "
            f"tokenizer.codebook_size and tokenizer.code_dim say, found {found}"
        )
    places = [re.match(r"encoder\.conv_blocks\.(\d+)\.res\.(\d+)\.conv1\.weight", name) for name in state]
    blocks = [(int(place[1]), int(place[2])) for place in places if place]
    num_levels, num_blocks = (1 + max((block[axis] for block in blocks), default=0) for axis in (0, 1))
    channels = len(tensor("encoder.conv_in.weight"))
    widths = [len(tensor(f"encoder.conv_blocks.{level}.res.0.conv1.weight")) for level in range(num_levels)]
    factor = 2 ** (num_levels - 1)
    if image_size % factor:
        raise ValueError(f"{path}: data.image_size should be a multiple of {factor}, got {image_size}")
    return VQ16Config(
        grid=image_size // factor,
        codebook_size=codebook[0],
        code_dim=codebook[1],
        channels=channels,
        channel_multipliers=tuple(width // channels for width in widths),
        num_blocks=num_blocks,
        latent_channels=len(tensor("encoder.conv_out.weight")),
    )
