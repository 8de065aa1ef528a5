"""Models with random weights and published sizes, for measuring time and memory of decoding steps without a download.

`lantern bench --random-weights` and `make gpu-check` use them. Hardly any draft of such a model is accepted, and its
images show nothing. Only time and memory of a step are realistic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch

from lantern.api import Model
from lantern.models.config import pick
from lantern.models.draft import DraftModel
from lantern.models.stored import StoredModel, empty_model
from lantern.models.target import Target, TargetConfig, TargetModel
from lantern.models.transformer import cast_weights
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern_models.adapter import AdapterConfig, TransformersTarget
from lantern_models.cards.card import HubFiles, ModelCard
from lantern_models.cards.published import CARDS, card_of_family
from lantern_models.checkpoints.pretrained import read_config
from lantern_models.checkpoints.weight_files import PIPELINE_MODEL, WeightFile
from lantern_models.families import FAMILIES, family_of
from lantern_models.images.vq16 import VQ16, VQ16Config
from lantern_models.sizes import chameleon_draft, shape_fields, shape_of

PROMPT_TOKENS = 20  # number of tokens of a random prompt
# Arguments of the config class of transformers -> fields of a target.
FIELDS = {
    "hidden_size": "dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "ffn_width",
    "vocab_size": "num_prompt_ids",
}
# Sizes for trying the code. GLM-Image's rotary table needs 128 channels per head.
TINY = {"dim": 128, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1, "ffn_width": 64, "grid": 4, "codebook_size": 64}


class RandomPrompts:
    """Text encoder that replaces every text by PROMPT_TOKENS random tokens."""

    def __init__(self, config: TargetConfig) -> None:
        self.config = config

    def encode(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return left-padded prompts, and the mask (texts, tokens) that is False at padding.

        Prompts are ids, int64 (texts, tokens), if the target reads ids, else features, float32 (texts, tokens,
        caption_dim).
        """
        num_tokens = self.config.num_text_tokens
        generator = torch.Generator().manual_seed(0)
        mask = (torch.arange(num_tokens) >= num_tokens - PROMPT_TOKENS).expand(len(texts), -1)
        if self.config.num_prompt_ids:
            return torch.randint(self.config.num_prompt_ids, mask.shape, generator=generator), mask
        features = torch.randn(len(texts), num_tokens, self.config.caption_dim, generator=generator)
        return features * mask[..., None], mask


def random_model(source: str, device: torch.device, dtype: torch.dtype, *, is_tiny: bool = False) -> Model:
    """Return a model with the sizes of a published one.

    Args:
        source: name, family or hub id of a published model. Or the folder of a transformers model, of which only
            config.json is read.
        is_tiny: whether to make all sizes tiny, so that code can be tried quickly.
    """
    path = next((path for path in _settings_paths(Path(source)) if path.is_file()), None)
    card, sizes = (find_card(source), {}) if path is None else _read_sizes(path)
    config = target_config(card, **{**sizes, **(tiny_sizes(card) if is_tiny else {})})
    models = prepare(random_models(config, device, dtype))
    # A small tokenizer with the published number of codes, since its time is not measured: 32 channels, one level.
    of_images = VQ16Config(config.grid, config.num_codes, card.images.code_dim, 32, (1,), 1, 32)
    tokenizer = VQ16(of_images).eval().to(device)
    # As published: draft trees, distance between codes, and sampling settings.
    parts = {**card.trees, "neighbours": card.neighbours}
    return Model(models, tokenizer, RandomPrompts(config), SamplingConfig(**card.sampling), parts)


def find_card(source: str) -> ModelCard:
    """Return the card of a published model, or raise a ValueError. `source` is its name, family or hub id."""
    if source in CARDS:
        return CARDS[source]
    for card in CARDS.values():
        target = card.files["target"]
        if isinstance(target, HubFiles) and source in (card.prompts.encoder, target.repo):
            return card
    raise ValueError(
        f"a model with random weights must be one of {', '.join(CARDS)}, its hub id, or the folder of a model of "
        f"transformers (with config.json), got {source!r}; without --random-weights, other models are measured too"
    )


def _settings_paths(folder: Path) -> list[Path]:
    # A pipeline has its target in a subfolder.
    return [folder / place / "config.json" for place in ("", PIPELINE_MODEL)]


def tiny_sizes(card: ModelCard) -> dict[str, int]:
    """Return the `sizes` of `target_config` for a tiny model."""
    return {**TINY, "num_prompt_ids": 64} if card.prompts.encoder in FAMILIES else TINY


