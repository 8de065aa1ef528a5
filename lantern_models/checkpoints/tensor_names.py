"""Names of tensors in published files, and their mapping to the parameters of Lantern's models.

Where a parameter holds several published tensors, stacked along the first axis, a name is mapped to a slice of the
parameter, a view. Copying a tensor to each view fills the model.

Source: key lists of FoundationVision/LlamaGen@ce98ec4, jadohu/LANTERN@3a56e45, GAIR/Anole-7b-v0.1,
Alpha-VLLM/Lumina-mGPT-7B-768, deepseek-ai/Janus-Pro-1B and -7B, BAAI/Emu3-Gen and Emu3-VisionTokenizer;
facebookresearch/chameleon, chameleon/inference/vqgan.py; transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from lantern.models.transformer import Layer

FIRST_CODE = 4  # id of code 0 in Chameleon's vocabulary
# The weights of a layer: Lantern's name of each, and the names of the published weights that are stacked in it along
# the first axis. ORIGINAL_LAYER has LlamaGen's names, LLAMA_LAYER those of transformers' Llama.
ORIGINAL_LAYER = {
    "qkv": ("attention.wqkv",),
    "attention_out": ("attention.wo",),
    "gate_up": ("feed_forward.w1", "feed_forward.w3"),
    "down": ("feed_forward.w2",),
    "attention_norm": ("attention_norm",),
    "ffn_norm": ("ffn_norm",),
}
LLAMA_LAYER = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "qk_norm": ("self_attn.q_norm", "self_attn.k_norm"),
    "attention_out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
    "attention_norm": ("input_layernorm",),
    "ffn_norm": ("post_attention_layernorm",),
}

# Patterns in Meta's names for Chameleon's tensors, and replacements. Applied in order, they give Hugging Face's names.
META_CHAMELEON = {
    r"^(layers|norm)\.": r"model.\1.",
    r"^tok_embeddings\.": "model.embed_tokens.",
    r"^output\.": "lm_head.",
    r"\.attention_norm\.": ".input_layernorm.",
    r"\.ffn_norm\.": ".post_attention_layernorm.",
    r"\.attention\.w([qkvo])\.": r".self_attn.\1_proj.",
    r"\.attention\.([qk])_normalization\.": r".self_attn.\1_norm.",
    r"\.feed_forward\.w1\.": ".mlp.gate_proj.",
    r"\.feed_forward\.w2\.": ".mlp.down_proj.",
    r"\.feed_forward\.w3\.": ".mlp.up_proj.",
}


def vq16_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename the tensors of Chameleon's or Janus's image tokenizer to the names in VQ-16, LlamaGen's image tokenizer.

    Tensors of the training losses are dropped.
    """
    levels = {found[1] for name in tensors if (found := re.match(r"encoder\.down\.(\d+)\.", name))}
    # VQ-16 and Janus number the decoder's levels from the lowest resolution, Chameleon from the highest. The
    # highest resolution has no upsampling: level 0 has one in VQ-16 and Janus only. With one level, both agree.
    is_upward = "decoder.up.0.upsample.conv.weight" in tensors
    numbers = {level: int(level) if is_upward else len(levels) - 1 - int(level) for level in levels}
    names = {
        **{rf"^decoder\.up\.{level}\.": f"decoder.conv_blocks.{number}." for level, number in numbers.items()},
        r"^encoder\.down\.": "encoder.conv_blocks.",
        r"(conv_blocks\.\d+)\.block\.": r"\1.res.",
        r"\.mid\.block_1\.": ".mid.0.",
        r"\.mid\.attn_1\.": ".mid.1.",
        r"\.mid\.block_2\.": ".mid.2.",
    }
    return rename({name: value for name, value in tensors.items() if not name.startswith("loss.")}, names)


def rename(tensors: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Replace the regular expressions `names` in the names of all tensors, in order."""
    old_names: dict[str, str] = {}  # by new name
    for old in tensors:
        new = old
        for pattern, name in names.items():
            new = re.sub(pattern, name, new)
        if new in old_names:
            raise ValueError(f"the tensors {old_names[new]} and {old} are both {new}; remove one from the file")
        old_names[new] = old
    return {new: tensors[old] for new, old in old_names.items()}


def map_layer_parameters(layer: Layer, prefix: str, names: Mapping[str, tuple[str, ...]]) -> dict[str, torch.Tensor]:
    """Return views of a layer's parameters by published name.

    prefix is the name of the layer in the published file, such as "layers.0". names is one of the dicts above.
    """
    parameters: dict[str, torch.Tensor] = {}
    for name, weight in layer.state_dict().items():
        stem, _, kind = name.rpartition(".")
        parts = names[stem]
        sizes = [len(weight) // len(parts)] * len(parts)
        # Keys and values may have fewer heads than queries.
        if stem == "qk_norm":
            sizes = [layer.num_heads, layer.num_kv_heads]
        elif stem == "qkv" and len(parts) == 3:
            kv_rows = layer.num_kv_heads * layer.head_dim
            sizes = [len(weight) - 2 * kv_rows, kv_rows, kv_rows]
        parameters |= zip((f"{prefix}.{part}.{kind}" for part in parts), weight.split(sizes), strict=True)
    return parameters


def expand_norms(tensors: Mapping[str, torch.Tensor], head_dim: int, num_heads: int, num_kv_heads: int) -> dict:
    """Return all tensors, with norms of queries and keys expanded to one row of weights per head, (heads, head_dim).

    Norms with one row for all heads, as in Lumina-mGPT, are expanded, others kept. num_kv_heads 0 means num_heads.
    """
    found = dict(tensors)
    for name, value in tensors.items():
        if (part := re.search(r"\.([qk])_norm\.", name)) and value.numel() == head_dim:
            found[name] = value.view(1, head_dim).expand(num_heads if part[1] == "q" else num_kv_heads or num_heads, -1)
    return found
