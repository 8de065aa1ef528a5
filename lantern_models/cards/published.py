"""The model cards of the published models, and the files of these models on the Hugging Face hub.

The sampling settings are those that each model's authors use. The draft trees, and the distance "l2" that defines
nearest codes, are the LANTERN authors' choices, here also for models that they do not cover, such as Janus-Pro. A
*family* is a transformers class together with one form of prompts. Its name, such as "janus", is the name of the text
encoder.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from lantern_models.cards.card import HubFiles, ImageSettings, ModelCard, PromptSettings, SamplingSettings
from lantern_models.families import FAMILIES
from lantern_models.sizes import FFN_MULTIPLE, LLAMAGEN_SIZES, shape_of

_LLAMAGEN = ("peizesun/llamagen_t2i", "276f5c5a3d915b922899a03f1912605531574747")
_C2I = "FoundationVision/LlamaGen"


def _unhashed(*names: str) -> dict[str, None]:
    """Return the value of `HubFiles.files` for files whose SHA-256 is not known."""
    return dict.fromkeys(names)


_HUB_FILES = (
    # LlamaGen for captions, in its authors' layout: 3.1 GB each, and its image tokenizer VQ-16, 0.3 GB.
    HubFiles(
        "llamagen_stage1",
        _LLAMAGEN[0],
        {"t2i_XL_stage1_256.pt": "87d94b9b11cd80f44bd69122a4d4ed28304956e0fba07edcafce08c7a2716600"},
        _LLAMAGEN[1],
    ),
    HubFiles(
        "llamagen_stage2",
        _LLAMAGEN[0],
        {"t2i_XL_stage2_512.pt": "7d02d368751c21b61dc3914b0ccba70fc913dafc063dd5b16bc9abf7091f8be1"},
        _LLAMAGEN[1],
    ),
    HubFiles(
        "llamagen_tokenizer",
        _LLAMAGEN[0],
        {"vq_ds16_t2i.pt": "0e21fc1318e2e9ee641a07bdad0e20675e9ec35e6e3eb911d58b5d7a2cd8d4cb"},
        _LLAMAGEN[1],
    ),
    # LlamaGen for ImageNet's classes: 0.4 GB (B), 1.4 (L), 3.1 (XL), 5.6 (XXL), 12.4 (3B).
    *(
        HubFiles(f"llamagen_c2i_{size}_{pixels}", _C2I, _unhashed(f"c2i_{size}_{pixels}.pt"))
        for size, pixels in (("B", 256), ("B", 384), ("L", 256), ("L", 384), ("XL", 384), ("XXL", 384), ("3B", 384))
    ),
    HubFiles("llamagen_c2i_tokenizer", _C2I, _unhashed("vq_ds16_c2i.pt")),
    # The LANTERN authors' copies of LlamaGen in Hugging Face's layout, and their draft models.
    HubFiles("lantern_stage1", "jadohu/LlamaGen-T2I", _unhashed("config.json", "model.safetensors")),
    HubFiles("lantern_stage2", "jadohu/LlamaGen-T2I-2", _unhashed("config.json", "model.safetensors")),
    HubFiles("lantern_drafter_stage1", "jadohu/llamagen_drafter", _unhashed("config.json", "pytorch_model.bin")),
    HubFiles("lantern_drafter_stage2", "jadohu/llamagen2_drafter", _unhashed("config.json", "pytorch_model.bin")),
    HubFiles("anole_drafter", "jadohu/anole_drafter", _unhashed("config.json", "pytorch_model.bin")),
    HubFiles(
        "lumina_mgpt_drafter", "sihwanpark/LANTERN-Lumina-mGPT-7B-768", _unhashed("config.json", "model.safetensors")
    ),
    # LlamaGen's text encoder, 11.4 GB.
    HubFiles(
        "flan_t5_xl",
        "google/flan-t5-xl",
        _unhashed(
            "config.json",
            "model.safetensors.index.json",
            "special_tokens_map.json",
            "spiece.model",
            "tokenizer.json",
            "tokenizer_config.json",
        ),
        "7d6315df2c2fb742f0f5b556879d730926ca9001",
    ),
    # Anole, 14 GB, in Hugging Face's layout or in its authors' (Meta's), and Chameleon's two tokenizers, 0.3 GB.
    HubFiles("anole", "leloy/Anole-7b-v0.1-hf", _unhashed("config.json", "model.safetensors.index.json")),
    HubFiles("anole_meta", "GAIR/Anole-7b-v0.1", _unhashed("models/7b/consolidated.pth")),
    HubFiles("chameleon_image_tokenizer", "GAIR/Anole-7b-v0.1", _unhashed("tokenizer/vqgan.ckpt")),
    HubFiles("chameleon_text_tokenizer", "GAIR/Anole-7b-v0.1", _unhashed("tokenizer/text_tokenizer.json")),
    HubFiles("lumina_mgpt", "Alpha-VLLM/Lumina-mGPT-7B-768", _unhashed("config.json", "model.safetensors.index.json")),
    # Models of transformers, with their tokenizers: 4, 15 and 35 GB.
    HubFiles(
        "janus_pro_1b",
        "deepseek-community/Janus-Pro-1B",
        _unhashed("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"),
    ),
    HubFiles(
        "janus_pro_7b",
        "deepseek-community/Janus-Pro-7B",
        _unhashed("config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json"),
    ),
    HubFiles(
        "emu3",
        "BAAI/Emu3-Gen-hf",
        _unhashed("config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json"),
    ),
    # The part of GLM-Image that generates codes, 21 GB. Another 13 GB turn codes into pixels, see docs/models.md.
    HubFiles(
        "glm_image",
        "zai-org/GLM-Image",
        _unhashed(
            "vision_language_encoder/config.json",
            "vision_language_encoder/generation_config.json",
            "vision_language_encoder/model.safetensors.index.json",
            "processor/tokenizer.json",
            "processor/tokenizer_config.json",
        ),
    ),
)
# A key is also the name of the folder in `resources` into which the workflow downloads the files.
HUB_FILES: dict[str, HubFiles] = {files.name: files for files in _HUB_FILES}

_TREES = {"static": "naive_extend_57", "dynamic": {"num_nodes": 58, "depth": 4, "top_k": 10}}


def _files(**names: str) -> dict[str, HubFiles]:
    return {part: HUB_FILES[name] for part, name in names.items()}


def _llamagen_target(size: str) -> dict[str, int]:
    return {**LLAMAGEN_SIZES[size], "ffn_multiple": FFN_MULTIPLE}


def _llamagen_stage(stage: int, name: str, pixels: int) -> ModelCard:
    """Return the model card of LlamaGen-XL for captions: stage 1 has images of 256 pixels, stage 2 of 512."""
    return ModelCard(
        name,
        PromptSettings("t5", max_tokens=120, caption_dim=2048),
        ImageSettings(pixels, pixels // 16, codebook_size=16384, code_dim=8),  # a code has 16 pixels a side
        _llamagen_target("XL"),
        {"cfg_scale": 7.5, "top_k": 1000},
        _TREES,
        "l2",
        _files(
            target=f"llamagen_stage{stage}",
            drafter=f"lantern_drafter_stage{stage}",
            tokenizer="llamagen_tokenizer",
            text="flan_t5_xl",
        ),
        "MIT",
    )


def _llamagen_c2i(size: str, pixels: int, cfg_scale: float) -> ModelCard:
    return ModelCard(
        f"LlamaGen-{size}, classes",
        PromptSettings("classes", num_classes=1000),
        ImageSettings(pixels, pixels // 16, codebook_size=16384, code_dim=8),
        _llamagen_target(size),
        {"cfg_scale": cfg_scale, "top_k": 0},
        _TREES,
        "l2",
        _files(target=f"llamagen_c2i_{size}_{pixels}", tokenizer="llamagen_c2i_tokenizer"),
        "MIT",
    )


def _of_family(
    family: str,
    name: str,
    prompt_tokens: int,
    images: ImageSettings,
    target: Mapping[str, object],
    sampling: SamplingSettings,
    files: dict[str, HubFiles],
    licence: str,
    *,
    trees: Mapping[str, object] | None = None,
    neighbours: str = "l2",
) -> ModelCard:
    # `target` are the fields that differ within a family, which states the others.
    target = {**FAMILIES[family].target, "rope": "1d", **target}
    return ModelCard(
        name, PromptSettings(family, prompt_tokens), images, target, sampling, trees or {}, neighbours, files, licence
    )


def _janus(billions: int, **sizes: int) -> ModelCard:
    name = f"janus_pro_{billions}b"
    return _of_family(
        "janus",
        f"Janus-Pro-{billions}B",
        128,
        ImageSettings(384, grid=24, codebook_size=16384, code_dim=8),
        {**sizes, "num_prompt_ids": 102400},
        {"cfg_scale": 5.0, "top_k": 0},
        _files(target=name, tokenizer=name, text=name),
        "DeepSeek's model agreement",
        trees=_TREES,
    )


def _chameleon(family: str, name: str, prompt_tokens: int, pixels: int, files: str, depth: int) -> ModelCard:
    """Return the model card of a published model based on Chameleon, with Chameleon's image and text tokenizers."""
    return _of_family(
        family,
        name,
        prompt_tokens,
        ImageSettings(pixels, pixels // 16, codebook_size=8192, code_dim=256),
        {"dim": 4096, "num_layers": 32, "num_heads": 32, "ffn_width": 11008, "num_prompt_ids": 65536},
        {"cfg_scale": 3.0, "top_k": 2000},
        _files(
            target=files,
            drafter=f"{files}_drafter",
            tokenizer="chameleon_image_tokenizer",
            text="chameleon_text_tokenizer",
        ),
        "Chameleon's, research only",
        trees={**_TREES, "dynamic": {**_TREES["dynamic"], "depth": depth}},
    )


# A key is also the name of the model for `lantern.load`, and for the key `model` in the workflow's config.
CARDS: dict[str, ModelCard] = {
    "llamagen_stage1": _llamagen_stage(1, "LlamaGen-XL stage I", 256),
    "llamagen_stage2": _llamagen_stage(2, "LlamaGen-XL stage II", 512),
    "llamagen_c2i": _llamagen_c2i("B", 256, 2.0),
    "llamagen_c2i_B_384": _llamagen_c2i("B", 384, 2.0),
    "llamagen_c2i_L_256": _llamagen_c2i("L", 256, 2.0),
    "llamagen_c2i_L_384": _llamagen_c2i("L", 384, 2.0),
    "llamagen_c2i_XL_384": _llamagen_c2i("XL", 384, 1.75),
    "llamagen_c2i_XXL_384": _llamagen_c2i("XXL", 384, 1.75),
    "llamagen_c2i_3B_384": _llamagen_c2i("3B", 384, 1.65),
    "anole-7b": _chameleon("anole", "Anole", 128, 512, "anole", depth=4),
    "lumina-mgpt-7b": _chameleon("lumina", "Lumina-mGPT 7B", 160, 768, "lumina_mgpt", depth=5),
    "janus-pro-1b": _janus(1, dim=2048, num_layers=24, num_heads=16, ffn_width=5632),
    "janus-pro-7b": _janus(7, dim=4096, num_layers=30, num_heads=32, ffn_width=11008),
    "emu3-gen": _of_family(
        "emu3",
        "Emu3-Gen",
        192,
        ImageSettings(720, grid=90, codebook_size=32768, code_dim=4),
        {
            "dim": 4096,
            "num_layers": 32,
            "num_heads": 32,
            "num_kv_heads": 8,
            "ffn_width": 14336,
            "num_prompt_ids": 184622,
        },
        {"cfg_scale": 3.0, "top_k": 2048},
        _files(target="emu3", tokenizer="emu3", text="emu3"),
        "Apache 2.0",
    ),
    # A card states no temperature; the authors' is 0.9. top_k is transformers' default.
    "glm-image": _of_family(
        "glm_image",
        "GLM-Image",
        160,
        ImageSettings(1024, grid=32, codebook_size=16384, code_dim=2048),
        {
            "dim": 4096,
            "num_layers": 40,
            "num_heads": 32,
            "num_kv_heads": 2,
            "ffn_width": 13696,
            "num_prompt_ids": 168064,
        },
        {"cfg_scale": 1.0, "top_k": 50, "top_p": 0.75},
        _files(target="glm_image", tokenizer="glm_image", text="glm_image"),
        "MIT",
        neighbours="l2_normalised",
    ),
}


def card_of_family(family: str) -> ModelCard | None:
    """Return the model card of the first published model of a family, or None if there is no such model."""
    return next((card for card in CARDS.values() if card.prompts.encoder == family), None)


def published_shape(family: str) -> tuple[int, int]:
    """Return the height and width, in codes, of the images that the published models of a family generate.

    Raises:
        ValueError: no model of the family is published.
    """
    card = card_of_family(family)
    if card is None:
        raise ValueError(f"grid is missing: no model of the family {family} is published; pass grid, in codes")
    return shape_of(card.images.grid)
