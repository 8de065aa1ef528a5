"""Published checkpoints of language models that draw: Chameleon's (Anole, Lumina-mGPT), Janus-Pro's and Emu3's, as our
targets, and what the LANTERN authors' drafters for Chameleon's share with them.

Their tables and heads are cut to the image codes, which are all that is drawn; the prompt's table keeps every id.

Source: key lists of GAIR/Anole-7b-v0.1 and Alpha-VLLM/Lumina-mGPT-7B-768 in Hugging Face's layout and Meta's, and of
BAAI/Emu3-Gen; modelling code of transformers (Chameleon) and baaivision/Emu3@f6ea9aa.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from lantern.checkpoints import chameleon, janus
from lantern.checkpoints.files import WeightFile, check_equal
from lantern.checkpoints.layers import LLAMA_LAYER, layer_places
from lantern.checkpoints.native import copy_tensors, empty_model
from lantern.models.config import DraftConfig, TargetConfig
from lantern.models.target import TargetModel

FIRST_CODE = 4  # id of code 0 in Chameleon's vocabulary
_PROJECTION, _NORM = (re.compile(rf"[.][qk]_{part}[.]") for part in ("proj", "norm"))


def is_chameleon(file: WeightFile) -> bool:
    """Whether a file is of Chameleon's kind, target or drafter: queries and keys are normalised."""
    return any(".q_norm." in name for name in file.tensors)


def llama_reader(file: WeightFile) -> Callable[[WeightFile, TargetConfig, torch.dtype], TargetModel] | None:
    """What reads a file; None where it is of none of these models."""
    if janus.is_janus(file.tensors):
        return read_janus
    if is_chameleon(file) or chameleon.is_meta(file.tensors):
        return read_chameleon
    queries, keys = (file.tensors.get(f"model.layers.0.self_attn.{part}_proj.weight", ()) for part in "qk")
    return read_emu3 if len(keys) < len(queries) else None


def read_chameleon(file: WeightFile, expected: TargetConfig, dtype: torch.dtype) -> TargetModel:
    """Reads Anole or Lumina-mGPT in Hugging Face's layout or in Meta's, in evaluation mode; the options of the
    transformer are the family's, sizes and the null prompt the expected ones.

    Raises:
        ValueError: the file lacks a tensor, has other sizes than expected, or captions are expected instead of ids.
    """
    if is_meta := chameleon.is_meta(file.tensors):
        file.tensors = chameleon.hugging_face_names(file.tensors)
    tensors = {name: value for name, value in file.tensors.items() if not name.startswith("model.vqmodel.")}
    _require(file, "lm_head.weight", "model.embed_tokens.weight")
    tensors["head.weight"] = token_rows(tensors.pop("lm_head.weight"), expected)
    tensors["codes.weight"] = token_rows(tensors["model.embed_tokens.weight"], expected)
    return _fill(file, replace(expected, has_qk_norm=True), tensors, "model.", dtype, is_paired=is_meta)


def read_janus(file: WeightFile, expected: TargetConfig, dtype: torch.dtype) -> TargetModel:
    """Reads Janus-Pro; arguments and errors as of `read_chameleon`."""
    file = replace(file, tensors=janus.official_names(file.tensors))
    _require(file, *janus.REQUIRED)
    config = replace(expected, has_mlp_head=True, norm_eps=janus.NORM_EPS)
    return _fill(file, config, janus.target_tensors(file.tensors), janus.PREFIX, dtype)


def read_emu3(file: WeightFile, expected: TargetConfig, dtype: torch.dtype) -> TargetModel:
    """Reads Emu3-Gen, whose codes are the last ids; arguments and errors as of `read_chameleon`."""
    _require(file, "lm_head.weight", "model.embed_tokens.weight")
    tensors = dict(file.tensors)
    first = len(tensors["model.embed_tokens.weight"]) - expected.num_codes
    tensors["head.weight"] = token_rows(tensors.pop("lm_head.weight"), expected, first)
    tensors["codes.weight"] = token_rows(tensors["model.embed_tokens.weight"], expected, first)
    num_kv_heads = len(tensors["model.layers.0.self_attn.k_proj.weight"]) // expected.head_dim
    return _fill(file, replace(expected, num_kv_heads=num_kv_heads), tensors, "model.", dtype)


