"""Functions that read models of the package transformers from their folders, and Chameleon in Meta's layout.

Lantern reads the weights itself, so that no code in a pickle runs and every damaged file leads to one clear error
message. The package transformers provides the classes and the dtypes. It also renames tensors of older files. No code
of a model's repository is executed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch

from lantern.models.config import TargetConfig
from lantern_models.checkpoints.tensor_names import FIRST_CODE, META_CHAMELEON, expand_norms, rename
from lantern_models.checkpoints.weight_files import WeightFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_LETTERS = "ABCDEFGHIJ"
_CHAMELEON = "ChameleonForConditionalGeneration"
# Prefixes of tensors that are not needed to generate image tokens.
_UNUSED = (
    "model.vqmodel.",
    "model.vision_model.",
    "model.visual.",
    "model.aligner.",
)


def read_config(weights: WeightFile) -> PreTrainedConfig:
    """Make the config object of transformers from config.json, which names a class of `FAMILIES`."""
    name, settings = cast("str", weights.model_class), dict(weights.settings or {})
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{weights.path} is a model of transformers; install it from a clone: pip install '.[transformers]'",
            name=error.name,
        ) from error
    config = getattr(transformers, name).config_class.from_dict(settings)
    # The config must state which ids are image codes. If it does not, they are the published ones.
    if name == _CHAMELEON and not config.vocabulary_map:
        config.vocabulary_map = _code_words(config.vq_config.num_embeddings)
    return config


def open_pretrained(weights: WeightFile, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Make a transformers model from its weights, in evaluation mode, with its generation settings.

    The weights of the head, and those with which Janus embeds codes, are float32, whatever `dtype` is. Raises a
    ValueError if a tensor that is needed to generate image tokens is missing or has another shape.
    """
    import transformers

    text = config.get_text_config()
    tensors = expand_norms(
        weights.tensors,
        text.hidden_size // text.num_attention_heads,
        text.num_attention_heads,
        text.num_key_value_heads,
    )
    # transformers would warn of missing and mismatched tensors, also of parts that are not used.
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        model, report = getattr(transformers, cast("str", weights.model_class)).from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=dtype,
            # Both kinds of faults are reported instead of raised, and those that matter are raised below.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            local_files_only=True,
        )
    finally:
        transformers.logging.set_verbosity(verbosity)
    for name, found, wanted in report["mismatched_keys"]:
        if _draws(name):
            shapes = f"{tuple(wanted)} as config.json states, found {tuple(found)}"
            raise ValueError(f"{weights.path}: tensor {name} should have shape {shapes}")
    lacking = [name for name in sorted(report["missing_keys"]) if _draws(name)]
    if lacking:
        raise ValueError(f"{weights.path} lacks the tensor {lacking[0]} ({len(lacking)} such); fetch it again")
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("head.", "generation_")):
            # From the file, since the model's own were rounded to `dtype`. Names in older files have a prefix, as in
            # Emu3's text_model.lm_head.
            parameter.data = next(value for key, value in tensors.items() if key.endswith(name)).float()
    settings = weights.settings_path.with_name("generation_config.json")
    if settings.is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(settings.parent, local_files_only=True)
    return model.eval()


def complete_meta(weights: WeightFile, expected: TargetConfig) -> WeightFile:
    """Convert a Chameleon checkpoint from Meta's layout to Hugging Face's.

    Config values that Meta's files lack are taken from `expected`.
    """
    heads = expected.num_heads
    width = expected.head_dim
    tensors = {}
    for name, value in weights.tensors.items():
        # A rotary embedding rotates pairs of channels. The two channels of a pair are adjacent in Meta's layout,
        # 0 0 1 1 2 2, and half a head apart in Hugging Face's, 0 1 2 0 1 2.
        if "_normalization." in name:
            value = value.view(-1, 2).T.reshape(1, width)
        elif name.endswith(("attention.wq.weight", "attention.wk.weight")):
            value = value.view(-1, width // 2, 2, value.shape[1]).transpose(1, 2).reshape(value.shape)
        tensors[name] = value
    tensors = rename(tensors, META_CHAMELEON)
    table, gate = (tensors[f"model.{part}.weight"] for part in ("embed_tokens", "layers.0.mlp.gate_proj"))
    settings = {
        "architectures": [_CHAMELEON],
        "hidden_size": table.shape[1],
        "intermediate_size": len(gate),
        "num_hidden_layers": expected.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": expected.num_kv_heads or heads,
        "vocab_size": len(table),
        "vq_config": {"base_channels": 32, "channel_multiplier": [1]},  # small, since it is not used
        "vocabulary_map": _code_words(expected.num_codes),
    }
    return replace(weights, tensors=tensors, settings=settings)


def _code_words(num_codes: int) -> dict[str, int]:
    """Return the ids of the words for image codes in Chameleon's vocabulary. The word for code 13 is "IMGIMGBDZ"."""
    # The digits of a code, as letters with A for 0.
    digits = {code: "".join(_LETTERS[int(digit)] for digit in str(code)) for code in range(num_codes)}
    return {f"IMGIMG{letters}Z": FIRST_CODE + code for code, letters in digits.items()}


def _draws(name: str) -> bool:
    return not name.startswith(_UNUSED)
