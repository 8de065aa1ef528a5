"""Target models that run the layers of a model of Hugging Face's transformers, such as Janus or Chameleon.

The code of the model is not changed. Lantern supplies the key/value cache (`_Slots`), the mask, guidance, noise and,
where necessary, attention that takes the mask of a draft tree (`_grouped_attention`). The layers must take
`inputs_embeds`, a four-dimensional mask and `position_ids`.

Prompts are ids, int64 (..., num_text_tokens). Prompts with source pictures are ids with positions, int64 (...,
num_text_tokens, 4), from `lantern_models.glm_image`. A *position* of GLM-Image is a time, a row and a column, which its
rotary embedding reads. Positions of other models are integers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import override

from lantern.kv_cache import KVCache, prefix_mask
from lantern.models.config import OVERSHOOT, TargetConfig
from lantern.models.target import Target
from lantern.models.transformer import attend, group_mask
from lantern_models.families import FAMILIES, Parts

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

CACHE_NAMES = ("cache", "past_key_values")  # of the key/value cache in transformers from 5.24 on, and before
GROUPED_ATTENTION = "lantern_grouped"  # name under which transformers knows `_attend_grouped`


@dataclass(frozen=True)
class AdapterConfig(TargetConfig):
    """Sizes of a target whose layers are those of a transformers model, from which its layers can be made again.

    Attributes:
        layers_class: name of the transformers class of the layers, such as "LlamaModel".
        settings: keyword arguments from which the config of the layers is made.
        head_width: channels of the hidden layer of the output head. 0 if the head is one linear map.
        uses_grid_rope: whether positions are times, rows and columns, as in GLM-Image.
    """

    layers_class: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    head_width: int = 0
    uses_grid_rope: bool = False


class TransformersTarget(Target):
    """The target. `adapt` makes it from a loaded model, `empty_model` from a config alone.

    Args:
        config: sizes of the target.
        parts: layers, embedding and head of a loaded model. If `parts.copies_head` is False, the head is called as it
            is, in the dtype of the model. Without parts, the caller sets all weights later.

    Attributes:
        negative: ids of negative prompts and their mask, both (batch, num_text_tokens), which the caller may set for
            the next batch. Guidance then uses them in place of the null prompts of the config.
    """

    kind = "transformers_target"
    config_class = AdapterConfig
    wide = ("head.",)  # guidance, filters and acceptance start from float32 logits
    config: AdapterConfig
    layers: PreTrainedModel
    head: nn.Module
    positions: torch.Tensor | None

    def __init__(self, config: AdapterConfig, parts: Parts | None = None) -> None:
        super().__init__(config)
        parts = _empty_parts(config) if parts is None else parts
        self.layers, self.ids, self.ends, self.outputs = parts.layers, parts.ids, parts.ends, parts.outputs
        self._cache_name = cache_name(type(self.layers).forward)
        self.copies_head = parts.copies_head
        # A copy, so that the caller's model keeps its dtype.
        self.head = deepcopy(parts.head).float() if parts.copies_head else parts.head
        self.negative: tuple[torch.Tensor, torch.Tensor] | None = None
        num_tokens, dim = parts.tokens.shape
        self.token_embedding = nn.Embedding(num_tokens, dim, _weight=parts.tokens.detach(), _freeze=True)
        self.register_buffer("positions", grid_positions(config) if config.uses_grid_rope else None, persistent=False)

    def with_sizes(self, **sizes: Any) -> TransformersTarget:
        """Return a target for images of another size, which shares the weights of this target in memory.

        sizes are fields of the config: the result of `shape_fields`, `num_text_tokens`, and also `null_ids` if the null
        prompt states the size of the image.
        """
        # Modules keep parameters in dictionaries, which a shallow copy shares with the original.
        other = copy(self)
        other.config = replace(self.config, **sizes)
        other._buffers = dict(self._buffers)  # so that this target keeps its positions
        if self.positions is not None:
            other.positions = grid_positions(other.config).to(self.device)
        return other

    @property
    @override
    def is_head_linear(self) -> bool:
        # A head that is not copied may hold an adapter or be quantised, and so need not be linear.
        return self.copies_head and self.config.head_width == 0

    @override
    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        # A head that is not copied may return logits of words, too. Then `outputs` picks the image tokens.
        logits = self.head(hidden.float() if self.copies_head else hidden.to(self.dtype))
        return (logits if self.outputs is None else logits[..., self.outputs]).float()

    @override
    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        return self.layers.get_input_embeddings()(features)

    @override
    def null_prompt(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().null_prompt(mask) if self.negative is None else self.negative

    @property
    @override
    def cache_shape(self) -> tuple[int, int, int]:
        text = self.layers.config
        # Some configs lack head_dim, and others set it to None.
        head_dim = getattr(text, "head_dim", None)
        head_dim = text.hidden_size // text.num_attention_heads if head_dim is None else head_dim
        return text.num_hidden_layers, text.num_key_value_heads, head_dim

    @override
    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        ids, positions_of_prompt = _split(features, mask)
        x = torch.cat([self.embed_prompts(ids), self.token_embedding(codes)], dim=1)
        positions = self._positions_of(torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]))
        if positions_of_prompt is not None:
            # `positions` is a new tensor here: only models with a table of positions take source pictures.
            positions[:, :, : mask.shape[1]] = positions_of_prompt
        return self._call(x, positions, prefix_mask(mask, x.shape[1], x.dtype), None)

    @override
    def prefill(self, features: torch.Tensor, mask: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, KVCache]:
        ids, positions = _split(features.flatten(0, 1), mask.flatten(0, 1))
        if positions is None:
            return super().prefill(features, mask, num_slots)
        # The rest is the base class's prefill with other positions than those of the table.
        cache = self.make_cache(mask, num_slots)
        slots = torch.arange(mask.shape[2], device=mask.device).expand(mask.shape[1:])
        hidden = self._call(self.embed_prompts(ids), positions, cache.text_mask(mask), _Slots(cache, slots))
        return hidden.unflatten(0, mask.shape[:2]), cache

    @override
    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        # All branches have the same positions.
        rows = rotary_positions.repeat(len(x) // len(rotary_positions), 1)
        hidden = self._call(x, self._positions_of(rows), mask, _Slots(cache, slots))
        return hidden.view(-1, *slots.shape, x.shape[2])

    def _positions_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return positions of entries of a sequence, int64 (batch, n), or (3, batch, n) for GLM-Image."""
        return rows if self.positions is None else self.positions[:, rows]

    def _call(self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, past: _Slots | None) -> torch.Tensor:
        # Given positions and a four-dimensional mask, the layers compute neither from the length of the cache.
        known = {"inputs_embeds": x, "position_ids": positions, self._cache_name: past, "use_cache": past is not None}
        with _grouped_attention(self.layers.config) as groups:
            return self.layers(**known, attention_mask=group_mask(mask, groups)).last_hidden_state


