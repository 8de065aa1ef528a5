"""Families of language models that generate images.

A *family* is a model class of Hugging Face's transformers, together with the form of its prompts. For example, "anole"
and "lumina" have the same class and different prompts. *Image tokens* are the codes, then the line end, if there is
one, and vocab is their number. The published models of a family are in `lantern_models.cards.published`.

Snakemake imports this module to plan the workflow, so torch and transformers are imported only inside functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import (
        ChameleonForConditionalGeneration,
        Emu3ForConditionalGeneration,
        GlmImageForConditionalGeneration,
        JanusForConditionalGeneration,
        PreTrainedModel,
    )

_UNALTERED = ("torch.nn.modules.", "torch.nn.parameter.", "transformers.models.")  # modules that define plain layers


@dataclass(frozen=True)
class PromptForm:
    """The tokens and the text that the models of a family expect around a caption.

    Strings may contain placeholders. {height} and {width} are the sides of the image in codes. {small_height} and
    {small_width} are the sides of GLM-Image's preview. {height_pixels}, {width_pixels}, {height_token} and
    {width_token} are the sides as Lumina-mGPT states them: in pixels, and as a special token. Any other {name} is the
    special token that the tokenizer has under this name. After placeholders are replaced, a string of `start`, `end` or
    `null` that begins with "<" is the name of one token. Any other is text.

    Attributes:
        text: text that is tokenised as a whole, with the caption in place of {}.
        null: the null prompt.
        filler: token that is repeated between the first and the last token of the null prompt, until it is as long as
            the prompt. None if the null prompt is not filled.
    """

    start: tuple[str, ...]
    text: str
    end: tuple[str, ...]
    null: tuple[str, ...]
    filler: str | None = None

    @property
    def states_size(self) -> bool:
        """True if prompts state the size of the image in codes, so that a model generates any size."""
        # Not {height_pixels}: a Lumina-mGPT model has one size.
        return any("{height}" in part for part in (*self.start, self.text, *self.end))


@dataclass(frozen=True)
class Parts:
    """The parts of a model that generate images.

    Attributes:
        layers: the model without its head.
        tokens: input embedding of each image token, (vocab, dim).
        head: maps hidden states to logits of the image tokens, and of words if `outputs` is given.
        ids: ids of the image tokens in the model's vocabulary, int64 (vocab,). None if that vocabulary has only words.
        ends: ids of the tokens that follow an image.
        outputs: index of each image token among the outputs of the head, int64 (vocab,). None if they are its outputs.
        copies_head: whether the head may be replaced by a copy in float32, see `is_readable`.
    """

    layers: PreTrainedModel
    tokens: torch.Tensor
    head: nn.Module
    ids: torch.Tensor | None = None
    ends: tuple[int, ...] = ()
    outputs: torch.Tensor | None = None
    copies_head: bool = True


@dataclass(frozen=True)
class Family:
    """Everything that the models of a family share.

    Attributes:
        take_apart: maps a model, and the id of its line end or None, to its `Parts`.
        target: values of fields of `TargetConfig`, by name.
        uses_grid_rope: whether the rotary embedding rotates channels by three numbers per token: time, row and column.
        takes_sources: whether prompts may have source pictures.
    """

    model_class: str
    layers_class: str
    prompt: PromptForm
    take_apart: Callable[[Any, int | None], Parts]
    target: Mapping[str, Any] = field(default_factory=dict)
    uses_grid_rope: bool = False
    takes_sources: bool = False

    def small_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the shape of the preview of an image, in codes, (0, 0) without one."""
        # Here, `small_grid` is the side of the preview of a square. In a `TargetConfig`, it is the preview's height.
        return small_shape(shape, self.target.get("small_grid", 0))


