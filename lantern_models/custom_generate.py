"""`lantern.custom_generate`, for this argument of a transformers model's `generate`, which then decodes with Lantern.

Every argument of `generate`, and every setting of a model's `generation_config`, is either applied, or refused by an
error that names it, before a token is sampled. What changes tokens is decided by the logits processors and stopping
criteria that transformers itself makes of them. A processor whose class is not known here is therefore refused.

A *word* is a token id of the transformers model. A *token* is Lantern's: a code or the line end, numbered from 0.
`TransformersTarget.ids` maps tokens to words. The batch axis of all ids and masks is the axis of the prompts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F

from lantern.caller import shut_out_settings
from lantern.codebook import columns_for, nearest_codes
from lantern.decoding import make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.parameters import Parameter, check_sides
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern_models.adapter import CACHE_NAMES, TransformersTarget, adapt
from lantern_models.cards.published import published_shape
from lantern_models.families import FAMILIES, embed, family_named
from lantern_models.glm_image import place_sources
from lantern_models.sizes import shape_fields

if TYPE_CHECKING:
    from transformers import (
        GenerationConfig,
        LogitsProcessor,
        PrefixConstrainedLogitsProcessor,
        PreTrainedModel,
        StoppingCriteria,
        UnbatchedClassifierFreeGuidanceLogitsProcessor,
    )
    from transformers.generation.utils import GenerateDecoderOnlyOutput

T = TypeVar("T")

_GUIDANCE = "UnbatchedClassifierFreeGuidanceLogitsProcessor"
_PREFIX = "PrefixConstrainedLogitsProcessor"
# The logits processors that are applied, in the order that they must have.
_ORDER = (_GUIDANCE, _PREFIX, "TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper")
# These change no token: the end of a text is not a code, and a constant added to all logits has no effect.
_HARMLESS = ("MinLengthLogitsProcessor", "MinNewTokensLengthLogitsProcessor", "LogitNormalization")
_STOPPING = ("MaxLengthCriteria", "EosTokenCriteria")
_MODES = ("greedy_search", "sample")
_UNSUPPORTED_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def custom_generate(
    method: str = "jacobi",
    *,
    family: str | None = None,
    grid: int | tuple[int, int] | None = None,
    seed: int | None = None,
    **parts: object,
) -> Callable[..., torch.Tensor | GenerateDecoderOnlyOutput]:
    """Make a function for the `custom_generate` argument of a transformers model.

    The function generates images by a method without a draft model. The result of `generate` has the usual form: the
    ids of the prompt, of the image's tokens with line ends, and of the tokens after an image. If `max_new_tokens` does
    not allow all tokens after the image, the remaining ones are left out.

    Tokens that are impossible at a position, such as a word within an image, are never sampled. A `streamer` and an
    `assistant_model` are ignored, since transformers does not pass them to the function.

    Args:
        method: name of a preset.
        family: key of `lantern_models.families.FAMILIES`, a transformers class together with one form of prompts.
            Needed only if published models of the same class have several forms of prompts.
        grid: side of an image in codes, or (height, width). Needed only if the prompt does not state it.
        seed: seed of the noise. None takes one from torch's generator, which `torch.manual_seed` determines.
        parts: parts and parameters of the method, such as tree="chain15".

    Returns:
        The function to pass as `custom_generate`. It raises a ValueError for each argument of `generate` that it does
        not support.

    Raises:
        ValueError: the method or a part is unknown.
    """
    if seed is not None:
        seed = Parameter("", "a seed", is_integer=True).check("seed", seed, "custom_generate")
    spec = make_method(method, **parts)
    given = None if grid is None else check_sides("grid", grid)

    @shut_out_settings()
    def generate(
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Sequence[LogitsProcessor],
        stopping_criteria: Sequence[StoppingCriteria],
        generation_config: GenerationConfig,
        **model_kwargs: Any,  # an argument that is named here would be hidden from transformers
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        if "prepare_inputs_for_generation" in vars(model):  # peft replaces this method if an adapter is in the prompt
            raise ValueError("adapters must be in layers, as LoRA's are, got one that changes the prompt; train LoRA")
        _refuse_what_is_not_done(generation_config, logits_processor, stopping_criteria, model_kwargs)
        row = family_named(family, type(model).__name__)
        processors: dict[str, Any] = {type(part).__name__: part for part in logits_processor}
        sampling = _sampling_of(processors, generation_config.do_sample)
        ids, mask, negative = _prompts_of(input_ids, model_kwargs.get("attention_mask"), processors.get(_GUIDANCE))
        prompts, pictures = ids, _source_pictures(model_kwargs, row)
        if FAMILIES[row].uses_grid_rope:
            num_sources = _count_sources(model, ids, mask, pictures)
            shapes = _shapes_of(model, len(ids), num_sources, model_kwargs, generation_config, sampling, given)
            sizes = shape_fields(*shapes)
            if num_sources:
                glm: Any = model
                # Without pictures, the prompts hold the codes of the source pictures in place of placeholders.
                codes = ids.new_empty(0) if pictures is None else glm.get_image_tokens(pictures)
                num_grids = torch.full((len(ids),), num_sources + 1)  # the last one is the image's
                prompts = place_sources(model, ids, mask, model_kwargs["image_grid_thw"], num_grids, codes)
        else:
            sizes = shape_fields(_shape_of(model, row, input_ids, given))
        target = adapt(model, row, num_text_tokens=ids.shape[1], **sizes)
        # Janus numbers its codes apart from its words, so that the result of `generate` could not state them.
        if target.ids is None:
            raise ValueError(f"the codes of {type(model).__name__} are not words: use lantern.from_transformers")
        if negative is not None:
            null_ids, null_mask = negative
            target.negative = null_ids.to(target.device), null_mask.to(target.device)
        words = target.ids.to(input_ids.device)
        ends = words.new_tensor(_ends_within(target, generation_config.max_new_tokens))
        if _PREFIX in processors:
            _check_prefix(processors[_PREFIX], target, words, input_ids, ends)
        decoder = make_decoder(DecodingModels(target, nearest_codes=_table_of(model, spec, target)), spec, sampling)
        first = int(torch.randint(2**31, ())) if seed is None else seed
        # `Model.generate` gives prompts the same ids.
        noise = [decoder.make_noise(first, str(place)) for place in range(len(ids))]
        codes = decoder.generate(prompts, mask, noise).codes.to(words.device)
        sequences = torch.cat([input_ids, words[codes], ends.expand(len(ids), -1)], dim=1)
        return _as_generate_does(sequences, generation_config)

    return generate


def _refuse_what_is_not_done(
    config: GenerationConfig,
    processors: Sequence[LogitsProcessor],
    stopping: Sequence[StoppingCriteria],
    model_kwargs: Mapping[str, Any],
) -> None:
    mode = config.get_generation_mode().value
    if config.num_beams not in (None, 1) or mode not in _MODES:
        raise ValueError(
            f"generate must search greedily or sample with num_beams=1 under lantern.custom_generate, got {mode} "
            f"with num_beams={config.num_beams}"
        )
    asked = [name for name in _UNSUPPORTED_OUTPUTS if getattr(config, name, None)]
    if asked:
        raise ValueError(f"{asked[0]} is not returned by lantern.custom_generate, got True; leave it out")
    known = [name for part in processors if (name := type(part).__name__) in _ORDER]
    if strange := _unsupported_processors(processors):
        raise ValueError(
            f"lantern.custom_generate applies guidance_scale, temperature, top_k and top_p, got {', '.join(strange)} "
            "too (of an argument of generate or of generation_config); leave it out"
        )
    # `set` drops a second processor of the same kind, so that the lists differ.
    if known != sorted(set(known), key=_ORDER.index):
        raise ValueError(
            f"logits processors must be one of each kind, in the order {', '.join(_ORDER)}, got {', '.join(known)}"
        )
    if any(getattr(part, "min_tokens_to_keep", 1) > 1 for part in processors):
        raise ValueError("min_tokens_to_keep must be 1 in lantern.custom_generate; leave it out")
    if strange := _unsupported_criteria(stopping):
        raise ValueError(f"an image is generated to its end, got the stopping criterion {strange[0]}; leave it out")
    # Lantern computes the prompt anew. A filled cache would say that `input_ids` are only the end of the prompt.
    for name in CACHE_NAMES:
        if (past := model_kwargs.get(name)) is not None and past.get_seq_length():
            raise ValueError(f"the cache in {name} must be empty under lantern.custom_generate; leave it out")


def _unsupported_processors(processors: Sequence[LogitsProcessor]) -> list[str]:
    return [
        name
        for part in processors
        if (name := type(part).__name__) not in (*_ORDER, *_HARMLESS) and not _is_neutral(part)
    ]


def _is_neutral(part: LogitsProcessor) -> bool:
    """Return whether a logits processor changes nothing: it suppresses no token, or its min_p is 0."""
    tokens = (getattr(part, name, None) for name in ("suppress_tokens", "begin_suppress_tokens"))
    return getattr(part, "min_p", None) == 0 or any(ids is not None and len(ids) == 0 for ids in tokens)


def _unsupported_criteria(stopping: Sequence[StoppingCriteria]) -> list[str]:
    return [name for part in stopping if (name := type(part).__name__) not in _STOPPING]


def sampling_of(model: PreTrainedModel, do_sample: bool | None = None) -> SamplingConfig:
    """Return the sampling settings of a transformers model's `generation_config`.

    Settings that it lacks have the defaults of transformers' `generate`, such as a top_k of 50. A `do_sample`
    that is not None replaces the config's.

    Raises:
        ValueError: a setting changes tokens and Lantern does not support it, such as beam search, or transformers
            refuses it.
    """
    config = deepcopy(model.generation_config)
    config.do_sample = config.do_sample if do_sample is None else do_sample
    defaults = config._get_default_generation_params()
    for name in {*defaults, *vars(config)}:
        value = getattr(config, name, None)
        if value is None or (isinstance(value, list | tuple | dict) and not value):
            setattr(config, name, defaults.get(name))  # an empty list changes no token, but transformers may refuse it
    if unsupported := _unsupported_settings(model, config):
        # A processor does not tell which setting asked for it. Hence each setting is reset alone: if less remains
        # unsupported then, this setting is to blame.
        for name, value in vars(config).items():
            if name == "do_sample":  # without it, filters would not be asked for
                continue
            other = copy(config)
            setattr(other, name, neutral := defaults.get(name))
            if value != neutral and len(_unsupported_settings(model, other)) < len(unsupported):
                raise ValueError(
                    f"{name} of the model's generation_config must be {neutral}, got {value!r}: it is not applied; set "
                    f"model.generation_config.{name} to {neutral}"
                )
        raise ValueError(f"the model's generation_config makes {unsupported[0]}, which is not supported; reset it")
    processors, _ = _made_by(model, config)
    return _sampling_of({type(part).__name__: part for part in processors}, config.do_sample)


def _unsupported_settings(model: PreTrainedModel, config: GenerationConfig) -> list[str]:
    """Return names of what `generate` would do with a config and Lantern does not."""
    processors, stopping = _made_by(model, config)
    found = [*_unsupported_processors(processors), *_unsupported_criteria(stopping)]
    mode = config.get_generation_mode().value
    found += [mode] if mode not in _MODES else []
    found += [] if config.num_return_sequences == 1 else ["several images of a prompt"]
    return found + (["other prompts"] if config.token_healing else [])


def _made_by(
    model: PreTrainedModel, config: GenerationConfig
) -> tuple[Sequence[LogitsProcessor], Sequence[StoppingCriteria]]:
    """Return the logits processors and stopping criteria that `generate` makes of a complete config."""
    config = deepcopy(config)
    generator: Any = model
    generator._prepare_special_tokens(config, device="cpu")  # changes the config
    # No processor is called here, so that any prompt will do. 1 is its length.
    ids = torch.zeros(1, 1, dtype=torch.int64)
    try:
        processors = generator._get_logits_processor(config, 1, ids, logits_processor=[], device="cpu")
        return processors, generator._get_stopping_criteria(config, stopping_criteria=[])
    except (ValueError, TypeError) as error:
        raise ValueError(f"transformers refuses a setting of the model's generation_config: {error}") from error


def _source_pictures(model_kwargs: Mapping[str, Any], family: str) -> list[torch.Tensor] | None:
    """Return the vision encoder's features of the source pictures, (channels, height, width) each, or None."""
    # `generate` has run the vision encoder, and passes its outputs.
    outputs = (model_kwargs.get("mm_encoder_outputs") or {}).get("image")
    if (outputs is not None or "pixel_values" in model_kwargs) and not FAMILIES[family].takes_sources:
        raise ValueError("pixel_values, a source picture, are supported for GLM-Image only; leave them out")
    return None if outputs is None else outputs.pooler_output


