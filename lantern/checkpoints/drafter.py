"""The LANTERN authors' drafters as our draft models, and whether a drafter belongs to a target.

Source: key lists and modelling code of jadohu/LANTERN@3a56e45.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from lantern.checkpoints.files import WeightFile, find_weights, read_weights
from lantern.checkpoints.layers import LLAMA_LAYER, layer_places
from lantern.checkpoints.llama import expand_norms, is_chameleon, pair_neighbours, token_rows
from lantern.checkpoints.llamagen import CONFIG_KEYS, check_heads, load_own, read_grid
from lantern.checkpoints.native import copy_tensors, empty_model, read_metadata
from lantern.models.config import DraftConfig, TargetConfig
from lantern.models.draft import DraftModel

# What the authors' drafter hard-codes by its input_type, whatever else config.json says: side of the grid.
# Source: models/drafters/cnets_llamagen.py.
_GRIDS = {"t2i": 16, "t2i2": 32}
_TEXT_ROWS = 119  # its position table has one caption row fewer than the target's
_ROPE_BASE = 10000.0
_TARGET_MATRICES = ("token_embedding.weight", "head.weight")
_ROUNDING = 0.01  # of the norm; bfloat16 rounds by 0.002


def read_draft(path: Path, target: TargetConfig, dtype: torch.dtype = torch.float32) -> DraftModel:
    """Reads a drafter of the LANTERN authors (`pytorch_model.bin` or safetensors with config.json beside it, or their
    folder), or one of our own, in evaluation mode, with the file's own token embedding.

    Raises:
        FileNotFoundError: a missing file; names it.
        ValueError: the file is damaged, or drafts for a target of other sizes.
    """
    file = find_weights(path)
    if read_metadata(file) is not None:
        return load_own(file, DraftModel, target, dtype)
    weights = read_weights(file)
    if is_chameleon(weights):
        return _read_chameleon(weights, target, dtype)
    config = _read_config(weights, target)
    has_bias = bool(weights.require_settings().get("bias", True))
    return fill_draft(empty_model(DraftModel, config, dtype), weights.tensors, weights.path, has_bias)


def _read_chameleon(weights: WeightFile, target: TargetConfig, dtype: torch.dtype) -> DraftModel:
    """Reads a drafter for Anole or Lumina-mGPT, which sees the prompt's ids."""
    check_heads(weights)
    for name in ("dim", "num_heads"):
        key = CONFIG_KEYS[name][1]
        _compare(weights.settings_path, key, getattr(target, name), weights.setting(key))
    config = replace(
        DraftConfig.of_chameleon(target),
        ffn_hidden=weights.setting("intermediate_size"),
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=weights.setting("rope_theta", float),
    )
    model = empty_model(DraftModel, config, dtype)
    tensors = dict(weights.tensors)
    if (table := tensors.pop("embed_tokens.weight", None)) is not None:
        tensors["prompts.weight"], tensors["embed_tokens.weight"] = table, token_rows(table, config)
    fill_draft(model, expand_norms(tensors, draft_places(model, has_bias=True)), weights.path, has_bias=True)
    pair_neighbours(draft_places(model, has_bias=True), target.head_dim)
    return model


def fill_draft(model: DraftModel, tensors: Mapping[str, torch.Tensor], path: Path, has_bias: bool) -> DraftModel:
    """Copies the tensors of a published drafter into a model of its sizes, in evaluation mode; without a bias in the
    file's fc layer ours becomes 0. Errors are those of `copy_tensors`.
    """
    places = draft_places(model, has_bias)
    copy_tensors(tensors, places, path)
    with torch.no_grad():
        from_token, from_hidden = places["fc.weight"].chunk(2, dim=1)  # the token's embedding comes first
        model.from_token.weight.copy_(from_token)
        model.from_hidden.weight.copy_(from_hidden)
        if not has_bias:
            model.from_token.bias.zero_()
    return model.eval()


def draft_places(model: DraftModel, has_bias: bool) -> dict[str, torch.Tensor]:
    """Where each tensor of a published drafter goes, by published name; fc.weight, our two matrices, into a copy."""
    own = model.state_dict()
    places = {
        "embed_tokens.weight": own["token_embedding.weight"],
        "fc.weight": torch.cat([own["from_token.weight"], own["from_hidden.weight"]], dim=1),
    }
    places |= {"fc.bias": own["from_token.bias"]} if has_bias else {}
    places |= {"prompts.weight": own["prompt_embedding.weight"]} if model.config.num_embedded_ids else {}
    return places | layer_places(model.layer, "layers.0", LLAMA_LAYER)


def find_embedding(model: DraftModel, target: Path | str) -> str | None:
    """Finds the matrix of the target's file, in our own layout, that a drafter's token embedding was copied from, up to
    the rounding of a half precision: "token_embedding.weight", "head.weight" or None, another target's drafter.

    The authors' training copies the head where the target is one file, and the token embedding where it lies in shards
    (models/drafters/cnets_llamagen.py).
    """
    own = model.token_embedding.weight.detach().float()
    with safe_open(target, framework="pt") as file:
        for name in _TARGET_MATRICES:
            matrix = file.get_tensor(name).float()
            if torch.linalg.norm(own - matrix) <= _ROUNDING * torch.linalg.norm(matrix):
                return name
    return None


def _read_config(weights: WeightFile, target: TargetConfig) -> DraftConfig:
    """Sizes that config.json gives, compared with the target's."""
    file = weights.settings_path
    input_type = weights.setting("input_type", str)
    if input_type == "c2i":
        raise ValueError(f"{file}: input_type should be t2i or t2i2, found c2i: train a drafter for classes here")
    check_heads(weights)
    _compare(file, "num_hidden_layers", 1, weights.setting("num_hidden_layers"))
    for name in ("dim", "num_heads", "vocab_size"):
        key = CONFIG_KEYS[name][1]
        _compare(file, key, getattr(target, name), weights.setting(key))
    if input_type in _GRIDS:
        grid, text_rows = _GRIDS[input_type], _TEXT_ROWS
        wanted = {side: name for name, side in _GRIDS.items()}.get(target.grid, f"for {target.grid**2} tokens")
        _compare(file, "input_type", wanted, input_type)
    else:
        grid, text_rows = read_grid(weights), weights.setting("cls_token_num")
        _compare(file, "block_size", target.grid**2, grid**2)
    _compare(file, "cls_token_num (position offset)", target.num_text_tokens - 1, text_rows)
    return DraftConfig(
        dim=target.dim,
        num_heads=target.num_heads,
        ffn_hidden=weights.setting("intermediate_size"),
        vocab_size=target.vocab_size,
        grid=grid,
        num_text_tokens=text_rows + 1,
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=_ROPE_BASE,
        masks_text_padding=False,
    )


def _compare(path: Path, key: str, expected: Any, found: Any) -> None:
    if expected != found:
        raise ValueError(
            f"{path}: {key} should be {expected} to draft for this target, found {found}; "
            "choose the drafter that was published with the target"
        )
