"""Tiny weights of further model families, made anew by the recipe of the numbers in tests/data that they gave."""

from __future__ import annotations

import re
import zlib

import numpy as np
import torch
from safetensors.torch import load_file

from conftest import DATA

LLAMA = DATA / "llama"


def draw_normal(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Normal numbers of a published name, float64."""
    key = (zlib.crc32(name.encode()) ^ (seed * 2654435761)) & 0xFFFFFFFF
    return torch.from_numpy(np.random.RandomState(key).standard_normal(shape))


def draw(name: str, shape: tuple[int, ...], seed: int, gain: float = 0.8) -> torch.Tensor:
    """The weight of a published name: norms are near 1, embeddings unit normal, a head's rows 3 long, others `gain`."""
    normal = draw_normal(name, shape, seed)
    if len(shape) == 1:
        return (1 + 0.1 * normal).float()
    if "embed" in name:
        return normal.float()
    scale = 3 if name in ("output.weight", "lm_head.weight") else gain
    return (scale * normal / shape[1] ** 0.5).float()


def draw_c2i(ffn_hidden: int = 192) -> dict[str, torch.Tensor]:
    """LlamaGen for ten classes and 64 codes, of width 64 and depth 3, by the names of its original layout."""
    layer = {
        "attention.wqkv": (192, 64),
        "attention.wo": (64, 64),
        "feed_forward.w1": (ffn_hidden, 64),
        "feed_forward.w3": (ffn_hidden, 64),
        "feed_forward.w2": (64, ffn_hidden),
        "attention_norm": (64,),
        "ffn_norm": (64,),
    }
    shapes = {"cls_embedding.embedding_table": (11, 64), "tok_embeddings": (64, 64), "norm": (64,), "output": (64, 64)}
    shapes |= {f"layers.{number}.{name}": shape for number in range(3) for name, shape in layer.items()}
    return {f"{name}.weight": draw(f"{name}.weight", shape, seed=1234) for name, shape in shapes.items()}


def draw_llama(
    prefix: str, vocabulary: int, gain: float, kv_dim: int = 64, ffn_hidden: int = 176
) -> dict[str, torch.Tensor]:
    """A language model of width 64 and depth 3 by Hugging Face's names, without its head."""
    layer = {
        "input_layernorm": (64,),
        "post_attention_layernorm": (64,),
        **{f"self_attn.{name}_proj": (64, 64) for name in "qo"},
        **{f"self_attn.{name}_proj": (kv_dim, 64) for name in "kv"},
        **{f"mlp.{name}_proj": (ffn_hidden, 64) for name in ("gate", "up")},
        "mlp.down_proj": (64, ffn_hidden),
    }
    shapes = {f"{prefix}embed_tokens": (vocabulary, 64), f"{prefix}norm": (64,)}
    shapes |= {f"{prefix}layers.{number}.{name}": shape for number in range(3) for name, shape in layer.items()}
    return {f"{name}.weight": draw(f"{name}.weight", shape, seed=1234, gain=gain) for name, shape in shapes.items()}


def draw_janus() -> dict[str, torch.Tensor]:
    """Janus-Pro for 64 codes, by its official names."""
    shapes = {
        "gen_embed": (64, 8),
        "gen_aligner.layers.0": (64, 8),
        "gen_aligner.layers.2": (64, 64),
        "gen_head.output_mlp_projector": (64, 64),
        "gen_head.vision_head": (64, 64),
        "language_model.lm_head": (96, 64),
    }
    gains = {"gen_aligner.layers.2": 1.8, "gen_head.vision_head": 3.0, "language_model.lm_head": 3.0}
    state = draw_llama("language_model.model.", 96, gain=0.9)
    for name, shape in shapes.items():
        state[f"{name}.weight"] = draw(f"{name}.weight", shape, seed=1234, gain=gains.get(name, 0.9))
        if name.startswith(("gen_aligner", "gen_head")):
            state[f"{name}.bias"] = draw(f"{name}.bias", (64,), seed=1234) - 1
    return state


def draw_anole() -> dict[str, torch.Tensor]:
    """Anole for 64 codes and 160 ids, by Hugging Face's names."""
    state = draw_llama("model.", 160, gain=0.8) | {"lm_head.weight": draw("lm_head.weight", (160, 64), 1234)}
    stored = load_file(LLAMA / "target_io.safetensors")
    norms = {name.removeprefix("anole."): value for name, value in stored.items() if "_norm." in name}
    return state | norms | {"model.vqmodel.encoder.conv_in.weight": torch.zeros(1)}


def anole_drafter() -> dict[str, torch.Tensor]:
    """The drafter of `draw_anole`, by the LANTERN authors' names; its config.json is anole_drafter.json."""
    table = draw_anole()["model.embed_tokens.weight"]  # a frozen copy
    return load_file(LLAMA / "anole_drafter.safetensors") | {"embed_tokens.weight": table}


def one_row_of_norms(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights as Lumina-mGPT has them: norms of queries and keys have one row for all heads."""
    norms = {name: value[:1].clone() for name, value in state.items() if re.search("[.][qk]_norm[.]", name)}
    return {name: value.contiguous() for name, value in (state | norms).items() if "vqmodel" not in name}


def as_meta(state: dict[str, torch.Tensor], head_dim: int = 16) -> dict[str, torch.Tensor]:
    """Chameleon's tensors by Meta's names: neighbours are turned together, and norms of heads are one row."""
    names = {
        "model.embed_tokens": "tok_embeddings",
        "lm_head": "output",
        "model.": "",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        **{f"self_attn.{part}_norm": f"attention.{part}_normalization" for part in "qk"},
        **{f"self_attn.{part}_proj": f"attention.w{part}" for part in "qkvo"},
        **{f"mlp.{part}_proj": f"feed_forward.w{number}" for number, part in ((1, "gate"), (2, "down"), (3, "up"))},
    }
    order = torch.arange(head_dim).view(2, -1).T.flatten()
    found = {}
    for name, tensor in state.items():
        if "vqmodel" in name:
            continue
        if ".q_norm" in name or ".k_norm" in name:
            tensor = tensor[0, order]
        elif ".q_proj" in name or ".k_proj" in name:
            tensor = tensor.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1)
        for theirs, meta in names.items():
            name = name.replace(theirs, meta)
        found[name] = tensor.contiguous()
    return found


def chameleon_name(name: str, last: int) -> str:
    """What Chameleon's image tokenizer, whose lowest level is `last`, calls a tensor of VQ-16."""
    parts = ("block_1", "attn_1", "block_2")
    name = re.sub(r"mid\.(\d)", lambda found: f"mid.{parts[int(found[1])]}", name).replace(".res.", ".block.")
    name = name.replace("encoder.conv_blocks.", "encoder.down.")
    return re.sub(r"decoder\.conv_blocks\.(\d)", lambda found: f"decoder.up.{last - int(found[1])}", name)


def draw_emu3_tokenizer(multipliers: tuple[int, ...] = (1, 2)) -> dict[str, torch.Tensor]:
    """Emu3's image tokenizer for 64 codes, of 32 channels, by its published names, in half precision."""
    from lantern.models.emu3 import Emu3Tokenizer, Emu3TokenizerConfig

    names = {r"(down|up)_block\.\1\.": r"\1.", r"middle_block\.attn_norm\.": "mid.attn_1.norm.", "middle_block": "mid"}
    names |= {r"attn_norms\.(\d+)\.": r"attn.\1.norm.", "out_proj": "proj_out", r"\.([qkv])_proj\.": r".\1."}
    state = {}
    config = Emu3TokenizerConfig(4, 64, 4, 32, multipliers, 1, (len(multipliers) - 1,))
    for name, tensor in Emu3Tokenizer(config).vqvae.state_dict().items():
        for pattern, published in names.items():
            name = re.sub(pattern, published, name)
        shape = (*tensor.shape, 1, 1) if tensor.dim() == 2 and "attn" in name else tuple(tensor.shape)
        state[name] = tensor.half() if "running" in name or "tracked" in name else _draw_of_tokenizer(name, shape)
    return state


def _draw_of_tokenizer(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    normal = draw_normal(name, shape, seed=1234)
    if len(shape) == 1:
        normal = 1 + 0.1 * normal if "norm" in name and name.endswith("weight") else 0.05 * normal
    elif "embed" not in name:
        gain = 3.0 if ".time_" in name else 1.5 if name.startswith("quant_conv") else 1.0
        normal = normal * (gain / np.prod(shape[1:]) ** 0.5)
    return normal.float().half()
