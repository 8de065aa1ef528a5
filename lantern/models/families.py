"""The families of transformers' models that draw images, a row each: where their parts are, how they are prompted.

A family of one's own is such a row. transformers is imported by whoever has one of its models, never here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lantern.models.adapter import TransformersTarget
from lantern.models.config import OVERSHOOT, TargetConfig


@dataclass(frozen=True)
class Parts:
    """What a target is made of, see `TransformersTarget`; what ends a line, its id, None for nothing."""

    layers: nn.Module
    tokens: torch.Tensor
    head: nn.Module
    is_head_linear: bool = True
    line_end: int | None = None


@dataclass(frozen=True)
class Family:
    """A class of transformers that draws.

    Attributes:
        prompt: name of its prompts' form, as config key text.encoder has it.
        take_apart: a model to its parts.
        grid: tokens of an image's side, as published.
        small_grid: of a smaller image that is drawn before it; 0 for none.
        turns_by_grid: channels are turned by time, row and column.
        draw_pixels: (model, codes (images, grid, grid)) to images in [-1, 1]; None where transformers has no decoder.
        codebook: of a model, (codes, code_dim).
    """

    prompt: str
    take_apart: Callable[[Any], Parts]
    grid: int
    draw_pixels: Callable[[Any, torch.Tensor], torch.Tensor] | None
    codebook: Callable[[Any], torch.Tensor]
    small_grid: int = 0
    turns_by_grid: bool = False


def adapt(model: Any, *, null_prompt: Mapping[str, Any], max_tokens: int, family: Family) -> TransformersTarget:
    """Makes a target of a loaded model of transformers.

    Args:
        model: one of FAMILIES' classes.
        null_prompt: null_ids and null_filler of a `TargetConfig`.
        max_tokens: rows of the longest prompt.
        family: its row.
    """
    parts, text = family.take_apart(model), model.config.get_text_config()
    embedding = model.get_input_embeddings()
    config = TargetConfig(
        dim=text.hidden_size,
        num_layers=text.num_hidden_layers,
        num_heads=text.num_attention_heads,
        num_kv_heads=text.num_key_value_heads,
        ffn_width=text.intermediate_size,
        norm_eps=text.rms_norm_eps,
        vocab_size=len(parts.tokens),
        grid=family.grid,
        small_grid=family.small_grid,
        num_text_tokens=max_tokens,
        num_prompt_ids=embedding.num_embeddings,
        line_end=parts.line_end,
        rope="1d",
        **null_prompt,
    )
    positions = grid_positions(config) if family.turns_by_grid else None
    return TransformersTarget(
        config,
        parts.layers,
        embedding,
        parts.tokens,
        parts.head,
        is_head_linear=parts.is_head_linear,
        positions=positions,
    )


def grid_positions(config: TargetConfig) -> torch.Tensor:
    """Times, rows and columns, int64 (3, num_text_tokens + image tokens + OVERSHOOT), by which GLM-Image turns: of the
    prompt all three are the place in it; of a grid that begins at p they are p, p + row and p + column, and what
    follows it begins behind its longer side.
    """
    begin, parts = config.num_text_tokens, [torch.arange(config.num_text_tokens).expand(3, -1)]
    for side in filter(None, (config.small_grid, config.grid)):
        place = torch.arange(side**2)
        parts.append(begin + torch.stack([torch.zeros_like(place), place // side, place % side]))
        begin += side
    return torch.cat([*parts, torch.full((3, OVERSHOOT), begin)], dim=1)


def family_of(model: Any) -> Family:
    """The row of a model's class."""
    name = type(model).__name__
    if name not in FAMILIES:
        raise ValueError(f"a model of transformers must be one of {', '.join(FAMILIES)} to draw images, got {name}")
    return FAMILIES[name]


def _rows(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, nn.Linear]:
    """What a language model whose words are codes reads of some ids, and its head for them alone."""
    table, weight = model.get_input_embeddings().weight, model.lm_head.weight.detach()[ids]
    head = nn.Linear(weight.shape[1], len(ids), bias=False, device="meta")
    head.weight = nn.Parameter(weight)
    return table.detach()[ids], head


def _janus(model: Any) -> Parts:
    inner = model.model
    with torch.no_grad():
        tokens = inner.generation_aligner(inner.generation_embeddings.weight)
    return Parts(inner.language_model, tokens, inner.generation_head, is_head_linear=False)


def _emu3(model: Any) -> Parts:
    mapping = model.model.vocabulary_mapping
    ids = torch.cat([mapping.img2bpe_mapping_tensor.long(), torch.tensor([mapping.eol_token_id])])
    return Parts(model.model.text_model, *_rows(model, ids), line_end=mapping.eol_token_id)


def _glm_image(model: Any) -> Parts:
    return Parts(model.model.language_model, *_rows(model, torch.arange(model.config.image_start_token_id)))


def _chameleon(model: Any) -> Parts:
    return Parts(model.model, *_rows(model, model.model.vocabulary_mapping.img2bpe_mapping_tensor.long()))


FAMILIES = {
    "JanusForConditionalGeneration": Family(
        prompt="janus",
        take_apart=_janus,
        grid=24,
        draw_pixels=lambda model, codes: model.model.vqmodel.decode(codes.flatten(1)),
        codebook=lambda model: model.model.vqmodel.quantize.embedding.weight,
    ),
    "Emu3ForConditionalGeneration": Family(
        prompt="emu3",
        take_apart=_emu3,
        grid=90,
        draw_pixels=lambda model, codes: model.model.vqmodel.decode(codes),
        codebook=lambda model: model.model.vqmodel.quantize.embedding.weight,
    ),
    "GlmImageForConditionalGeneration": Family(
        prompt="glm_image",
        take_apart=_glm_image,
        grid=32,
        draw_pixels=None,  # diffusers' pipeline has the decoder
        codebook=lambda model: model.model.vqmodel.quantize.embedding.weight,
        small_grid=16,
        turns_by_grid=True,
    ),
    "ChameleonForConditionalGeneration": Family(
        prompt="anole",
        take_apart=_chameleon,
        grid=32,
        draw_pixels=None,
        codebook=lambda model: model.model.vqmodel.quantize.embedding.weight,
    ),
}
