"""Tiny random weights of several model families in their published layouts.

The random numbers depend on the published names of the weights only. The stored results in tests/data were made with
the same weights.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from helpers.paths import DATA
from lantern.models.target import TargetConfig, TargetModel
from lantern.models.transformer import Layer
from lantern_models.checkpoints.target import map_target_parameters
from lantern_models.checkpoints.tensor_names import LLAMA_LAYER, map_layer_parameters
from lantern_models.images.emu3 import Emu3Tokenizer, Emu3TokenizerConfig
from lantern_models.images.vq16 import VQ16, VQ16Config

if TYPE_CHECKING:
    from helpers.hub_server import HubServer

LLAMA = DATA / "llama"
SPECIALS = {  # special tokens in the prompts of a family -> their ids in its tiny tokenizer
    "anole": {"<s>": 0, "<reserved08706>": 70, "<racm3:break>": 69},
    # The last two state a side of 768 and of 64 pixels.
    "lumina": {"<s>": 0, "<reserved08706>": 70, "<racm3:break>": 69, "<reserved08824>": 75, "<reserved08802>": 76},
    "janus": {"<｜begin▁of▁sentence｜>": 0, "<begin_of_image>": 7, "<｜▁pad▁｜>": 2, "<|User|>": 8, "<|Assistant|>": 9},
    "emu3": {"<|extra_203|>": 3, "<|image start|>": 4, "<|image token|>": 5},
    "glm_image": {"<sop>": 3, "<eop>": 4, "<bos>": 20},
}


def draw_normal(name: str, shape: tuple[int, ...], seed: int = 1234) -> torch.Tensor:
    """Return standard normal numbers that depend on a published name, the shape and a seed, float64."""
    key = (zlib.crc32(name.encode()) ^ (seed * 2654435761)) & 0xFFFFFFFF
    return torch.from_numpy(np.random.RandomState(key).standard_normal(shape))


def draw(name: str, shape: tuple[int, ...], gain: float = 0.8) -> torch.Tensor:
    """Return the random weight of a published name, float32.

    Norms are near 1. Embeddings are standard normal. The expected length of a matrix row is 3 for heads and `gain` for
    other matrices.
    """
    normal = draw_normal(name, shape)
    if len(shape) == 1:
        return (1 + 0.1 * normal).float()
    if "embed" in name:
        return normal.float()
    scale = 3 if name in ("output.weight", "lm_head.weight") else gain
    return (scale * normal / shape[1] ** 0.5).float()


def draw_all(shapes: Mapping[str, torch.Tensor], gain: float = 0.8) -> dict[str, torch.Tensor]:
    """Return the random weights of all published names.

    Args:
        shapes: published name -> a tensor with the shape of the weight.
        gain: see `draw`.
    """
    return {name: draw(name, tuple(part.shape), gain) for name, part in shapes.items()}


def draw_c2i(ffn_hidden: int = 192) -> dict[str, torch.Tensor]:
    """Return a class-conditional LlamaGen of 10 classes, 64 codes, width 64 and depth 3, under its original names."""
    with torch.device("meta"):
        config = TargetConfig(64, 3, 4, vocab_size=64, num_prompt_ids=11, null_ids=(10,), ffn_width=ffn_hidden)
        return draw_all(map_target_parameters(TargetModel(config), is_hugging_face=False))


def draw_llama(
    prefix: str, vocabulary: int, gain: float, num_kv_heads: int = 4, ffn_hidden: int = 176
) -> dict[str, torch.Tensor]:
    """Return a language model of width 64 and depth 3, without its head, under Hugging Face's names.

    Args:
        prefix: prefix of the names, such as "model.".
        vocabulary: number of ids.
        gain: see `draw`.
        num_kv_heads: number of key/value heads.
        ffn_hidden: width of the feed-forward part.
    """
    with torch.device("meta"):
        shapes = {f"{prefix}embed_tokens.weight": torch.empty(vocabulary, 64), f"{prefix}norm.weight": torch.empty(64)}
        layer = Layer(TargetConfig(64, 3, 4, num_kv_heads=num_kv_heads, ffn_width=ffn_hidden))
        for index in range(3):
            shapes |= map_layer_parameters(layer, f"{prefix}layers.{index}", LLAMA_LAYER)
    return draw_all(shapes, gain)


CHAMELEON_WORDS = {f"IMGIMG{''.join('ABCDEFGHIJ'[int(digit)] for digit in str(i))}Z": 4 + i for i in range(64)}
EMU3_WORDS = {f"<|visual token {i:06d}|>": 48 + i for i in range(64)} | {"<|extra_200|>": 41}


def settings_of(family: str, **text: object) -> bytes:
    """Return the bytes of the config.json of a tiny model: width 64, depth 3 and 64 codes.

    Parts that do not generate images, such as a vision encoder, are as small as possible.

    Args:
        family: "janus" or "emu3"; all other names give Chameleon's.
        text: changes to the sizes of the language model.
    """
    text = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "rope_theta": 10000.0, **text}
    images = {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "attn_resolutions": []}
    if family == "janus":
        head = dict.fromkeys(("image_token_embed_dim", "projection_dim"), text["hidden_size"])
        head |= {"num_embeddings": 64, "embed_dim": 8}
        vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64}
        words = {"vocab_size": 96, "intermediate_size": 176, "num_key_value_heads": 4, "rms_norm_eps": 1e-6}
        parts = {"text_config": {"model_type": "llama", **words, **text}, "vq_config": {**images, **head}}
        parts["vision_config"] = vision
    elif family == "emu3":
        words = {"vocab_size": 112, "intermediate_size": 160, "num_key_value_heads": 2, "rms_norm_eps": 1e-5}
        words |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        images = {"codebook_size": 64, "embed_dim": 4, "hidden_size": 32, **images}
        parts = {"text_config": {**words, **text}, "vq_config": images, "vocabulary_map": EMU3_WORDS | {"<image>": 3}}
    else:
        words = {"vocab_size": 160, "intermediate_size": 176, "num_key_value_heads": 4, "rms_norm_eps": 1e-5}
        images["num_embeddings"] = 64
        parts = {**words, **text, "vq_config": images, "vocabulary_map": CHAMELEON_WORDS | {"<image>": 159}}
    name = {"janus": "Janus", "emu3": "Emu3"}.get(family, "Chameleon")
    return json.dumps({"architectures": [f"{name}ForConditionalGeneration"], **parts}).encode()


def draw_emu3() -> dict[str, torch.Tensor]:
    """Return an Emu3 with 64 codes, 112 ids and fewer key/value heads than heads, under transformers' names."""
    state = draw_llama("model.", 112, gain=0.9, num_kv_heads=2, ffn_hidden=160)
    state["lm_head.weight"] = draw("lm_head.weight", (112, 64))
    return {f"text_model.{name}": value for name, value in state.items()}


