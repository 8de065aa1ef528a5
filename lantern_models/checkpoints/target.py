"""Functions that read target models, in Lantern's layout or in a published one.

The published layouts are these:

- LlamaGen for captions or for classes, in LlamaGen's original layout
- LlamaGen for captions, in the LANTERN authors' Hugging Face layout
- models of the package transformers
- Chameleon in Meta's layout

The sizes in a file are compared with the expected sizes before a model is made from it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from lantern.models.config import CommonSizes, TargetConfig
from lantern.models.stored import Stored, copy_tensors, empty_model, load_model, restore_model
from lantern.models.target import Target, TargetModel
from lantern_models.adapter import TransformersTarget, adapt
from lantern_models.checkpoints.pretrained import complete_meta, open_pretrained, read_config
from lantern_models.checkpoints.tensor_names import LLAMA_LAYER, ORIGINAL_LAYER, map_layer_parameters
from lantern_models.checkpoints.weight_files import WeightFile, check_equal, read_weights
from lantern_models.families import FAMILIES, family_of
from lantern_models.sizes import COMPARED_SIZES, LLAMAGEN_SIZES, shape_fields, sides_of

# Names in config.json of those COMPARED_SIZES that have another name there.
_JSON_NAMES = {
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "grid": "block_size",
    "num_text_tokens": "cls_token_num",
}
_CLASSES = "cls_embedding.embedding_table.weight"  # only in targets for classes; its last row embeds the null class
_NULL_CAPTION_ROWS = 120  # LlamaGen's null caption has this length, whatever the model's number of prompt positions
_OWN_CLASSES: tuple[type[Target], ...] = (TransformersTarget, TargetModel)

log = logging.getLogger(__name__)


def read_target(path: Path, expected: TargetConfig, dtype: torch.dtype = torch.float32, family: str = "") -> Target:
    """Read a target in any layout, in evaluation mode, see `make_target`."""
    return make_target(read_weights(path), expected, dtype, family)


def make_target(
    weights: WeightFile, expected: TargetConfig, dtype: torch.dtype = torch.float32, family: str = ""
) -> Target:
    """Make a target from weights in any layout, in evaluation mode.

    The eps of the norms, the base of the rotary embedding and the width of the feed-forward layers are taken from the
    file or its config.json, if they state them, whatever is expected.

    Args:
        expected: expected sizes of the model.
        dtype: dtype of the weights, except those that `wide` of the model's class names, which are float32.
        family: key of `FAMILIES`, if the model belongs to the package transformers.

    Raises:
        FileNotFoundError: config.json is missing.
        ValueError: the file holds another model, or has other sizes than expected.
    """
    if weights.layout == "lantern":
        return make_native(weights, _OWN_CLASSES, expected, dtype)
    if weights.layout == "meta":
        weights = complete_meta(weights, expected)
    if weights.layout == "transformers":
        return _make_pretrained(weights, expected, dtype, family)
    return _make_llamagen(weights, expected, dtype)


def load_target(path: Path | str, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Target:
    """Read a target that `save_model` wrote, in evaluation mode. Its dtypes are those of the file by default."""
    return load_model(path, _OWN_CLASSES, dtype, device)


def _make_pretrained(weights: WeightFile, expected: TargetConfig, dtype: torch.dtype, family: str) -> Target:
    # Image grid and prompt, which config.json does not state, come from `expected`.
    family_of(cast("str", weights.model_class))  # raises
    if family not in FAMILIES:  # raises: models of transformers need a family
        check_equal(weights.path, "what it is prompted with", "captions", "ids of tokens", "text encoder")
    wanted = FAMILIES[family].model_class
    check_equal(weights.settings_path, "architectures", wanted, weights.model_class, "text encoder")
    config = read_config(weights)
    text = config.get_text_config()
    for name in ("dim", "num_layers", "num_heads"):
        key = _JSON_NAMES[name]
        check_equal(weights.settings_path, key, getattr(expected, name), getattr(text, key), name)
    names = ("line_end", "num_text_tokens", "null_ids", "null_filler")
    sizes = {name: getattr(expected, name) for name in names}
    sizes |= shape_fields(expected.shape, expected.small_shape)
    # Sizes are checked before the model is made, except the number of codes, which the model tells.
    target = adapt(open_pretrained(weights, config, dtype), family, **sizes)
    check_equal(weights.path, "codes", expected.num_codes, target.config.num_codes, "codebook_size")
    if hasattr(target.layers, "vqmodel"):
        del target.layers.vqmodel  # Chameleon's layers hold its image tokenizer
    return target.eval()


def make_native(
    weights: WeightFile, cls: type[Stored] | Sequence[type[Stored]], target: TargetConfig, dtype: torch.dtype
) -> Stored:
    """Make a target of expected sizes, or a draft model for it, from a file that `save_model` wrote."""
    file = weights.path
    model = restore_model(file, weights.tensors, weights.metadata or {}, cls, dtype)
    shape = cast(CommonSizes, model.config).shape
    check_equal(file, "grid", sides_of(target.shape), sides_of(shape), "grid")
    for name in (*COMPARED_SIZES, "num_prompt_ids"):
        # A draft model's config has fewer fields.
        if hasattr(model.config, name):
            check_equal(file, name, getattr(target, name), getattr(model.config, name), name)
    return model


def _make_llamagen(weights: WeightFile, expected: TargetConfig, dtype: torch.dtype) -> TargetModel:
    names = weights.tensors
    config = expected
    if is_hugging_face := "lm_head.weight" in names or any(name.startswith("model.") for name in names):
        config = _read_config(weights, expected)
    else:
        _check_original(weights, expected)
    # The null caption is cut if the file states its length. Otherwise, one that is too long is an error below.
    if is_hugging_face or "cls_token_num" in weights.args:
        for name in [name for name in names if name.endswith("uncond_embedding")]:
            if len(names[name]) == _NULL_CAPTION_ROWS:
                names[name] = names[name][: config.num_text_tokens]
    model = empty_model(TargetModel, config, dtype)
    copy_tensors(names, map_target_parameters(model, is_hugging_face), weights.path)
    return model.eval()


def map_target_parameters(model: TargetModel, is_hugging_face: bool) -> dict[str, torch.Tensor]:
    """Map each tensor name of a published LlamaGen target to the parameter that the tensor fills, a view."""
    prefix, table, head = ("model.", "embed_tokens", "lm_head") if is_hugging_face else ("", "tok_embeddings", "output")
    state = model.state_dict()
    parameters = {
        f"{prefix}{table}.weight": state["token_embedding.weight"],
        f"{prefix}norm.weight": state["final_norm.weight"],
        f"{head}.weight": state["head.weight"],
    }
    if model.config.num_prompt_ids:
        # A class is the only id of its prompt.
        parameters[f"{prefix}{_CLASSES}"] = state["prompt_embedding.weight"]
    else:
        parameters |= {
            f"{prefix}cls_embedding.uncond_embedding": state["null_caption"],
            f"{prefix}cls_embedding.cap_proj.fc1.weight": state["caption_in.weight"],
            f"{prefix}cls_embedding.cap_proj.fc2.weight": state["caption_out.weight"],
        }
    for index, layer in enumerate(model.layers):
        parameters |= map_layer_parameters(
            layer, f"{prefix}layers.{index}", LLAMA_LAYER if is_hugging_face else ORIGINAL_LAYER
        )
    return parameters


def _read_config(weights: WeightFile, expected: TargetConfig) -> TargetConfig:
    """Return the sizes of a LlamaGen target in Hugging Face's layout, after comparing them with the expected ones."""
    if (input_type := weights.setting("input_type", str)) != "t2i":
        raise ValueError(
            f"{weights.settings_path}: input_type should be t2i (a target that reads captions), found {input_type}"
        )
    for name in COMPARED_SIZES:
        key = _JSON_NAMES.get(name, name)
        # block_size is the number of codes of an image.
        wanted = expected.grid**2 if name == "grid" else getattr(expected, name)
        check_equal(weights.settings_path, key, wanted, weights.setting(key), name)
    hidden = weights.setting("intermediate_size")
    return replace(
        expected,
        ffn_width=0 if hidden == expected.ffn_hidden else hidden,  # 0: follows from dim
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=weights.setting("rope_base", float, expected.rope_base),
    )


