"""Published checkpoints of language models that draw: Chameleon's (Anole, Lumina-mGPT) and Janus-Pro's, as our targets.

Their tables and heads are cut to the image codes, which are all that is drawn; the prompt's table keeps every id.

Source: key lists of GAIR/Anole-7b-v0.1 and Alpha-VLLM/Lumina-mGPT-7B-768 in Hugging Face's layout, and of
deepseek-ai/Janus-Pro-1B and -7B; modelling code of transformers (Chameleon) and deepseek-ai/Janus@1daa72f.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from lantern.checkpoints.files import WeightFile, compare_with_config
from lantern.checkpoints.layers import LLAMA_LAYER, layer_places
from lantern.checkpoints.native import copy_tensors
from lantern.models.config import TargetConfig
from lantern.models.target import TargetModel

_FIRST_CODE = 4  # id of code 0 in Chameleon's vocabulary
_HEAD = {"head_in": "gen_head.output_mlp_projector", "head": "gen_head.vision_head"}  # Janus': our names, theirs


def llama_reader(file: WeightFile) -> Callable[[WeightFile, TargetConfig], TargetModel] | None:
    """What reads a file; None where it is of none of these models."""
    if "gen_head.vision_head.weight" in file.tensors:
        return read_janus
    return read_chameleon if any(".q_norm." in name for name in file.tensors) else None


def read_chameleon(file: WeightFile, expected: TargetConfig) -> TargetModel:
    """Reads Anole or Lumina-mGPT in Hugging Face's layout.

    Args:
        file: see `read_weights`.
        expected: sizes, and the null prompt; the options of the transformer are the family's.

    Returns:
        The model in evaluation mode, float32.

    Raises:
        ValueError: the file lacks a tensor, has other sizes than expected, or captions are expected instead of ids.
    """
    tensors = {name: value for name, value in file.tensors.items() if not name.startswith("model.vqmodel.")}
    _require(file, "lm_head.weight", "model.embed_tokens.weight")
    codes = slice(_FIRST_CODE, _FIRST_CODE + expected.vocab_size)
    tensors["head.weight"] = tensors.pop("lm_head.weight")[codes]
    tensors["codes.weight"] = tensors["model.embed_tokens.weight"][codes]
    return _fill(file.path, replace(expected, has_qk_norm=True), tensors, "model.")


def read_janus(file: WeightFile, expected: TargetConfig) -> TargetModel:
    """Reads Janus-Pro; arguments and errors as of `read_chameleon`."""
    parts = [f"gen_aligner.layers.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
    heads = {f"{theirs}.{kind}": f"{own}.{kind}" for own, theirs in _HEAD.items() for kind in ("weight", "bias")}
    _require(file, "gen_embed.weight", "language_model.model.embed_tokens.weight", *parts, *heads)
    tensors = {name: value for name, value in file.tensors.items() if name.startswith("language_model.model.")}
    tensors |= {own: file.tensors[theirs] for theirs, own in heads.items()}
    # What the transformer reads of a code: two layers over its embedding, the same in every pass.
    weight, bias, last_weight, last_bias = (file.tensors[name].float() for name in parts)
    hidden = F.gelu(F.linear(file.tensors["gen_embed.weight"].float(), weight, bias))
    tensors["codes.weight"] = F.linear(hidden, last_weight, last_bias)
    return _fill(file.path, replace(expected, has_mlp_head=True), tensors, "language_model.model.")


def _require(file: WeightFile, *names: str) -> None:
    for name in names:
        if name not in file.tensors:
            raise ValueError(f"{file.path} lacks the tensor {name}; fetch it again, or choose another checkpoint")


def _fill(path: Path, config: TargetConfig, tensors: dict[str, torch.Tensor], prefix: str) -> TargetModel:
    if not config.null_ids:
        compare_with_config(path, "what it draws from", "captions", "ids of tokens", "text.encoder")
    num_ids = len(tensors[f"{prefix}embed_tokens.weight"])
    model = TargetModel(replace(config, rope="1d", num_prompt_ids=num_ids))
    own = model.state_dict()
    places = {
        f"{prefix}embed_tokens.weight": own["prompt_embedding.weight"],
        f"{prefix}norm.weight": own["final_norm.weight"],
        "codes.weight": own["token_embedding.weight"],
        **{name: value for name, value in own.items() if name.startswith("head")},
    }
    for index, layer in enumerate(model.layers):
        places |= layer_places(layer, f"{prefix}layers.{index}", LLAMA_LAYER)
    for name in [name for name in tensors if re.search(r"[.](q|k)_(proj|norm)[.]", name)]:
        weight, heads = tensors[name], config.num_heads
        if "_norm." in name:  # Lumina-mGPT has one row for all heads
            tensors[name] = pair_neighbours(weight.expand(heads, -1).flatten(), heads).view(heads, -1)
        else:
            tensors[name] = pair_neighbours(weight, heads)
    copy_tensors(tensors, places, path)
    return model.eval()


def pair_neighbours(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorders the channels of queries or keys (heads * head_dim, ...): what is turned together lies half a head apart
    there, side by side here.
    """
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)