def _count_sources(
    model: PreTrainedModel, ids: torch.Tensor, mask: torch.Tensor, pictures: list[torch.Tensor] | None
) -> int:
    """Return the number of source pictures of each prompt of GLM-Image."""
    config = model.config
    # A source picture ends with this token. The image to generate has only begun, with image_start_token_id.
    counts = ((ids == config.image_end_token_id) & mask).sum(1)
    if (counts != counts[0]).any():
        raise ValueError(
            f"all prompts of a batch must have the same number of source pictures, got {counts.tolist()}; generate "
            "them one by one"
        )
    if not counts[0] and (pictures is not None or (ids == config.image_token_id).any()):
        raise ValueError(
            f"the placeholders of a source picture must be between the tokens {config.image_start_token_id} and "
            f"{config.image_end_token_id} in each prompt, got no such tokens; use the processor's chat template"
        )
    return int(counts[0])


def _sampling_of(processors: Mapping[str, LogitsProcessor], do_sample: bool) -> SamplingConfig:
    """Read guidance and filters from the logits processors of `generate`, given by class name."""

    def read(kind: str, name: str, otherwise: T) -> T:
        return getattr(processors[kind], name) if kind in processors else otherwise

    top_p = read("TopPLogitsWarper", "top_p", 1.0)
    is_greedy = not do_sample or top_p == 0  # a top_p of 0 keeps the most probable token
    return SamplingConfig(
        # Filters keep the most probable token, hence greedy decoding needs none.
        temperature=0.0 if is_greedy else read("TemperatureLogitsWarper", "temperature", 1.0),
        top_k=0 if is_greedy else read("TopKLogitsWarper", "top_k", 0),
        top_p=1.0 if is_greedy else top_p,
        cfg_scale=read(_GUIDANCE, "guidance_scale", 1.0),
    )