def token_rows(table: torch.Tensor, config: TargetConfig | DraftConfig, first: int = FIRST_CODE) -> torch.Tensor:
    """The rows of a table of the whole vocabulary that are drawn: the codes from the row `first` on, then what ends a
    line.
    """
    if config.line_end is None:
        return table[first : first + config.vocab_size]
    return torch.cat([table[first : first + config.vocab_size - 1], table[config.line_end :][:1]])


def _require(file: WeightFile, *names: str) -> None:
    for name in names:
        if name not in file.tensors:
            raise ValueError(f"{file.path} lacks the tensor {name}; fetch it again, or choose another checkpoint")


def _fill(
    file: WeightFile,
    config: TargetConfig,
    tensors: dict[str, torch.Tensor],
    prefix: str,
    dtype: torch.dtype,
    *,
    is_paired: bool = False,
) -> TargetModel:
    """The model of some tensors; `is_paired`: see `pair_neighbours`, which they do not need."""
    settings = file.settings or {}
    for part in ("language_config", "text_config"):  # Janus' has those of its parts below each other
        settings = settings.get(part, settings)
    settings = {**settings, **(settings.get("rope_parameters") or {})}  # where newer transformers keep rope_theta
    found = settings.get("num_attention_heads", config.num_heads)
    check_equal(file.settings_path, "num_attention_heads", config.num_heads, found, "target.num_heads")
    if not config.null_ids:
        check_equal(file.path, "what it draws from", "captions", "ids of tokens", "text.encoder")
    _require(file, first := f"{prefix}layers.0.mlp.gate_proj.weight")
    config = replace(
        config,
        ffn_width=len(tensors[first]),
        rope="1d",
        rope_base=settings.get("rope_theta", config.rope_base),
        norm_eps=settings.get("rms_norm_eps", config.norm_eps),
        num_prompt_ids=len(tensors[f"{prefix}embed_tokens.weight"]),
    )
    model = empty_model(TargetModel, config, dtype)
    own = model.state_dict()
    places = {
        f"{prefix}embed_tokens.weight": own["prompt_embedding.weight"],
        f"{prefix}norm.weight": own["final_norm.weight"],
        "codes.weight": own["token_embedding.weight"],
        **{name: value for name, value in own.items() if name.startswith("head")},
    }
    for index, layer in enumerate(model.layers):
        places |= layer_places(layer, f"{prefix}layers.{index}", LLAMA_LAYER)
    copy_tensors(expand_norms(tensors, places), places, file.path)
    if not is_paired:
        pair_neighbours(places, config.head_dim)
    return model.eval()


def expand_norms(tensors: Mapping[str, torch.Tensor], places: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A file's tensors by name, with the norms of queries and keys that have one row for all heads, as Lumina-mGPT's,
    given to each; `places` says how many there are.
    """
    found = dict(tensors)
    for name in found.keys() & places.keys():
        if _NORM.search(name) and found[name].shape == (1, *places[name].shape[1:]):
            found[name] = found[name].expand(places[name].shape)
    return found


def pair_neighbours(places: Mapping[str, torch.Tensor], head_dim: int) -> None:
    """Puts the channels of queries and keys that are turned together side by side, in place, in weights by published
    name: published layouts have them half a head apart.
    """
    for name, place in places.items():
        if _NORM.search(name) or _PROJECTION.search(name):
            channels = place.reshape(-1, 2, head_dim // 2, 1 if _NORM.search(name) else place.shape[1])
            place.copy_(channels.transpose(1, 2).reshape(place.shape))