def small_shape(shape: tuple[int, int], side: int) -> tuple[int, int]:
    """Return the shape of a preview with the proportions of an image, of about side^2 codes. (0, 0) for side 0.

    Source: transformers' GlmImageProcessor.
    """
    ratio = shape[0] / shape[1]
    small = int(math.sqrt(ratio) * side), int(math.sqrt(1 / ratio) * side)
    if side and 0 in small:
        raise ValueError(
            f"the longer side of an image must be at most {side**2} times the shorter one, got {shape[0]} x {shape[1]} "
            "codes; take another shape"
        )
    return small


def family_of(model_class: str) -> str:
    """Return the name of the first family that has a transformers class, or raise a ValueError."""
    for name, family in FAMILIES.items():
        if family.model_class == model_class:
            return name
    known = ", ".join(dict.fromkeys(family.model_class for family in FAMILIES.values()))
    raise ValueError(f"a model of transformers must be one of {known} to generate images, got {model_class}")


def family_named(name: str | None, model_class: str) -> str:
    """Return a name of a family after checking it, or the family of a class if the name is None."""
    if name is None:
        return family_of(model_class)
    if name not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, or None, got {name!r}")
    return name


def altered_layer(part: nn.Module) -> str | None:
    """Return name and class of the first layer of a part that must not be replaced by a copy of its weights, or None.

    Such a layer has an adapter such as LoRA, or is quantised, compiled or sharded.
    """
    for name, layer in part.named_modules():
        for kind in (type(layer), *map(type, layer.parameters(recurse=False))):
            # What alters a layer gives another class to the layer or to its weights, from a module of its own.
            if not f"{kind.__module__}.".startswith(_UNALTERED):
                return f"{name or 'it'} of class {kind.__module__}.{kind.__qualname__}"
    return None


def is_readable(part: nn.Module) -> bool:
    """Return whether a part is not altered and its weights are in memory, so that a copy may replace it."""
    return altered_layer(part) is None and not any(weight.is_meta for weight in part.parameters())


