"""`lantern.from_transformers`, which makes a `lantern.api.Model` of a model of the package transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from typing_extensions import override

from lantern.api import Model, Variants
from lantern.caller import shut_out_settings
from lantern.codebook import ImageModel
from lantern.parameters import Parameter, check_sides
from lantern.prompts import TextEncoder
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern_models.adapter import TransformersTarget, adapt
from lantern_models.cards.published import card_of_family, published_shape
from lantern_models.checkpoints.image_tokenizers import make_image_tokenizer
from lantern_models.checkpoints.weight_files import WeightFile
from lantern_models.custom_generate import sampling_of
from lantern_models.families import FAMILIES, altered_layer, family_named
from lantern_models.glm_image import SourceEncoder, pictures_of
from lantern_models.sizes import shape_fields, sides_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lantern_models.text.token_prompts import TokenPromptEncoder

MAX_TOKENS = 128  # default length of the longest prompt of a transformers model
_COUNT = Parameter("", "a number", 1, is_integer=True)


@shut_out_settings()
def from_transformers(
    model: PreTrainedModel,
    processor: Any,
    *,
    family: str | None = None,
    grid: int | tuple[int, int] | None = None,
    max_tokens: int = MAX_TOKENS,
) -> Model:
    """Make a Lantern model from a transformers model, so that it generates images by any method.

    The method `jacobi` needs no other model, and generates the same tokens as autoregressive decoding.

    Args:
        model: model of a class in `lantern_models.families.FAMILIES`, also within the wrappers of peft and of
            torch.compile. It is not changed and stays on its device. Its head and the embedding of its codes are
            copied, so after a training step call this function again.
        processor: processor or tokenizer of the model. To edit source pictures, the processor is needed.
        family: key of FAMILIES, a transformers class together with one form of prompts. Needed only if the class has
            several families.
        grid: side of an image in codes, or (height, width), if it differs from the published one.
        max_tokens: length of the longest prompt, including the tokens around the caption. `generate` refuses longer
            prompts.

    Raises:
        ValueError: the class is unknown (the message lists the known ones), the tokenizer belongs to another model, or
            the model is in training mode or runs on several devices. Also if its image tokenizer is quantised or has an
            adapter such as LoRA, or its generation_config has a setting that changes tokens and is not supported.
    """
    max_tokens = _COUNT.check("max_tokens", max_tokens, "from_transformers")
    given = None if grid is None else check_sides("grid", grid)
    from lantern_models.text.token_prompts import TokenPromptEncoder

    model = _unwrap(model)
    family = family_named(family, type(model).__name__)
    row = FAMILIES[family]
    tokenizer = getattr(processor, "tokenizer", processor)
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(f"processor must be the model's, or its fast tokenizer, got {type(processor).__name__}")
    # Special tokens by placeholder of the form: attributes, if the class sets any, and the map, which wins. `fill_form`
    # ignores values that are no texts.
    names = {name: value for name, value in vars(tokenizer).items() if name.endswith("_token")}
    names |= {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    shape = published_shape(family) if given is None else given
    small_shape = row.small_shape(shape)
    # A copy, since the encoder switches off the padding and truncation of its tokenizer.
    words = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    # The names that the image tokenizer's weights have in a file of the whole model.
    state = {f"model.vqmodel.{name}": value for name, value in _tokenizer_state(model).items()}
    image_tokenizer = make_image_tokenizer(WeightFile(Path(type(model).__name__), state), grid=sides_of(shape))
    encoder = TokenPromptEncoder(row.prompt, words, max_tokens, names=names, shape=shape, small_shape=small_shape)
    takes_sources = row.takes_sources and hasattr(processor, "image_processor")
    source_encoder = partial(SourceEncoder, model, processor) if takes_sources else None
    return wrap(model, family, encoder, image_tokenizer, shape, source_encoder)


def _unwrap(model: Any) -> Any:
    """Return the transformers model within the wrappers of torch.compile and peft. Its layers keep their adapters."""
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    if not hasattr(model, "get_base_model"):  # a wrapper of peft has it
        return model
    if model.active_peft_config.is_prompt_learning:
        kind = model.active_peft_config.peft_type.value
        raise ValueError(f"adapters must be in layers, as LoRA's are, got {kind}, which changes the prompt; train LoRA")
    return model.get_base_model()


def _tokenizer_state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    tokenizer = model.get_submodule("model.vqmodel")
    # The weights are copied into Lantern's own tokenizer, which would lose adapters.
    if (layer := altered_layer(tokenizer)) is not None:
        raise ValueError(
            f"the image tokenizer, model.vqmodel, must have its published layers, got {layer}; merge its adapter "
            "(merge_and_unload), or quantise the model without it: llm_int8_skip_modules=['model.vqmodel', 'lm_head']"
        )
    if any(weight.is_meta for weight in tokenizer.parameters()):
        from accelerate.utils.modeling import get_state_dict_offloaded_model  # accelerate has offloaded them

        return get_state_dict_offloaded_model(tokenizer)
    return tokenizer.state_dict()


def wrap(
    model: PreTrainedModel,
    family: str,
    encoder: TokenPromptEncoder,
    images: ImageModel,
    shape: tuple[int, int],
    source_encoder: Callable[..., SourceEncoder] | None = None,
) -> Model:
    """Make a Lantern model from a transformers model. The encoder is changed to refuse long prompts.

    source_encoder maps texts, pictures of each, and the shape of the image to an encoder, if the model edits pictures.
    """
    card = card_of_family(family)
    # A generation_config that does not set do_sample states no sampling. The published settings apply then.
    if model.generation_config.do_sample is None and card is not None:
        sampling_of(model, do_sample=True)  # refuses filters that are not supported
        sampling = SamplingConfig(**card.sampling)
    else:
        sampling = sampling_of(model)
    encoder.refuses_long = True
    sizes = shape_fields(shape, FAMILIES[family].small_shape(shape))
    target = adapt(model, family, num_text_tokens=encoder.max_tokens, **encoder.null_prompt, **sizes)
    neighbours = "l2_normalised" if card is None else card.neighbours
    parts, variants = {"neighbours": neighbours}, FamilyVariants(family, source_encoder)
    return Model(DecodingModels(target), images.to(target.device), encoder, sampling, parts, variants)


class FamilyVariants(Variants):
    """Images of any size if the family's prompts state it, and source pictures if there is an encoder of them."""

    def __init__(self, family: str, source_encoder: Callable[..., SourceEncoder] | None = None) -> None:
        self.family = family
        self.source_encoder = source_encoder
        self._resized: dict[tuple[int, int], tuple[DecodingModels, TextEncoder]] = {}  # by shape

    @override
    def of_size(self, model: Model, sides: tuple[int, int], given: object) -> tuple[DecodingModels, TextEncoder]:
        family, pixels = FAMILIES[cast("str", self.family)], model.tokenizer.config.code_pixels
        if not family.prompt.states_size or model.models.draft is not None:
            return super().of_size(model, sides, given)
        if any(side % pixels for side in sides):
            raise ValueError(
                f"height and width in size must be multiples of {pixels} pixels, the side of a code, got {given}; "
                "round them"
            )
        shape = sides[0] // pixels, sides[1] // pixels
        if shape not in self._resized:
            small_shape = family.small_shape(shape)
            encoder = cast("TokenPromptEncoder", model.encoder).with_shape(shape, small_shape)
            target = cast("TransformersTarget", model.models.target)
            # The null prompt of guidance states the size, too. The weights are shared.
            target = target.with_sizes(**shape_fields(shape, small_shape), null_ids=encoder.null_prompt["null_ids"])
            self._resized[shape] = DecodingModels(target), encoder
        return self._resized[shape]

    @override
    def with_sources(
        self, models: DecodingModels, texts: Sequence[str], images: Sequence[Any]
    ) -> tuple[DecodingModels, TextEncoder]:
        if self.source_encoder is None:
            return super().with_sources(models, texts, images)
        target = cast("TransformersTarget", models.target)
        encoder = self.source_encoder(texts, pictures_of(images, len(texts)), target.config.shape)
        # GLM-Image generates no preview if it edits pictures. Prompts are longer, since they hold the pictures' codes.
        sizes = {"small_grid": 0, "small_columns": 0, "num_text_tokens": encoder.max_tokens}
        return DecodingModels(target.with_sizes(**sizes)), encoder