def draw_janus() -> dict[str, torch.Tensor]:
    """Return a Janus-Pro with 64 codes under transformers' names.

    The random numbers depend on its official names.
    """
    own = {
        "gen_embed": ("model.generation_embeddings", (64, 8)),
        "gen_aligner.layers.0": ("model.generation_aligner.fc1", (64, 8)),
        "gen_aligner.layers.2": ("model.generation_aligner.hidden_layers.0", (64, 64)),
        "gen_head.output_mlp_projector": ("model.generation_head.proj_out", (64, 64)),
        "gen_head.vision_head": ("model.generation_head.vision_head", (64, 64)),
    }
    gains = {"gen_aligner.layers.2": 1.8, "gen_head.vision_head": 3.0}
    state = {
        f"model.{name.replace('.model.', '.')}": value
        for name, value in draw_llama("language_model.model.", 96, gain=0.9).items()
    }
    for name, (theirs, shape) in own.items():
        state[f"{theirs}.weight"] = draw(f"{name}.weight", shape, gain=gains.get(name, 0.9))
        if name != "gen_embed":
            state[f"{theirs}.bias"] = draw(f"{name}.bias", (64,)) - 1
    return state


def draw_anole() -> dict[str, torch.Tensor]:
    """Return an Anole with 64 codes and 160 ids under Hugging Face's names."""
    state = draw_llama("model.", 160, gain=0.8) | {"lm_head.weight": draw("lm_head.weight", (160, 64))}
    stored = load_file(LLAMA / "target_io.safetensors")
    return state | {name.removeprefix("anole."): value for name, value in stored.items() if "_norm." in name}


def anole_drafter() -> dict[str, torch.Tensor]:
    """Return the draft model of `draw_anole` under the names of LANTERN's authors.

    Its config.json is tests/data/llama/anole_drafter.json.
    """
    table = draw_anole()["model.embed_tokens.weight"]  # a frozen copy
    return load_file(LLAMA / "anole_drafter.safetensors") | {"embed_tokens.weight": table}


