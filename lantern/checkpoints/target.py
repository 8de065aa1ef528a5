"""Published targets as our models: LlamaGen's for captions and classes in its original layout or in the LANTERN
authors' Hugging Face layout, Chameleon's (Anole, Lumina-mGPT), Janus-Pro's and Emu3's.

A file is compared with what the config says before it becomes a model. Of language models the table and the head are
cut to the image codes, which are all that is drawn; the prompt's table keeps every id.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from lantern.checkpoints.files import WeightFile, check_equal, find_weights, read_weights
from lantern.checkpoints.names import LLAMA_LAYER, META_CHAMELEON, ORIGINAL_LAYER, layer_places, rename
from lantern.checkpoints.native import Model, copy_tensors, empty_model, load_model, read_metadata
from lantern.models.config import LLAMAGEN_SIZES, DraftConfig, TargetConfig
from lantern.models.target import TargetModel

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
FIRST_CODE = 4  # id of code 0 in Chameleon's vocabulary
_CLASSES = "cls_embedding.embedding_table.weight"  # of a target that reads classes, the null class behind the others
_NULL_CAPTION_ROWS = 120  # of LlamaGen's, whatever the model's number of caption rows
JANUS_HEAD = "gen_head.vision_head.weight"  # tells Janus' files
_JANUS_ALIGNER = [f"gen_aligner.layers.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
_JANUS_HEAD = {  # the authors' names, and ours
    f"gen_head.{theirs}.{kind}": f"{own}.{kind}"
    for theirs, own in {"output_mlp_projector": "head_in", "vision_head": "head"}.items()
    for kind in ("weight", "bias")
}

log = logging.getLogger(__name__)


def read_target(path: Path, expected: TargetConfig, dtype: torch.dtype = torch.float32) -> TargetModel:
    """Reads a target of whatever family and layout its tensors tell, or in our own, in evaluation mode, all weights but
    `TargetModel.wide` of `dtype`. What `expected` cannot know (eps, base of the rotary table, feed-forward width) is
    read from the file or from its config.json.

    Raises:
        FileNotFoundError: a missing file; names it.
        ValueError: the file is damaged, holds another model, or has other sizes than expected.
    """
    file = find_weights(path)
    if read_metadata(file) is not None:
        return load_own(file, TargetModel, expected, dtype)
    weights = read_weights(file)
    if JANUS_HEAD in weights.tensors:
        return _read_janus(weights, expected, dtype)
    if is_chameleon(weights) or "layers.0.attention.q_normalization.weight" in weights.tensors:
        return _read_chameleon(weights, expected, dtype)
    queries, keys = (weights.tensors.get(f"model.layers.0.self_attn.{part}_proj.weight", ()) for part in "qk")
    if len(keys) < len(queries):
        return _read_emu3(weights, expected, dtype)
    return _read_llamagen(weights, expected, dtype)


def load_own(file: Path, cls: type[Model], target: TargetConfig, dtype: torch.dtype) -> Model:
    """Reads a target or a drafter in our own layout; a ValueError where its sizes are not the target's."""
    model = load_model(file, cls, dtype)
    for name, (config_key, _) in {**_CONFIG_KEYS, "num_prompt_ids": ("text.num_classes", "num_classes")}.items():
        if hasattr(model.config, name):
            check_equal(file, name, getattr(target, name), getattr(model.config, name), config_key)
    return model


def _read_llamagen(weights: WeightFile, expected: TargetConfig, dtype: torch.dtype) -> TargetModel:
    names, config = weights.tensors, expected
    if is_hugging_face := "lm_head.weight" in names or any(name.startswith("model.") for name in names):
        config = _read_config(weights, expected)
    else:
        _check_original(weights, expected)
    if is_hugging_face or "cls_token_num" in weights.args:  # longer ones are cut where the file says their length
        for name in [name for name in names if name.endswith("uncond_embedding")]:
            if len(names[name]) == _NULL_CAPTION_ROWS:
                names[name] = names[name][: config.num_text_tokens]
    model = empty_model(TargetModel, config, dtype)
    copy_tensors(names, target_places(model, is_hugging_face), weights.path)
    return model.eval()