def _check_original(weights: WeightFile, expected: TargetConfig) -> None:
    """Raise a ValueError if an original LlamaGen file is known not to hold the expected model."""
    wanted, found = ("classes" if ids else "captions" for ids in (expected.num_prompt_ids, _CLASSES in weights.tensors))
    check_equal(weights.path, "what it is prompted with", wanted, found, "text encoder")
    # Tensors of the same names and shapes occur in models of stage 1 (256 pixels) and stage 2 (512 pixels). The
    # training's arguments and the file's name tell them apart.
    args = weights.args
    pixels = 16 * expected.grid  # LlamaGen's tokenizer, VQ-16, has 16 pixels per code
    if (found := args.get("cls_token_num")) is not None:
        check_equal(weights.path, "args.cls_token_num", expected.num_text_tokens, found, "max_tokens")
    # LlamaGen's names are like t2i_XL_stage2_512.pt and c2i_B_256.pt.
    named = re.fullmatch(r"[ct]2i_.*_(256|384|512)\.pth?", weights.path.name)
    if "image_size" in args:
        wanted = expected.grid * args.get("downsample_size", 16)
        check_equal(weights.path, "args.image_size", wanted, args["image_size"], "image size")
    elif named and pixels in (256, 384, 512):
        check_equal(weights.path, "the image size in the file's name", pixels, int(named[1]), "image size")
    else:
        log.warning(
            "%s: neither the file's name nor its training's arguments state whether it is of stage 1 or 2; that it "
            "generates images of %d x %d codes was not checked",
            weights.path,
            expected.grid,
            expected.grid,
        )
    # No tensor states the number of heads. LlamaGen's sizes do.
    sizes = {(size["dim"], size["num_layers"]): (name, size["num_heads"]) for name, size in LLAMAGEN_SIZES.items()}
    name, heads = sizes.get((expected.dim, expected.num_layers), (None, expected.num_heads))
    if heads != expected.num_heads:
        raise ValueError(
            f"{weights.path}: num_heads should be {heads}, which LlamaGen-{name} has, got {expected.num_heads}; "
            "correct num_heads"
        )
