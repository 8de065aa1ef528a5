"""Janus-Pro's checkpoints, in its authors' layout or in transformers': what draws of a model that also reads images.

Its image tokenizer is VQ-16 behind a prefix; `lantern.checkpoints.llamagen.read_vq16` reads it.

Source: key lists of deepseek-ai/Janus-Pro-1B and -7B; modelling code of deepseek-ai/Janus@1daa72f and transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F

PREFIX = "language_model.model."  # of the transformer
NORM_EPS = 1e-6  # where config.json does not say, as transformers' Llama has it
_TOKENIZER = "gen_vision_model."
# Names of transformers' layout, and the authors' in their place; those of the image tokenizer stand last.
_RENAMED = {
    r"model\.language_model\.": PREFIX,
    r"model\.generation_embeddings\.": "gen_embed.",
    r"model\.generation_aligner\.fc1\.": "gen_aligner.layers.0.",
    r"model\.generation_aligner\.hidden_layers\.0\.": "gen_aligner.layers.2.",
    r"model\.generation_head\.proj_out\.": "gen_head.output_mlp_projector.",
    r"model\.generation_head\.": "gen_head.",
    r"model\.vqmodel\.": _TOKENIZER,
    rf"({_TOKENIZER}.*)\.(?:down|up)\.(\d+)\.": r"\1.conv_blocks.\2.",
    rf"({_TOKENIZER}.*)\.block\.": r"\1.res.",
    rf"({_TOKENIZER}.*)\.mid\.block_1\.": r"\1.mid.0.",
    rf"({_TOKENIZER}.*)\.mid\.attn_1\.": r"\1.mid.1.",
    rf"({_TOKENIZER}.*)\.mid\.block_2\.": r"\1.mid.2.",
}
_ALIGNER = [f"gen_aligner.layers.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
_HEAD = {  # the authors' names, and ours
    f"gen_head.{theirs}.{kind}": f"{own}.{kind}"
    for theirs, own in {"output_mlp_projector": "head_in", "vision_head": "head"}.items()
    for kind in ("weight", "bias")
}
REQUIRED = ("gen_embed.weight", f"{PREFIX}embed_tokens.weight", *_ALIGNER, *_HEAD)


def is_janus(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Tells whether tensors by name are Janus', in either layout."""
    return any(name in tensors for name in ("gen_head.vision_head.weight", "model.generation_head.vision_head.weight"))


def official_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Janus' tensors by the authors' names, whichever layout they have."""
    found = dict(tensors)
    if not any(name.startswith("gen_head.") for name in tensors):
        for pattern, name in _RENAMED.items():
            found = {re.sub(f"^{pattern}", name, key): value for key, value in found.items()}
    return found


def target_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of Janus' tensors, by the authors' names, that draw: the transformer's, the head's by our names, and
    codes.weight, (codes, dim) float32, what the transformer reads of a code: two layers over its embedding, the same
    in every pass.
    """
    found = {name: value for name, value in tensors.items() if name.startswith(PREFIX)}
    weight, bias, last_weight, last_bias = (tensors[name].float() for name in _ALIGNER)
    hidden = F.gelu(F.linear(tensors["gen_embed.weight"].float(), weight, bias))
    found["codes.weight"] = F.linear(hidden, last_weight, last_bias)
    return found | {own: tensors[theirs] for theirs, own in _HEAD.items()}


def image_tokenizer(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of Janus' image tokenizer by VQ-16's names."""
    found = official_names(tensors)
    return {name.removeprefix(_TOKENIZER): value for name, value in found.items() if name.startswith(_TOKENIZER)}