def target_places(model: TargetModel, is_hugging_face: bool) -> dict[str, torch.Tensor]:
    """Where each tensor of a LlamaGen target goes: part of a model's weights by published name."""
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


def _read_config(weights: WeightFile, expected: TargetConfig) -> TargetConfig:
    """Sizes that config.json gives, compared with the expected ones."""
    if (input_type := weights.setting("input_type", str)) != "t2i":
        raise ValueError(
            f"{weights.settings_path}: input_type should be t2i (a target that reads captions), found {input_type}"
        )
    for name, (config_key, key) in _CONFIG_KEYS.items():
        wanted = expected.grid**2 if name == "grid" else getattr(expected, name)
        check_equal(weights.settings_path, key, wanted, weights.setting(key), config_key)
    hidden = weights.setting("intermediate_size")
    return replace(
        expected,
        ffn_width=0 if hidden == expected.ffn_hidden else hidden,
        norm_eps=weights.setting("rms_norm_eps", float),
        rope_base=weights.setting("rope_base", float, expected.rope_base),
    )


def _check_original(weights: WeightFile, expected: TargetConfig) -> None:
    """Compares what an original file tells beside its tensors with the expected: models for captions or classes, of
    stage 1 (256 pixels) or 2 (512), and of any number of heads have tensors of the same names and shapes.
    """
    wanted, found = ("classes" if ids else "captions" for ids in (expected.num_prompt_ids, _CLASSES in weights.tensors))
    check_equal(weights.path, "what it draws from", wanted, found, "text.encoder")
    args, pixels = weights.args, 16 * expected.grid
    if (found := args.get("cls_token_num")) is not None:
        check_equal(weights.path, "args.cls_token_num", expected.num_text_tokens, found, "text.max_tokens")
    named = re.fullmatch(r"[ct]2i_.*_(256|384|512)\.pth?", weights.path.name)
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
    sizes = {(size["dim"], size["num_layers"]): (name, size["num_heads"]) for name, size in LLAMAGEN_SIZES.items()}
    name, heads = sizes.get((expected.dim, expected.num_layers), (None, expected.num_heads))
    if heads != expected.num_heads:
        raise ValueError(
            f"{weights.path}: num_heads should be {heads}, which LlamaGen-{name} has, found {expected.num_heads} in "
            f"target.num_heads; set target.size to {name}"
        )


def is_chameleon(weights: WeightFile) -> bool:
    """Whether a file is of Chameleon's kind, target or drafter: queries and keys are normalised."""
    return any(".q_norm." in name for name in weights.tensors)


def _read_chameleon(weights: WeightFile, expected: TargetConfig, dtype: torch.dtype) -> TargetModel:
    """Reads Anole or Lumina-mGPT in Hugging Face's layout or in Meta's."""
    if is_meta := not is_chameleon(weights):
        norms = {name: value[None] for name, value in weights.tensors.items() if "_normalization." in name}
        weights.tensors = rename(weights.tensors | norms, META_CHAMELEON)
    config = replace(expected, has_qk_norm=True)
    return _read_llama(weights, config, dtype, first_code=FIRST_CODE, is_paired=is_meta)


def _read_emu3(weights: WeightFile, expected: TargetConfig, dtype: torch.dtype) -> TargetModel:
    """Reads Emu3-Gen, whose codes are the last ids, and whose keys have fewer heads than queries."""
    weights.require("model.embed_tokens.weight")
    num_kv_heads = len(weights.tensors["model.layers.0.self_attn.k_proj.weight"]) // expected.head_dim
    first = len(weights.tensors["model.embed_tokens.weight"]) - expected.num_codes
    return _read_llama(weights, replace(expected, num_kv_heads=num_kv_heads), dtype, first_code=first)