def cache_name(function: Callable[..., object]) -> str:
    """Return which of `CACHE_NAMES` a function of transformers takes."""
    known = inspect.signature(function).parameters
    return next((name for name in CACHE_NAMES if name in known), CACHE_NAMES[-1])  # new versions take the old name too


def _split(features: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Split prompts into ids, int64 (batch, n), and positions, int64 (3, batch, n), or None without source pictures."""
    # Ids with positions have one more axis than the mask.
    if features.shape == mask.shape:
        return features, None
    return features[..., 0], features[..., 1:].movedim(-1, 0)


def adapt(model: PreTrainedModel, family: str, *, grid: int, **sizes: Any) -> TransformersTarget:
    """Make a target from a loaded transformers model, so that Lantern's methods can decode with it.

    Args:
        model: model of the class that the family names, in evaluation mode.
        family: a key of `FAMILIES`.
        grid: height of the image in codes. Its width is `columns`.
        sizes: further fields of `TargetConfig`. The model's config does not state num_text_tokens, which is 128 by
            default, and null_ids and null_filler, which guidance needs. columns, small_grid, small_columns and line_end
            override those of the family.

    Raises:
        ValueError: the model is in training mode, or its layers run on several devices.
    """
    row, text = FAMILIES[family], model.config.get_text_config()
    sizes = {"grid": grid, "num_text_tokens": 128, **row.target, **sizes}
    line_end = sizes.get("line_end")
    if line_end is not None:  # Emu3's config states it
        line_end = getattr(model.model.vocabulary_mapping, "eol_token_id", line_end)
    _check_mode(model)
    parts = row.take_apart(model, line_end)
    device = _device_of(model, parts)
    rope = getattr(text, "rope_parameters", None) or {}
    found = {
        "dim": text.hidden_size,
        "num_layers": text.num_hidden_layers,
        "num_heads": text.num_attention_heads,
        "num_kv_heads": text.num_key_value_heads,
        "ffn_width": text.intermediate_size,
        "norm_eps": text.rms_norm_eps,
        "rope_base": rope.get("rope_theta", 10000.0),
        "rope": "1d",
        "vocab_size": len(parts.tokens),
        "num_prompt_ids": text.vocab_size,
        "line_end": line_end,
        "layers_class": type(parts.layers).__name__,
        "settings": _settings(parts.layers.config),
        "head_width": parts.head[0].out_features if isinstance(parts.head, nn.Sequential) else 0,
        "uses_grid_rope": row.uses_grid_rope,
    }
    with device:  # `Module.to` would fail on offloaded weights
        # What the model states wins over `sizes`.
        return TransformersTarget(AdapterConfig(**{**sizes, **found}), parts)


def _check_mode(model: PreTrainedModel) -> None:
    # In training mode, dropout makes passes random, and gradient checkpointing ignores the cache.
    name = next((name for name, part in model.named_modules() if part.training), None)
    if name is not None:
        raise ValueError(
            f"all parts of the model must be in evaluation mode, got {name or type(model).__name__} in training mode; "
            "call model.eval()"
        )


def _device_of(model: PreTrainedModel, parts: Parts) -> torch.device:
    """Return the device on which the parts of a model run, or raise a ValueError if there are several."""
    devices = {parts.tokens.device, *_hook_devices(model)}
    for part in (*parts.layers.modules(), *parts.head.modules()):
        # Offloaded weights are on "meta" or the CPU between passes. Only the hook knows where they run.
        devices |= _hook_devices(part) or {weight.device for weight in part.parameters(recurse=False)}
    if len(devices) > 1 or torch.device("meta") in devices:
        raise ValueError(
            f"all layers must run on one device, got {', '.join(sorted(map(str, devices)))}; load the model with "
            "device_map={'': 0}, or with device_map='auto' and one visible GPU, which offloads layers to the CPU; if a "
            "pipeline moves the model (enable_model_cpu_offload), call model.to('cuda') first"
        )
    return devices.pop()


def _hook_devices(part: nn.Module) -> set[torch.device]:
    """Return the devices to which accelerate moves the weights and inputs of a part of a model, if it has hooks."""
    hook = getattr(part, "_hf_hook", None)
    # A SequentialHook has several hooks.
    found = (getattr(one, "execution_device", None) for one in getattr(hook, "hooks", (hook,)))
    devices = {torch.device(device) for device in found if device is not None}
    # "cuda" and "cuda:0" are different devices for `==`.
    return {torch.device(device.type, 0) if device == torch.device("cuda") else device for device in devices}


@contextmanager
def _grouped_attention(config: PreTrainedConfig) -> Iterator[int]:
    """Let a transformers model take the mask of a draft tree within a block. Yields `groups` for `group_mask`.

    "eager" is kept, and so is "sdpa" if no query heads share a key/value head. They take the mask as it is, so groups
    is 1.
    """
    groups, kind = config.num_attention_heads // config.num_key_value_heads, config._attn_implementation
    if kind == "eager" or (kind == "sdpa" and groups == 1):
        yield 1
        return
    from transformers import AttentionInterface  # an optional part of the package

    # Here, since a target that another process has pickled is not made by its constructor.
    AttentionInterface.register(GROUPED_ATTENTION, _attend_grouped)
    # Flash attention takes no mask, and "sdpa" copies shared keys and values for every query head.
    config._attn_implementation = GROUPED_ATTENTION
    try:
        yield groups
    finally:
        config._attn_implementation = kind


def _attend_grouped(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, **_: object
) -> tuple[torch.Tensor, None]:
    """Compute `attend` in the form in which transformers calls attention functions. There are no attention weights."""
    # query: (rows, heads, nodes, head_dim); result: (rows, nodes, heads, head_dim)
    return attend(query.transpose(1, 2), key, value, mask).flatten(2, 3), None


def grid_positions(config: TargetConfig) -> torch.Tensor:
    """Return the positions of each token for GLM-Image, int64 (3, num_text_tokens + image tokens + OVERSHOOT).

    All three numbers of a prompt token are its index. Two images follow: the preview, and the image itself. The code in
    row r and column c of an image that starts at p has time p, row p + r and column p + c. The next image starts at p
    plus the longer side: after 5 prompt tokens, a preview of 4 rows and 3 columns has p = 5, and the image has p = 9.
    """
    begin, parts = config.num_text_tokens, [torch.arange(config.num_text_tokens).expand(3, -1)]
    for height, width in (config.small_shape, config.shape):
        place = torch.arange(height * width)
        # max(width, 1): with source pictures there is no preview, 0 x 0 codes.
        parts.append(begin + torch.stack([torch.zeros_like(place), place // max(width, 1), place % max(width, 1)]))
        begin += max(height, width)
    # Drafts after the end of the last image get the position at which a further image would start.
    return torch.cat([*parts, torch.full((3, OVERSHOOT), begin)], dim=1)


def _settings(config: PreTrainedConfig) -> dict[str, object]:
    # Chameleon's config holds the whole vocabulary, which takes megabytes. The layers do not read it.
    return {name: {} if name == "vocabulary_map" else value for name, value in config.to_diff_dict().items()}


def _empty_parts(config: AdapterConfig) -> Parts:
    """Make the layers, input embedding and head that a config describes. The caller sets their weights."""
    import transformers  # an optional part of the package

    layers_class = getattr(transformers, config.layers_class)
    layers = layers_class(layers_class.config_class.from_dict(dict(config.settings)))
    if hasattr(layers, "vqmodel"):
        del layers.vqmodel  # Chameleon's layers hold its image tokenizer
    head: nn.Module = nn.Linear(config.dim, config.vocab_size, bias=False)
    if width := config.head_width:
        head = nn.Sequential(nn.Linear(config.dim, width), nn.GELU(), nn.Linear(width, config.vocab_size))
    return Parts(layers.eval(), torch.empty(config.vocab_size, config.dim), head)


class _Slots:
    """Cache in the eyes of transformers: it writes to given slots, (batch, nodes), of a `KVCache`."""

    # transformers reads these attributes of a cache.
    is_compileable, is_sliding = False, [False]

    def __init__(self, cache: KVCache, slots: torch.Tensor) -> None:
        self._layers = cache.layers
        self._flat_slots = cache.flat_slots(slots)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values, each (rows, key/value heads, nodes, head_dim), and return those of all used slots."""
        past = self._layers[layer_idx]
        both = torch.cat([keys, values], dim=1).transpose(1, 2)  # (rows, nodes, 2 * heads, head_dim)
        past.write(self._flat_slots, both.flatten(0, 1))
        return past.read()

    def get_seq_length(self, *_: object) -> int:
        # Read only to compute positions, which the model gets as `position_ids`.
        return 0
