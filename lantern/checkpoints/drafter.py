"""The LANTERN authors' drafters as our draft models, and whether a drafter belongs to a target.

Source: key lists and modelling code of jadohu/LANTERN@3a56e45, models/drafters/cnets_llamagen.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open

from lantern.checkpoints.files import WeightFile, find_weights, read_weights
from lantern.checkpoints.names import FIRST_CODE, LLAMA_LAYER, expand_norms, map_layer_parameters
from lantern.checkpoints.native import copy_tensors, empty_model, read_metadata
from lantern.checkpoints.target import load_native
from lantern.models.config import DraftConfig, TargetConfig
from lantern.models.draft import DraftModel

# What the authors' drafter hard-codes by its input_type, whatever else config.json says: side of the grid.
_GRIDS = {"t2i": 16, "t2i2": 32}
_TEXT_ROWS = 119  # its position table has one caption row fewer than the target's
_ROPE_BASE = 10000.0
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
        return load_native(file, DraftModel, target, dtype)
    weights = read_weights(file)
    sizes = {"hidden_size": target.dim, "num_attention_heads": target.num_heads}
    if not _is_chameleon(weights):
        config = _llamagen_config(weights, target, sizes)
        has_bias = bool((weights.settings or {}).get("bias", True))
        return fill_draft(empty_model(DraftModel, config, dtype), weights.tensors, weights.path, has_bias)
    _compare(weights, sizes)
    config = replace(
        DraftConfig.of_chameleon(target),
        ffn_hidden=weights.setting("intermediate_size"),
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=weights.setting("rope_theta", float),
    )
    model = empty_model(DraftModel, config, dtype)
    places, tensors = map_draft_parameters(model, has_bias=True), dict(weights.tensors)
    if (table := tensors.pop("embed_tokens.weight", None)) is not None:  # of the prompts' ids, codes among them
        tensors["prompts.weight"], tensors["embed_tokens.weight"] = table, _token_rows(table, config)
    fill_draft(model, expand_norms(tensors, config.head_dim, config.num_heads), weights.path, has_bias=True)
    _pair_neighbours(places, target.head_dim)
    return model


def fill_draft(model: DraftModel, tensors: Mapping[str, torch.Tensor], path: Path, has_bias: bool) -> DraftModel:
    """Copies the tensors of a published drafter into a model of its sizes, in evaluation mode; without a bias in the
    file's fc layer ours becomes 0. Errors are those of `copy_tensors`.
    """
    places = map_draft_parameters(model, has_bias)
    copy_tensors(tensors, places, path)
    with torch.no_grad():
        from_token, from_hidden = places["fc.weight"].chunk(2, dim=1)  # the token's embedding comes first
        model.from_token.weight.copy_(from_token)
        model.from_hidden.weight.copy_(from_hidden)
        if not has_bias:
            model.from_token.bias.zero_()
    return model.eval()


def map_draft_parameters(model: DraftModel, has_bias: bool) -> dict[str, torch.Tensor]:
    """Where each tensor of a published drafter goes, by published name; fc.weight, our two matrices, into a copy."""
    own = model.state_dict()
    places = {
        "embed_tokens.weight": own["token_embedding.weight"],
        "fc.weight": torch.cat([own["from_token.weight"], own["from_hidden.weight"]], dim=1),
    }
    places |= {"fc.bias": own["from_token.bias"]} if has_bias else {}
    places |= {"prompts.weight": own["prompt_embedding.weight"]} if model.config.num_embedded_ids else {}
    return places | map_layer_parameters(model.layer, "layers.0", LLAMA_LAYER)


def find_embedding(model: DraftModel, target: Path | str) -> str | None:
    """Finds the matrix of the target's file, in our own layout, that a drafter's token embedding was copied from, up to
    the rounding of a half precision: "token_embedding.weight", "head.weight" or None, another target's drafter.

    The authors' training copies the head where the target is one file, and the token embedding where it lies in shards.
    """
    own = model.token_embedding.weight.detach().float()
    with safe_open(target, framework="pt") as file:
        for name in ("token_embedding.weight", "head.weight"):
            matrix = file.get_tensor(name).float()
            if torch.linalg.norm(own - matrix) <= _ROUNDING * torch.linalg.norm(matrix):
                return name
    return None


def _llamagen_config(weights: WeightFile, target: TargetConfig, sizes: Mapping[str, int]) -> DraftConfig:
    """Sizes of a drafter for LlamaGen: the target's, once config.json agrees."""
    input_type = weights.setting("input_type", str)
    if input_type == "c2i":
        raise ValueError(
            f"{weights.settings_path}: input_type should be t2i or t2i2, found c2i: train a drafter for classes here"
        )
    _compare(weights, {"num_hidden_layers": 1, **sizes, "vocab_size": target.vocab_size})
    text_rows = target.num_text_tokens - 1
    if input_type in _GRIDS:
        expected = {side: name for name, side in _GRIDS.items()}.get(target.grid, f"for {target.grid**2} tokens")
        _check(weights, "input_type", expected, input_type)
        _check(weights, "cls_token_num (position offset)", text_rows, _TEXT_ROWS)
    else:
        _compare(weights, {"block_size": target.grid**2, "cls_token_num": text_rows})
    return replace(
        DraftConfig.of(target),
        ffn_hidden=weights.setting("intermediate_size"),
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=_ROPE_BASE,
        masks_text_padding=False,
    )


def _compare(weights: WeightFile, expected: Mapping[str, int]) -> None:
    for key, value in expected.items():
        _check(weights, key, value, weights.setting(key))


def _check(weights: WeightFile, key: str, expected: object, found: object) -> None:
    if expected != found:
        raise ValueError(
            f"{weights.settings_path}: {key} should be {expected} to draft for this target, found {found}; "
            "choose the drafter that was published with the target"
        )


def _is_chameleon(weights: WeightFile) -> bool:
    """Whether queries and keys are normalised."""
    return any(".q_norm." in name for name in weights.tensors)


def _token_rows(table: torch.Tensor, config: DraftConfig) -> torch.Tensor:
    """The rows of a table of Chameleon's whole vocabulary that are drawn: the codes, then what ends a line."""
    codes = table[FIRST_CODE : FIRST_CODE + config.num_codes]
    return codes if config.line_end is None else torch.cat([codes, table[config.line_end :][:1]])


def _pair_neighbours(places: Mapping[str, torch.Tensor], head_dim: int) -> None:
    """Puts the channels of queries and keys that are turned together side by side, in place, in weights by published
    name: published layouts have them half a head apart.
    """
    for name, place in places.items():
        if found := re.search(r"\.[qk]_(proj|norm)\.", name):
            channels = place.reshape(-1, 2, head_dim // 2, 1 if found[1] == "norm" else place.shape[1])
            place.copy_(channels.transpose(1, 2).reshape(place.shape))