def _shapes_of(
    model: PreTrainedModel,
    num_prompts: int,
    num_sources: int,
    model_kwargs: Mapping[str, Any],
    config: GenerationConfig,
    sampling: SamplingConfig,
    given: tuple[int, int] | None,
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the sizes in codes, (height, width), of GLM-Image's image and of its preview, (0, 0) if there is none."""
    name = type(model).__name__
    grids = model_kwargs.get("image_grid_thw")
    if sampling.is_guided:
        raise ValueError(f"{name} generates without guidance: guidance_scale must be 1, got {sampling.cfg_scale}")
    if given is not None:
        raise ValueError(f"grid of {name} is in image_grid_thw, got {given} too; leave grid out of custom_generate")
    if grids is None:
        raise ValueError(f"image_grid_thw is missing: pass all outputs of the processor of {name} to generate")
    if config.num_return_sequences > 1:
        raise ValueError(f"num_return_sequences of {name} must be 1, got {config.num_return_sequences}; repeat prompts")
    counts = model_kwargs.get("images_per_sample")
    # Grids of a prompt: its source pictures' and the image's, or the image's and the preview's. A preview is a
    # smaller image that GLM-Image generates before the image, unless it edits source pictures.
    num_grids = num_sources + 1 if num_sources else 2
    if len(grids) != num_grids * num_prompts or (counts is not None and (counts != num_grids).any()):
        kinds = f"{num_sources} of source pictures and the image's" if num_sources else "the large and the small one"
        raise ValueError(
            f"image_grid_thw must hold {num_grids} grids of each prompt, {kinds}, got {len(grids)} of {num_prompts} "
            "prompts; pass all outputs of the processor"
        )
    # A grid states duration (always 1), height and width.
    shapes = grids.view(num_prompts, num_grids, 3)[:, num_sources:, 1:]
    if (shapes != shapes[0]).any():
        raise ValueError(
            f"the image's grid in image_grid_thw must be the same of all prompts, got {shapes.tolist()}; generate one "
            "size"
        )
    # There are one or two shapes here. (0, 0) takes the place of the second.
    (height, width), (small_height, small_width) = [*shapes[0].tolist(), (0, 0)][:2]
    return (height, width), (small_height, small_width)


def _shape_of(model: PreTrainedModel, family: str, ids: torch.Tensor, grid: tuple[int, int] | None) -> tuple[int, int]:
    """Return the height and width of the image in codes: given, in Emu3's prompts, or published."""
    if grid is not None:
        return grid
    if FAMILIES[family].model_class != "Emu3ForConditionalGeneration":
        return published_shape(family)
    # Only these words state a size, as in "<|image start|>90*90<|image token|>". All others become spaces.
    wanted = ("*", "<|image start|>", "<|image token|>")
    words = {id: name for name, id in model.config.vocabulary_map.items() if name.isdigit() or name in wanted}
    sizes = {_size_in("".join(words.get(id, " ") for id in row)) for row in ids.tolist()}
    found = [size for size in sizes if size is not None]
    if len(found) < len(sizes):  # the set holds None once
        raise ValueError("the prompts do not say the image's size: pass lantern.custom_generate(grid=(height, width))")
    if len(found) > 1:
        raise ValueError(
            f"all images of a batch must have one size, got {sorted(found)} (height, width); give one size"
        )
    (size,) = found
    return size


def _size_in(prompt: str) -> tuple[int, int] | None:
    """Return the (height, width) in codes that ends a prompt of Emu3, or None if it ends in another way."""
    match = re.search(r"<\|image start\|>(\d+)\*(\d+)<\|image token\|>$", prompt)
    return None if match is None else (int(match[1]), int(match[2]))


def _prompts_of(
    ids: torch.Tensor, mask: torch.Tensor | None, guidance: UnbatchedClassifierFreeGuidanceLogitsProcessor | None
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    """Return (ids, mask, (negative ids, negative mask) or None without guidance), padded on the left to one length."""
    if ids.shape[1] == 0:
        raise ValueError("prompts must be input_ids, got none (inputs_embeds are not supported)")
    mask = _check_mask(mask, ids, "attention_mask")
    if guidance is None or guidance.guidance_scale == 1:
        return ids, mask, None
    context = guidance.unconditional_context
    null = ids[:, -1:] if context["input_ids"] is None else context["input_ids"].to(ids.device)  # as transformers does
    null_mask = _check_mask(context["attention_mask"], null, "negative_prompt_attention_mask")
    if len(null) not in (1, len(ids)):
        raise ValueError(f"negative_prompt_ids must have 1 row or {len(ids)}, one of each prompt, got {len(null)}")
    # One negative prompt serves all prompts.
    null, null_mask = (part.expand(len(ids), -1) for part in (null, null_mask))
    width = max(ids.shape[1], null.shape[1])
    ids, mask, null, null_mask = (F.pad(part, (width - part.shape[1], 0)) for part in (ids, mask, null, null_mask))
    return ids, mask, (null, null_mask)


def _check_mask(mask: torch.Tensor | None, ids: torch.Tensor, name: str) -> torch.Tensor:
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    mask = mask.to(ids.device).bool()
    # Left padding: no token is followed by padding, and the last position is a token.
    if mask.shape != ids.shape or (mask[:, :-1] & ~mask[:, 1:]).any() or not mask[:, -1].all():
        raise ValueError(
            f"{name} must be the mask of prompts padded on the left, {tuple(ids.shape)}; set padding_side='left' of "
            "the tokenizer"
        )
    return mask


def _ends_within(target: TransformersTarget, max_new_tokens: int | None) -> tuple[int, ...]:
    """Return the words that end an image, as far as `max_new_tokens`, which counts them and the image, allows them."""
    needed = target.config.num_image_tokens
    if max_new_tokens is None:
        return target.ends
    if max_new_tokens < needed:
        raise ValueError(f"max_new_tokens must be >= {needed}, the tokens of an image, got {max_new_tokens}")
    return target.ends[: max_new_tokens - needed]


def _check_prefix(
    processor: PrefixConstrainedLogitsProcessor,
    target: TransformersTarget,
    words: torch.Tensor,
    ids: torch.Tensor,
    ends: torch.Tensor,
) -> None:
    """Check that `prefix_allowed_tokens_fn` allows at each position exactly the tokens that Lantern may sample there.

    These are all codes within a line, the line end after a line, and the ending words after the image.
    """
    config = target.config
    codes = words[: config.num_codes]
    height, width = config.shape
    # The image on which the function is tried. Code 0 stands for any code. The line end is the word after the codes.
    line = torch.cat([codes[:1].expand(width), words[config.num_codes :]])
    # The preview's codes come before the image and have no line ends.
    num_small = config.num_image_tokens - height * len(line)
    image = torch.cat([codes[:1].expand(num_small), line.repeat(height), ends])
    every_code = set(codes.tolist())
    seen, found = None, set()
    for row, prompt in enumerate(ids):
        whole = torch.cat([prompt, image])
        for index, word in enumerate(image.tolist()):
            allowed = processor._prefix_allowed_tokens_fn(row, whole[: len(prompt) + index])
            if allowed is not seen:  # the same long list is often returned again
                seen = allowed
                found = _words_in(allowed)
            # Every other word of the image is the only one that is possible at its position.
            if found != (every_code if word in every_code else {word}):
                raise ValueError(
                    f"prefix_allowed_tokens_fn must allow the image of {height} x {width} "
                    f"codes that is generated, and no other token, got another at token {index} of prompt {row}; pass "
                    "lantern.custom_generate(grid=(height, width)), or no such function"
                )


def _words_in(allowed: Iterable[int | torch.Tensor] | None) -> set[int]:
    """Return the words that `prefix_allowed_tokens_fn` returned, as integers or as tensors of any shape."""
    found: set[int] = set()
    if allowed is None:  # a function that forgets to return
        return found
    for part in [allowed] if isinstance(allowed, torch.Tensor) else allowed:
        found.update(part.flatten().tolist() if isinstance(part, torch.Tensor) else [int(part)])
    return found


def _table_of(model: PreTrainedModel, spec: MethodSpec, target: TransformersTarget) -> torch.Tensor | None:
    k = spec.get("k")
    if k is None or spec.neighbours is None:
        return None
    codes = torch.arange(target.config.num_codes)
    # By a call of the layer, whose weight may be offloaded or quantised.
    codebook = embed(model.get_submodule("model.vqmodel.quantize.embedding"), codes).float().cpu()
    return nearest_codes(codebook, columns_for(k, len(codebook)), spec.neighbours).to(target.device)


def _as_generate_does(sequences: torch.Tensor, config: GenerationConfig) -> torch.Tensor | GenerateDecoderOnlyOutput:
    if not config.return_dict_in_generate:
        return sequences
    from transformers.generation.utils import GenerateDecoderOnlyOutput  # transformers is an optional dependency

    return GenerateDecoderOnlyOutput(sequences=sequences)  # pyright: ignore[reportArgumentType]  LongTensor is no class