def _read_llama(
    weights: WeightFile, config: TargetConfig, dtype: torch.dtype, *, first_code: int, is_paired: bool = False
) -> TargetModel:
    """Reads a language model in Hugging Face's layout, whose code 0 has the id `first_code`."""
    weights.require("lm_head.weight", "model.embed_tokens.weight")
    tensors = {name: value for name, value in weights.tensors.items() if not name.startswith("model.vqmodel.")}
    tensors["head.weight"] = token_rows(tensors.pop("lm_head.weight"), config, first_code)
    tensors["codes.weight"] = token_rows(tensors["model.embed_tokens.weight"], config, first_code)
    return _fill(weights, config, tensors, "model.", dtype, is_paired=is_paired)


def _read_janus(weights: WeightFile, expected: TargetConfig, dtype: torch.dtype) -> TargetModel:
    """Reads what draws of Janus-Pro. What its transformer reads of a code, two layers over the code's embedding, is the
    same in every pass, and becomes a table.
    """
    prefix = "language_model.model."
    weights.require("gen_embed.weight", f"{prefix}embed_tokens.weight", *_JANUS_ALIGNER, *_JANUS_HEAD)
    tensors = {name: value for name, value in weights.tensors.items() if name.startswith(prefix)}
    tensors |= {own: weights.tensors[theirs] for theirs, own in _JANUS_HEAD.items()}
    weight, bias, last_weight, last_bias = (weights.tensors[name].float() for name in _JANUS_ALIGNER)
    hidden = F.gelu(F.linear(weights.tensors["gen_embed.weight"].float(), weight, bias))
    tensors["codes.weight"] = F.linear(hidden, last_weight, last_bias)
    # Where config.json does not say its eps, it is that of transformers' Llama.
    return _fill(weights, replace(expected, has_mlp_head=True, norm_eps=1e-6), tensors, prefix, dtype)


def _fill(
    weights: WeightFile,
    config: TargetConfig,
    tensors: dict[str, torch.Tensor],
    prefix: str,
    dtype: torch.dtype,
    *,
    is_paired: bool = False,
) -> TargetModel:
    """The model of a language model's tensors; `is_paired`: they need no `pair_neighbours`."""
    settings = weights.settings or {}
    settings = settings.get("language_config", settings)  # Janus' has those of its parts below each other
    settings = {**settings, **(settings.get("rope_parameters") or {})}  # where newer transformers keep rope_theta
    found = settings.get("num_attention_heads", config.num_heads)
    check_equal(weights.settings_path, "num_attention_heads", config.num_heads, found, "target.num_heads")
    if not config.null_ids:
        check_equal(weights.path, "what it draws from", "captions", "ids of tokens", "text.encoder")
    weights.require(gate := f"{prefix}layers.0.mlp.gate_proj.weight")
    config = replace(
        config,
        ffn_width=len(tensors[gate]),
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
    copy_tensors(expand_norms(tensors, places), places, weights.path)
    if not is_paired:
        pair_neighbours(places, config.head_dim)
    return model.eval()


def token_rows(table: torch.Tensor, config: TargetConfig | DraftConfig, first: int = FIRST_CODE) -> torch.Tensor:
    """The rows of a table of the whole vocabulary that are drawn: the codes from the row `first` on, then what ends a
    line.
    """
    if config.line_end is None:
        return table[first : first + config.vocab_size]
    return torch.cat([table[first : first + config.vocab_size - 1], table[config.line_end :][:1]])


def expand_norms(tensors: Mapping[str, torch.Tensor], places: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A file's tensors by name, with the norms of queries and keys that have one row for all heads, as Lumina-mGPT's,
    given to each; `places` says how many there are.
    """
    found = dict(tensors)
    for name in found.keys() & places.keys():
        if re.search(r"\.[qk]_norm\.", name) and found[name].shape == (1, *places[name].shape[1:]):
            found[name] = found[name].expand(places[name].shape)
    return found


def pair_neighbours(places: Mapping[str, torch.Tensor], head_dim: int) -> None:
    """Puts the channels of queries and keys that are turned together side by side, in place, in weights by published
    name: published layouts have them half a head apart.
    """
    for name, place in places.items():
        if found := re.search(r"\.[qk]_(proj|norm)\.", name):
            channels = place.reshape(-1, 2, head_dim // 2, 1 if found[1] == "norm" else place.shape[1])
            place.copy_(channels.transpose(1, 2).reshape(place.shape))
