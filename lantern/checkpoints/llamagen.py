"""Published checkpoints as our models: LlamaGen's targets, the LANTERN authors' targets and drafters, VQ-16.

A file is compared with what the config says before it is converted; a mismatch of any kind is one sentence with the
file, the key, what was expected and what was found. Files in our own layout are read as well.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from lantern.checkpoints.files import WeightFile, compare_with_config, find_weights, read_weights
from lantern.checkpoints.layouts import (
    NULL_CAPTION_ROWS,
    check_tensors,
    convert_draft,
    convert_target,
    draft_shapes,
    target_layout,
    target_shapes,
    vq16_config,
)
from lantern.checkpoints.native import load_model, load_weights, read_metadata
from lantern.checkpoints.original_target import check_original
from lantern.models.config import find_multiple
from lantern.models.draft import DraftConfig, DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.models.vq16 import VQ16
from lantern_pipeline.downloads.manifest import resource_path, resource_sha256
from lantern_pipeline.world import tokenizer

# Where the config says what a field of a `TargetConfig` is, and config.json's name of it.
_CONFIG_KEYS = {
    "dim": ("target.dim", "hidden_size"),
    "num_layers": ("target.num_layers", "num_hidden_layers"),
    "num_heads": ("target.num_heads", "num_attention_heads"),
    "vocab_size": ("tokenizer.codebook_size", "vocab_size"),
    "grid": ("tokenizer.grid", "block_size"),
    "num_text_tokens": ("text.max_tokens", "cls_token_num"),
    "caption_dim": ("text.caption_dim", "caption_dim"),
}
# What the authors' drafter hard-codes by its input_type, whatever else config.json says: side of the grid.
# Source: jadohu/LANTERN@3a56e45, models/drafters/cnets_llamagen.py.
_DRAFTER_GRIDS = {"t2i": 16, "t2i2": 32}
_DRAFTER_TEXT_ROWS = 119  # its position table has one caption row fewer than the target's
_DRAFTER_ROPE_BASE = 10000.0


def read_target(path: Path, expected: TargetConfig) -> TargetModel:
    """Reads a target: LlamaGen's original file, the LANTERN authors' Hugging Face layout, or our own.

    Args:
        path: file or folder, see `read_weights`.
        expected: sizes that the config gives. `norm_eps`, `rope_base` and the feed-forward width of a Hugging Face
            layout are read from its config.json; an original file holds none of them and has the expected ones.

    Returns:
        The model in evaluation mode, float32.

    Raises:
        FileNotFoundError: a missing file; names it.
        ValueError: the file is damaged, holds another model, or has other sizes than expected.
    """
    file = find_weights(path)
    if read_metadata(file) is not None:
        model = load_model(file, TargetModel)
        for name, (config_key, _) in _CONFIG_KEYS.items():
            compare_with_config(file, name, getattr(expected, name), getattr(model.config, name), config_key)
        return model
    weights = read_weights(file)
    layout = target_layout(weights.tensors)
    if layout == "hugging_face":
        config = _config_of_target(weights, expected)
    else:
        check_original(weights, expected)
        config = expected
    shapes = target_shapes(config, layout, _null_rows(weights, config, layout))
    check_tensors(weights.path, weights.tensors, shapes)
    state = convert_target(weights.tensors, config.num_text_tokens)
    weights.tensors.clear()  # stacked matrices were copied
    return load_weights(TargetModel(config), state, weights.path)


def read_draft(path: Path, target: TargetConfig) -> DraftModel:
    """Reads a drafter of the LANTERN authors, or one of our own.

    Args:
        path: `pytorch_model.bin` or safetensors with config.json beside it, or their folder.
        target: sizes of the target that it drafts for.

    Returns:
        The model in evaluation mode, float32, with the file's own token embedding.

    Raises:
        FileNotFoundError: a missing file; names it.
        ValueError: the file is damaged, or drafts for another target.
    """
    file = find_weights(path)
    if read_metadata(file) is not None:
        model = load_model(file, DraftModel)
        for name in ("dim", "num_heads", "vocab_size", "grid", "num_text_tokens"):
            compare_with_config(
                file, name, getattr(target, name), getattr(model.config, name), f"{_CONFIG_KEYS[name][0]}"
            )
        return model
    weights = read_weights(file)
    config = _config_of_draft(weights, target)
    has_bias = bool(weights.require_settings().get("bias", True))
    check_tensors(weights.path, weights.tensors, draft_shapes(config, has_bias=has_bias))
    return load_weights(DraftModel(config), convert_draft(weights.tensors), weights.path)


def read_tokenizer(path: Path, *, image_size: int, grid: int, codebook_size: int, code_dim: int) -> nn.Module:
    """Reads a VQ-16 image tokenizer, or a tokenizer in our own layout. A VQ-16's widths are read off its tensors.

    Args:
        path: file or folder.
        image_size: side of the images in pixels, as config key data.image_size says.
        grid: tokens a side, as config key tokenizer.grid says.
        codebook_size: number of codes, as config key tokenizer.codebook_size says.
        code_dim: length of a code, as config key tokenizer.code_dim says.

    Returns:
        A `VQ16` or an `ImageTokenizer` in evaluation mode.

    Raises:
        FileNotFoundError: a missing file; names it.
        ValueError: the file is damaged, holds something else, or has other sizes than expected.
    """
    file = find_weights(path)
    if read_metadata(file) is not None:
        model = tokenizer.load_tokenizer(file)
    else:
        weights = read_weights(file)
        codebook = (codebook_size, code_dim)
        model = VQ16(vq16_config(weights.path, weights.tensors, image_size=image_size, codebook=codebook))
        weights.tensors.pop("quantize.codebook_used", None)  # a statistic of training
        load_weights(model, weights.tensors, weights.path)
    compare_with_config(file, "image_size", image_size, model.config.image_size, "data.image_size")
    wanted = {"grid": grid, "codebook_size": codebook_size, "code_dim": code_dim}
    for name, value in wanted.items():
        compare_with_config(file, name, value, getattr(model.config, name), f"tokenizer.{name}")
    return model


def describe_conversion(given: Path | str, model: nn.Module) -> dict[str, Any]:
    """Says which file a model was converted from: the report in place of a training's.

    Args:
        given: the file or folder, or the manifest of a resource.
        model: what it became.

    Returns:
        checkpoint (name of file or folder), sha256, num_parameters and, of a transformer, norm_eps.
    """
    report = {
        "checkpoint": resource_path(given).name,
        "sha256": resource_sha256(given),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    return {**report, "norm_eps": model.config.norm_eps} if hasattr(model.config, "norm_eps") else report


def _null_rows(weights: WeightFile, config: TargetConfig, layout: str) -> int:
    """Rows that the stored null caption must have: LlamaGen keeps 120 even for a model of fewer caption rows, which is
    believed only where the file says how many the model has.
    """
    says_rows = layout == "hugging_face" or "cls_token_num" in weights.args
    rows = {len(tensor) for name, tensor in weights.tensors.items() if name.endswith("uncond_embedding")}
    return NULL_CAPTION_ROWS if says_rows and rows == {NULL_CAPTION_ROWS} else config.num_text_tokens


def _grid_of(weights: WeightFile) -> int:
    tokens = weights.setting("block_size")
    if math.isqrt(tokens) ** 2 != tokens:
        raise ValueError(f"{weights.settings_path}: block_size should be a square number of tokens, found {tokens}")
    return math.isqrt(tokens)


def _config_of_target(weights: WeightFile, expected: TargetConfig) -> TargetConfig:
    """Sizes that config.json gives, compared with the expected ones."""
    input_type = weights.setting("input_type", str)
    if input_type != "t2i":
        raise ValueError(
            f"{weights.settings_path}: input_type should be t2i (a target that reads captions), found {input_type}"
        )
    _check_heads(weights)
    config = expected
    for name, (config_key, key) in _CONFIG_KEYS.items():
        found, wanted = weights.setting(key), getattr(expected, name)
        if name == "grid":
            found, wanted = _grid_of(weights) ** 2, wanted**2
        compare_with_config(weights.settings_path, key, wanted, found, config_key)
    has_base = "rope_base" in weights.require_settings()
    return replace(
        config,
        ffn_multiple=_ffn_multiple(weights, config.dim),
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=weights.setting("rope_base", float) if has_base else config.rope_base,
    )


def _check_heads(weights: WeightFile) -> None:
    heads = weights.setting("num_attention_heads")
    groups = weights.require_settings().get("num_key_value_heads") or heads
    if groups != heads:
        raise ValueError(
            f"{weights.settings_path}: num_key_value_heads should be num_attention_heads = {heads}, found {groups}"
        )


def _ffn_multiple(weights: WeightFile, dim: int) -> int:
    """The multiple by which LlamaGen's rule gives config.json's feed-forward width."""
    hidden = weights.setting("intermediate_size")
    for multiple in (256, hidden):
        if find_multiple(int(8 * dim / 3), multiple) == hidden:
            return multiple
    raise ValueError(
        f"{weights.settings_path}: intermediate_size should be at least 8 / 3 of hidden_size = {dim}, found {hidden}"
    )


def _config_of_draft(weights: WeightFile, target: TargetConfig) -> DraftConfig:
    """Sizes that config.json gives, compared with the target's."""
    file = weights.settings_path
    input_type = weights.setting("input_type", str)
    if input_type == "c2i":
        raise ValueError(f"{file}: input_type should be t2i or t2i2, found c2i: a drafter for classes")
    _check_heads(weights)
    _compare_target(file, "num_hidden_layers", 1, weights.setting("num_hidden_layers"))
    for name in ("dim", "num_heads", "vocab_size"):
        key = _CONFIG_KEYS[name][1]
        _compare_target(file, key, getattr(target, name), weights.setting(key))
    if input_type in _DRAFTER_GRIDS:
        grid, text_rows = _DRAFTER_GRIDS[input_type], _DRAFTER_TEXT_ROWS
        wanted = {side: name for name, side in _DRAFTER_GRIDS.items()}.get(target.grid, f"for {target.grid**2} tokens")
        _compare_target(file, "input_type", wanted, input_type)
    else:
        grid, text_rows = _grid_of(weights), weights.setting("cls_token_num")
        _compare_target(file, "block_size", target.grid**2, grid**2)
    _compare_target(file, "cls_token_num (position offset)", target.num_text_tokens - 1, text_rows)
    return DraftConfig(
        dim=target.dim,
        num_heads=target.num_heads,
        ffn_hidden=weights.setting("intermediate_size"),
        vocab_size=target.vocab_size,
        grid=grid,
        num_text_tokens=text_rows + 1,
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=_DRAFTER_ROPE_BASE,
        masks_text_padding=False,
    )


def _compare_target(path: Path, key: str, expected: Any, found: Any) -> None:
    if expected != found:
        raise ValueError(
            f"{path}: {key} should be {expected} to draft for this target, found {found}; "
            "choose the drafter that was published with the target"
        )