def _read_sizes(path: Path) -> tuple[ModelCard, dict[str, Any]]:
    """Return the card of a published model of the same family, and arguments of `target_config`."""
    weights = WeightFile(path, {}, json.loads(path.read_text(encoding="utf-8")))
    if weights.layout != "transformers":
        raise ValueError(f"{path} names no class of transformers that generates images; name another folder")
    card = cast("ModelCard", card_of_family(family_of(cast("str", weights.model_class))))
    config = read_config(weights)
    text = config.get_text_config()
    sizes = {name: getattr(text, theirs) for theirs, name in FIELDS.items()}
    of_images = config.vq_config
    # The name of this field differs between families.
    num_codes = getattr(of_images, "num_embeddings", None) or of_images.codebook_size
    return card, {**sizes, "codebook_size": num_codes, "settings": text.to_diff_dict()}


def target_config(
    card: ModelCard,
    *,
    grid: int | None = None,
    codebook_size: int | None = None,
    settings: Mapping[str, object] | None = None,
    **sizes: int,
) -> TargetConfig:
    """Return the config of a target with the sizes of a published one.

    `sizes` are fields of a `TargetConfig` that replace those of the card. `settings` are arguments of the config class
    of transformers. By default they follow from the sizes.
    """
    sizes_of_images = {"grid": grid, "codebook_size": codebook_size}
    images = replace(card.images, **{name: size for name, size in sizes_of_images.items() if size is not None})
    row = FAMILIES.get(card.prompts.encoder)
    # Not a model of transformers, so the card describes all layers.
    if row is None:
        return replace(card, images=images, target={**card.target, **sizes}).target_config()
    shape = shape_fields(shape_of(images.grid))
    # Later entries win: without num_kv_heads in card or sizes, every query head has its own keys.
    known: dict[str, Any] = {"num_kv_heads": card.target["num_heads"], **shape, **card.target, **sizes}
    return AdapterConfig(
        **known,
        vocab_size=images.codebook_size + ("line_end" in row.target),  # one more token, if the family has line ends
        num_text_tokens=128,  # prompts are padded to this length
        # Which ids they are makes no difference to the time of a step.
        null_ids=() if row.uses_grid_rope else (1, 2),
        null_filler=3 if row.prompt.filler else None,
        layers_class=row.layers_class,
        # Chameleon's map of the vocabulary takes megabytes, and the layers do not read it.
        settings={**(settings or _layer_settings(card, known)), "vocabulary_map": {}},
        head_width=known["dim"] if row.target.get("has_mlp_head") else 0,
        uses_grid_rope=row.uses_grid_rope,
    )


def _layer_settings(card: ModelCard, sizes: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings of a published model's layers that differ from the defaults of their config class."""
    import transformers

    row = FAMILIES[card.prompts.encoder]
    known = {theirs: sizes[name] for theirs, name in FIELDS.items()}
    known |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # in any vocabulary
    if row.uses_grid_rope:  # from GLM-Image's config.json; the class has other defaults
        known["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    return getattr(transformers, row.layers_class).config_class(**known).to_diff_dict()


def random_models(
    config: TargetConfig, device: torch.device, dtype: torch.dtype, *, has_own_layers: bool = False
) -> DecodingModels:
    """Return a target and a draft model with random weights. Call `prepare` on them before decoding.

    If a draft model was published for the target, the random one has its size. With `has_own_layers`, Lantern's layers
    replace those of transformers.
    """
    torch.manual_seed(0)
    target: Target
    if isinstance(config, AdapterConfig) and not has_own_layers:
        target = _random(TransformersTarget, config, dtype, device)
    else:
        target = _random(TargetModel, pick(TargetConfig, asdict(config)), dtype, device)
    return DecodingModels(target, _random_draft(target, dtype))


def prepare(models: DecodingModels) -> DecodingModels:
    """Call `prepare_for_decoding` of all models, which changes their weights in place, and return the models."""
    for model in (models.target, models.draft, *models.parts.values()):
        if isinstance(model, StoredModel):
            model.prepare_for_decoding()
    return models


def _random_draft(target: Target, dtype: torch.dtype) -> DraftModel | None:
    config = target.config
    # The target first generates a smaller preview of the image, which draft models do not support.
    if config.small_grid:
        return None
    if config.has_qk_norm:
        return _random(DraftModel, chameleon_draft(config), dtype, target.device)
    draft = cast_weights(DraftModel.from_target(target, 0).eval(), dtype)  # 0 is the seed
    # LlamaGen's published draft models also attend to padded prompt positions.
    draft.config = replace(draft.config, masks_text_padding=bool(config.num_prompt_ids))
    return draft


def _random(cls: type[Any], config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """Make the weights in `dtype` at once, so that no float32 copy takes memory."""
    model = empty_model(cls, config, dtype, device).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Vectors are mostly scales of norms: 1 keeps the size of activations.
            parameter.fill_(1) if parameter.ndim == 1 else parameter.normal_(std=0.02)
    return model
