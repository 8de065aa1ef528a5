"""Published checkpoints of language models that draw: Chameleon's (Anole, Lumina-mGPT) and Janus-Pro's, as our targets.

Their tables and heads are cut to the image codes, which are all that is drawn; the prompt's table keeps every id.

Source: key lists of GAIR/Anole-7b-v0.1 and Alpha-VLLM/Lumina-mGPT-7B-768 in Hugging Face's layout, and of
deepseek-ai/Janus-Pro-1B and -7B; modelling code of transformers (Chameleon) and deepseek-ai/Janus@1daa72f.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

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
    return _fill(file, replace(expected, has_qk_norm=True), tensors, "model.")


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
    return _fill(file, replace(expected, has_mlp_head=True), tensors, "language_model.model.")


def _require(file: WeightFile, *names: str) -> None:
    for name in names:
        if name not in file.tensors:
            raise ValueError(f"{file.path} lacks the tensor {name}; fetch it again, or choose another checkpoint")


def _fill(file: WeightFile, config: TargetConfig, tensors: dict[str, torch.Tensor], prefix: str) -> TargetModel:
    settings = file.settings or {}
    settings = settings.get("language_config", settings)  # Janus' has those of its parts below each other
    found = settings.get("num_attention_heads", config.num_heads)
    compare_with_config(file.settings_path, "num_attention_heads", config.num_heads, found, "target.num_heads")
    if not config.null_ids:
        compare_with_config(file.path, "what it draws from", "captions", "ids of tokens", "text.encoder")
    config = replace(
        config,
        rope="1d",
        rope_base=settings.get("rope_theta", config.rope_base),
        norm_eps=settings.get("rms_norm_eps", config.norm_eps),
        num_prompt_ids=len(tensors[f"{prefix}embed_tokens.weight"]),
    )
    model = TargetModel(config)
    own = model.state_dict()
    places = {
        f"{prefix}embed_tokens.weight": own["prompt_embedding.weight"],
        f"{prefix}norm.weight": own["final_norm.weight"],
        "codes.weight": own["token_embedding.weight"],
        **{name: value for name, value in own.items() if name.startswith("head")},
    }
    for index, layer in enumerate(model.layers):
        places |= layer_places(layer, f"{prefix}layers.{index}", LLAMA_LAYER)
    for name, weight in tensors.items():
        if name in places and re.search(r"[.][qk]_(proj|norm)[.]", name):
            tensors[name] = _pair_neighbours(weight, places[name].shape, config)
    copy_tensors(tensors, places, file.path)
    return model.eval()


def _pair_neighbours(weight: torch.Tensor, shape: torch.Size, config: TargetConfig) -> torch.Tensor:
    """Queries, keys or their norms, with the channels that are turned together side by side: in the file they lie half
    a head apart. Lumina-mGPT's norms have one row for all heads.
    """
    if weight.shape == (1, *shape[1:]):
        weight = weight.expand(shape)
    if weight.shape != shape:
        return weight  # `copy_tensors` says so
    return weight.reshape(config.num_heads, 2, config.head_dim // 2, -1).transpose(1, 2).reshape(shape)
