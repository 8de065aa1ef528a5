"""Functions that read draft models, in Lantern's layout or in the layout of the LANTERN authors.

A draft model can be used only with the target for which it was trained. Its sizes are therefore compared with the
target's. The published fc.weight holds two parameters side by side, `from_token`, then `from_hidden`.

Source: key lists and modelling code of jadohu/LANTERN@3a56e45, models/drafters/cnets_llamagen.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open

from lantern.models.config import DraftConfig, TargetConfig
from lantern.models.draft import DraftModel
from lantern.models.stored import copy_tensors, empty_model
from lantern_models.checkpoints.target import make_native
from lantern_models.checkpoints.tensor_names import FIRST_CODE, LLAMA_LAYER, expand_norms, map_layer_parameters
from lantern_models.checkpoints.weight_files import WeightFile, read_weights
from lantern_models.sizes import chameleon_draft

# Side of the image in codes for each input_type. The authors' code reads it off the input_type and fixes the
# number of prompt positions, whatever config.json says.
_GRIDS = {"t2i": 16, "t2i2": 32}
_TEXT_ROWS = 119  # prompt positions of the authors' draft model, one fewer than of its target
_ROPE_BASE = 10000.0
_ROUNDING = 0.01  # largest distance of a copy, relative to the norm; rounding to bfloat16 gives 0.002


def read_draft(path: Path, target: TargetConfig, dtype: torch.dtype = torch.float32) -> DraftModel:
    """Read a draft model in evaluation mode. Its token embedding is its own, not the target's.

    Args:
        path: in Lantern's layout, a safetensors file with the config in its metadata. In the authors' layout,
            `pytorch_model.bin` or a safetensors file with config.json in the same folder, or that folder.
        target: sizes of the target.
        dtype: dtype of the weights.

    Raises:
        FileNotFoundError: the weights or config.json are missing.
        ValueError: the file is damaged, or the draft model belongs to a target of other sizes.
    """
    weights = read_weights(path)
    if weights.layout == "lantern":
        return make_native(weights, DraftModel, target, dtype)
    sizes = {"hidden_size": target.dim, "num_attention_heads": target.num_heads}
    if not _is_chameleon(weights):
        config = _llamagen_config(weights, target, sizes)
        has_bias = bool((weights.settings or {}).get("bias", True))  # of fc
        return fill_draft(empty_model(DraftModel, config, dtype), weights.tensors, weights.path, has_bias)
    _compare(weights, sizes)
    config = replace(
        chameleon_draft(target),
        ffn_hidden=weights.setting("intermediate_size"),
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=weights.setting("rope_theta", float),
    )
    model = empty_model(DraftModel, config, dtype)
    # The views stay valid when `fill_draft` has filled the model. Then `_pair_neighbours` reorders them.
    parameters = map_draft_parameters(model, has_bias=True)
    tensors = dict(weights.tensors)
    if (table := tensors.pop("embed_tokens.weight", None)) is not None:  # one table for the ids of words and codes
        tensors["prompts.weight"] = table
        tensors["embed_tokens.weight"] = _token_rows(table, config)
    tensors = expand_norms(tensors, config.head_dim, config.num_heads, config.num_kv_heads)
    fill_draft(model, tensors, weights.path, has_bias=True)
    _pair_neighbours(parameters, target.head_dim)
    return model


def fill_draft(model: DraftModel, tensors: Mapping[str, torch.Tensor], path: Path, has_bias: bool) -> DraftModel:
    """Copy published tensors into a model, in place, and return it in evaluation mode.

    `path` is for error messages. Without `has_bias`, the published `fc` has no bias, and the model's becomes 0.
    """
    parameters = map_draft_parameters(model, has_bias)
    copy_tensors(tensors, parameters, path)
    with torch.no_grad():
        from_token, from_hidden = parameters["fc.weight"].chunk(2, dim=1)
        model.from_token.weight.copy_(from_token)
        model.from_hidden.weight.copy_(from_hidden)
        if not has_bias:
            model.from_token.bias.zero_()
    return model.eval()


def map_draft_parameters(model: DraftModel, has_bias: bool) -> dict[str, torch.Tensor]:
    """Map each tensor name of a published draft model to the parameter that the tensor fills, a view.

    fc.weight is mapped to a copy of two parameters. The caller must split it after filling it, as `fill_draft` does.
    """
    state = model.state_dict()
    parameters = {
        "embed_tokens.weight": state["token_embedding.weight"],
        "fc.weight": torch.cat([state["from_token.weight"], state["from_hidden.weight"]], dim=1),
    }
    parameters |= {"fc.bias": state["from_token.bias"]} if has_bias else {}
    parameters |= {"prompts.weight": state["prompt_embedding.weight"]} if model.config.num_embedded_ids else {}
    return parameters | map_layer_parameters(model.layer, "layers.0", LLAMA_LAYER)


def find_embedding(model: DraftModel, target: Path | str) -> str | None:
    """Return which matrix of the target is the draft model's token embedding, to check that the two fit.

    `target` is a file in Lantern's layout. The result is "token_embedding.weight" or "head.weight", or None if the
    draft model belongs to another target.
    """
    embedding = model.token_embedding.weight.detach().float()
    with safe_open(target, framework="pt") as file:
        # The LANTERN authors' training copies the head if the target is in one file, and the token embedding if it is
        # in several.
        for name in ("token_embedding.weight", "head.weight"):
            matrix = file.get_tensor(name).float()
            # The copy may be rounded to a half-precision dtype.
            if torch.linalg.norm(embedding - matrix) <= _ROUNDING * torch.linalg.norm(matrix):
                return name
    return None


def _llamagen_config(weights: WeightFile, target: TargetConfig, sizes: Mapping[str, int]) -> DraftConfig:
    """Compare config.json with `sizes` and the target, and return the sizes of a draft model for LlamaGen."""
    input_type = weights.setting("input_type", str)
    if input_type == "c2i":
        raise ValueError(
            f"{weights.settings_path}: input_type should be t2i or t2i2, found c2i: train a drafter for classes here"
        )
    _compare(weights, {"num_hidden_layers": 1, **sizes, "vocab_size": target.vocab_size})
    text_rows = target.num_text_tokens - 1
    if input_type in _GRIDS:
        # A phrase for other grids makes the comparison fail, and the message say why.
        expected = {side: name for name, side in _GRIDS.items()}.get(target.grid, f"for {target.grid**2} tokens")
        _check(weights, "input_type", expected, input_type)
        _check(weights, "cls_token_num (position offset)", text_rows, _TEXT_ROWS)
    else:
        _compare(weights, {"block_size": target.grid**2, "cls_token_num": text_rows})
    return replace(
        DraftConfig.of(target),
        ffn_hidden=weights.setting("intermediate_size"),
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=_ROPE_BASE,  # fixed in the authors' code for t2i and t2i2
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
    # Only Chameleon's draft models have norms of queries and keys.
    return any(".q_norm." in name for name in weights.tensors)


def _token_rows(table: torch.Tensor, config: DraftConfig) -> torch.Tensor:
    """Return the rows of Chameleon's whole table, (ids, dim), of the codes and the line end, (vocab, dim)."""
    # Slices of a table that is too short are shorter, too. `copy_tensors` then names the file and the tensor.
    codes = table[FIRST_CODE : FIRST_CODE + config.num_codes]
    return codes if config.line_end is None else torch.cat([codes, table[config.line_end :][:1]])


def _pair_neighbours(parameters: Mapping[str, torch.Tensor], head_dim: int) -> None:
    """Reorder the channels of queries and keys for Lantern's rotary embedding, in place."""
    for name, parameter in parameters.items():
        if found := re.search(r"\.[qk]_(proj|norm)\.", name):
            # The two channels of a rotated pair are half a head apart in published layouts, 0 1 2 0 1 2, and
            # adjacent in Lantern's, 0 0 1 1 2 2.
            channels = parameter.reshape(-1, 2, head_dim // 2, 1 if found[1] == "norm" else parameter.shape[1])
            parameter.copy_(channels.transpose(1, 2).reshape(parameter.shape))