def embed(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Embed ids, int64 (n,), without gradients: (n, dim), on the device on which the layer runs."""
    import torch

    weight = next(layer.parameters())
    with torch.no_grad():
        # A call, since the weight cannot always be read: the layer may be altered or offloaded.
        return layer(ids if weight.is_meta else ids.to(weight.device))  # accelerate moves the ids of offloaded layers


def word_parts(model: PreTrainedModel, layers: PreTrainedModel, ids: torch.Tensor, ends: tuple[int, ...] = ()) -> Parts:
    """Return the parts of a model whose vocabulary contains both words and image tokens."""
    from torch import nn

    tokens = embed(layers.get_input_embeddings(), ids)
    # An altered head runs as it is, on the whole vocabulary. Otherwise the rows of the image tokens are copied.
    if not is_readable(model.lm_head):
        return Parts(layers, tokens, model.lm_head, ids, ends, outputs=ids.to(tokens.device), copies_head=False)
    weight = model.lm_head.weight.detach()[ids]
    # "meta": the weights that the constructor would make are replaced at once.
    head = nn.Linear(weight.shape[1], len(ids), bias=False, device="meta")
    head.weight = nn.Parameter(weight)
    return Parts(layers, tokens, head, ids, ends)


def _janus(model: JanusForConditionalGeneration, _: int | None) -> Parts:
    import torch
    from torch import nn

    inner = model.model
    # Janus has a head and embeddings of its own for codes. Its vocabulary of words has no codes.
    head = nn.Sequential(inner.generation_head.proj_out, nn.GELU(), inner.generation_head.vision_head)
    with torch.no_grad():
        codes = torch.arange(cast("Any", model.config.vq_config).num_embeddings)
        # The aligner is applied once here, not in every pass. `open_pretrained` keeps these parts in float32.
        tokens = inner.generation_aligner(embed(inner.generation_embeddings, codes)).to(inner.language_model.dtype)
    return Parts(inner.language_model, tokens, head, copies_head=is_readable(head))


def _emu3(model: Emu3ForConditionalGeneration, _: int | None) -> Parts:
    import torch

    mapping = model.model.vocabulary_mapping
    # The line end that is passed is this `eol_token_id`, too.
    ids = torch.cat([mapping.img2bpe_mapping_tensor.long(), torch.tensor([mapping.eol_token_id])])
    words = mapping.vocab_map or {}
    # The ends of the frame, of the image and of the sequence.
    names = ("<|extra_201|>", "<|image end|>", "<|extra_204|>")
    # A config without these words leaves the image without an end.
    ends = tuple(words[name] for name in names) if all(name in words for name in names) else ()
    return word_parts(model, model.model.text_model, ids, ends)


def _glm_image(model: GlmImageForConditionalGeneration, _: int | None) -> Parts:
    import torch

    # The codes are the ids below the first special one, that of the start of an image.
    return word_parts(model, model.model.language_model, torch.arange(model.config.image_start_token_id))


def _chameleon(model: ChameleonForConditionalGeneration, line_end: int | None) -> Parts:
    import torch

    ids = model.model.vocabulary_mapping.img2bpe_mapping_tensor.long()
    end = [] if line_end is None else [line_end]
    return word_parts(model, model.model, torch.cat([ids, torch.tensor(end, dtype=torch.int64)]))


_CHAMELEON = {
    "model_class": "ChameleonForConditionalGeneration",
    "layers_class": "ChameleonModel",
    "take_apart": _chameleon,
}
# Source of the prompts: jadohu/LANTERN@3a56e45 (Anole, Lumina-mGPT of 768 x 768 pixels), Alpha-VLLM/Lumina-mGPT@250b9cf
# (other sizes), deepseek-ai/Janus@1daa72f, baaivision/Emu3@f6ea9aa (of 720), transformers (GLM-Image).
FAMILIES: dict[str, Family] = {
    "anole": Family(
        **_CHAMELEON,
        prompt=PromptForm(("<s>",), "{}", ("<reserved08706>", "<racm3:break>"), ("<s>", "<racm3:break>")),
        target={"has_qk_norm": True},
    ),
    "lumina": Family(
        **_CHAMELEON,
        prompt=PromptForm(
            ("<s>",),
            "Generate an image of {width_pixels}x{height_pixels} according to the following prompt:\n{}",
            ("<reserved08706>", "<racm3:break>", "{height_token}", "{width_token}"),
            ("<racm3:break>", "{height_token}", "{width_token}"),
        ),
        target={"has_qk_norm": True, "line_end": 8803},
    ),
    "janus": Family(
        model_class="JanusForConditionalGeneration",
        layers_class="LlamaModel",
        prompt=PromptForm(
            ("<｜begin▁of▁sentence｜>",),
            "<|User|>: {}\n\n<|Assistant|>:",
            ("<begin_of_image>",),
            ("<｜begin▁of▁sentence｜>", "<begin_of_image>"),
            filler="<｜▁pad▁｜>",
        ),
        take_apart=_janus,
        target={"has_mlp_head": True},
    ),
    "emu3": Family(
        model_class="Emu3ForConditionalGeneration",
        layers_class="Emu3TextModel",
        prompt=PromptForm(
            ("<|extra_203|>",),
            "{} masterpiece, film grained, best quality.",
            ("<|image start|>", "{height}*{width}", "<|image token|>"),
            (
                "<|extra_203|>",
                "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, "
                "worst quality, low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry.",
                "<|image start|>",
                "{height}*{width}",
                "<|image token|>",
            ),
        ),
        take_apart=_emu3,
        target={"line_end": 151846},  # as `eol_token_id`, for a card without the model
    ),
    "glm_image": Family(
        model_class="GlmImageForConditionalGeneration",
        layers_class="GlmImageTextModel",
        prompt=PromptForm(
            (),
            "{}{grid_bos_token}{height} {width}{grid_eos_token}"
            "{grid_bos_token}{small_height} {small_width}{grid_eos_token}",
            ("{bos_token}",),
            (),  # it generates codes without guidance
        ),
        take_apart=_glm_image,
        target={"small_grid": 16},
        uses_grid_rope=True,
        takes_sources=True,
    ),
}