def one_row_of_norms(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return Anole's weights in the form of Lumina-mGPT: one norm of queries and keys is shared by all heads."""
    return {name: value[:1].clone() if "_norm." in name and value.dim() > 1 else value for name, value in state.items()}


def as_meta(state: dict[str, torch.Tensor], head_dim: int = 16) -> dict[str, torch.Tensor]:
    """Rename Chameleon's weights to Meta's names.

    Meta's rotary embedding rotates neighbouring channels, so the channels of queries and keys are reordered. Norms of
    heads are stored once for all heads.

    Args:
        state: weights under Hugging Face's names.
        head_dim: channels of a head.
    """
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
    """Translate the name of a VQ-16 weight into the name in Chameleon's image tokenizer.

    Args:
        name: name in `VQ16`.
        last: index of the lowest resolution level.
    """
    parts = ("block_1", "attn_1", "block_2")
    name = re.sub(r"mid\.(\d)", lambda found: f"mid.{parts[int(found[1])]}", name).replace(".res.", ".block.")
    name = name.replace("encoder.conv_blocks.", "encoder.down.")
    return re.sub(r"decoder\.conv_blocks\.(\d)", lambda found: f"decoder.up.{last - int(found[1])}", name)


def janus_name(name: str) -> str:
    """Translate the name of a VQ-16 weight into the name in transformers' Janus.

    The first level of Janus' decoder is the lowest resolution.
    """
    name = re.sub(r"decoder\.conv_blocks\.(\d)", r"decoder.up.\1", name)
    return f"model.vqmodel.{chameleon_name(name, 0)}"


def draw_emu3_tokenizer(multipliers: tuple[int, ...] = (1, 2)) -> dict[str, torch.Tensor]:
    """Return Emu3's image tokenizer with 64 codes and 32 channels, float16, under transformers' names.

    The random numbers depend on its published names.

    Args:
        multipliers: channel multiplier of each resolution level.
    """
    state = {}
    config = Emu3TokenizerConfig(4, 64, 4, 32, multipliers, 1, (len(multipliers) - 1,))
    for name, tensor in Emu3Tokenizer(config).vqvae.state_dict().items():
        published = emu3_name(name)
        shape = (*tensor.shape, 1, 1) if tensor.dim() == 2 and "attn" in published else tuple(tensor.shape)
        gain = 3.0 if ".time_" in published else 1.5 if published.startswith("quant_conv") else 1.0
        is_statistic = "running" in name or "tracked" in name
        drawn = tensor if is_statistic else draw_of_tokenizer(published, shape, gain=gain).view(tensor.shape)
        state[f"vqmodel.{name}"] = drawn.half()
    return state


def emu3_name(name: str) -> str:
    """Translate a weight's name in transformers' Emu3 image tokenizer into the name that Emu3's authors use."""
    names = {r"(down|up)_block\.\1\.": r"\1.", r"middle_block\.attn_norm\.": "mid.attn_1.norm.", "middle_block": "mid"}
    names |= {r"attn_norms\.(\d+)\.": r"attn.\1.norm.", "out_proj": "proj_out", r"\.([qkv])_proj\.": r".\1."}
    for pattern, published in names.items():
        name = re.sub(pattern, published, name)
    return name


def draw_of_tokenizer(name: str, shape: tuple[int, ...], seed: int = 1234, gain: float = 1.0) -> torch.Tensor:
    """Return the random weight of an image tokenizer, float32, from its published name.

    Norms are near 1, codes are standard normal, and biases are small. Other weights map a standard normal input to an
    output with the standard deviation `gain`.
    """
    normal = draw_normal(name, shape, seed)
    if len(shape) == 1:
        return (1 + 0.1 * normal if "norm" in name and name.endswith("weight") else 0.05 * normal).float()
    return (normal if "embed" in name else normal * (gain / np.prod(shape[1:]) ** 0.5)).float()


def tiny_vq16(is_chameleon: bool = False, is_janus: bool = False) -> dict[str, torch.Tensor]:
    """Return random weights of a VQ-16 tokenizer with 64 codes, for images of 64 pixels.

    Args:
        is_chameleon: whether to use the layout and names of Chameleon. The default is LlamaGen's.
        is_janus: whether to use the names of transformers' Janus.
    """
    torch.manual_seed(0)
    options = {"has_attention": not is_chameleon, "is_normalised": not is_chameleon}
    state = VQ16(VQ16Config(4, 64, 8, 32, (1, 1, 1, 1, 1), 1, 32, **options)).state_dict()
    if is_chameleon:
        return {chameleon_name(name, 4): value for name, value in state.items()}
    if is_janus:
        return {janus_name(name): value for name, value in state.items()}
    return state | {"quantize.codebook_used": torch.zeros(65536)}


def save_tokenizer(path: Path, specials: Mapping[str, int], words: Sequence[str], first_word: int = 100) -> Path:
    """Write a tokenizer.json with one token per word.

    Args:
        path: the file.
        specials: ids of special tokens.
        words: words in the order of their ids.
        first_word: id of <unk>. The words have the ids after it.

    Returns:
        `path`.
    """
    vocabulary = {**specials, **{word: first_word + i for i, word in enumerate(["<unk>", *words])}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    tokenizer.save(str(path))
    return path


def pickled(value: object) -> bytes:
    """Return the bytes that torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def publish(hub: HubServer, repositories: dict[str, dict[str, bytes]], captions: list[str]) -> dict[str, dict]:
    """Put repositories and a list of captions on a mock hub.

    Args:
        hub: the mock hub.
        repositories: repository name -> file name -> bytes.
        captions: the captions, which become a plain file.

    Returns:
        The config section `resources` that describes the repositories and the captions.
    """
    url = hub.add("captions.json", json.dumps(captions).encode())
    entries: dict[str, dict] = {"captions": {"url": url, "files": {"captions.json": None}}}
    for name, files in repositories.items():
        commit = hub.add_repository(f"someone/{name}", files)
        entries[name] = {"repo": f"someone/{name}", "revision": commit, "files": dict.fromkeys(files)}
    return entries


def environment_of(hub: HubServer) -> dict[str, str]:
    """Return the environment variables that direct downloads to a mock hub."""
    return {"HF_ENDPOINT": hub.endpoint, "NO_PROXY": "127.0.0.1,localhost"}
