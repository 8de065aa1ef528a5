"""Target models that run the layers of a model of Hugging Face's transformers, such as Janus or Chameleon.

The code of the model is not changed. Lantern supplies the key/value cache, draft trees, guidance and noise.
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

from lantern.attention_mask import prefix_mask
from lantern.kv_cache import KVCache
from lantern.models.config import OVERSHOOT, TargetConfig
from lantern.models.families import FAMILIES, Parts
from lantern.models.sources import codes_at_target
from lantern.models.target import Target
from lantern.models.transformer import attend, group_mask

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

CACHE_NAMES = ("cache", "past_key_values")  # of the key/value cache in transformers from 5.24 on, and before
GROUPED_ATTENTION = "lantern_grouped"  # name under which transformers knows `_attend_grouped`


@dataclass(frozen=True)
class AdapterConfig(TargetConfig):
    """Sizes of a target whose layers are those of a transformers model.

    Attributes:
        layers_class: name of the transformers class of the layers, such as "LlamaModel".
        settings: keyword arguments from which the config of the layers is made.
        head_width: channels of the hidden layer of the output head. 0 if the head is one linear map.
        uses_grid_rope: whether the rotary embedding rotates channels by three numbers per token: time, row and column,
            as in GLM-Image.
    """

    layers_class: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    head_width: int = 0
    uses_grid_rope: bool = False


class TransformersTarget(Target):
    """A target that runs a causal language model of transformers.

    The layers of the model must take `inputs_embeds`, a four-dimensional mask and `position_ids`.

    Prompts are ids, int64 (..., num_text_tokens). Prompts may contain source pictures, which the model edits. They are
    then given as ids with positions, int64 (..., num_text_tokens, 4), see `lantern.models.sources`.

    Args:
        config: sizes of the target. Prompts are token ids.
        parts: layers, embedding and head of a loaded model. If `parts.copies_head` is True, the head is copied and cast
            to float32. Otherwise the head is called as it is, in the dtype of the model. None makes parts with random
            weights, which the caller replaces later.

    Attributes:
        negative: ids of negative prompts and their mask, both (batch, num_text_tokens), which the caller may set for
            the next batch. Guidance then uses them in place of the null prompts that the config states. None if not
            set.
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
        self.head = deepcopy(parts.head).float() if parts.copies_head else parts.head
        self.negative: tuple[torch.Tensor, torch.Tensor] | None = None
        num_tokens, dim = parts.tokens.shape
        self.token_embedding = nn.Embedding(num_tokens, dim, _weight=parts.tokens.detach(), _freeze=True)
        self.register_buffer("positions", grid_positions(config) if config.uses_grid_rope else None, persistent=False)

    def with_sizes(self, **sizes: Any) -> TransformersTarget:
        """Return a target for images of another size, which shares the weights of this target in memory.

        Args:
            sizes: fields of the config that change: the result of `shape_fields`, `num_text_tokens`, and also
                `null_ids` if the null prompt states the size of the image.
        """
        other = copy(self)
        other.config = replace(self.config, **sizes)
        other._buffers = dict(self._buffers)  # so that this target keeps its positions
        if self.positions is not None:
            other.positions = grid_positions(other.config).to(self.device)
        return other

    @property
    def is_head_linear(self) -> bool:
        """True if the head is linear, so that guidance may be applied before the head instead of after it."""
        return self.copies_head and self.config.head_width == 0

    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the logits of hidden states, see `Target.read_logits`."""
        logits = self.head(hidden.float() if self.copies_head else hidden.to(self.dtype))
        return (logits if self.outputs is None else logits[..., self.outputs]).float()

    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        """Embed the ids of prompts, see `Target.embed_prompts`."""
        return self.layers.get_input_embeddings()(features)

    def null_prompt(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the negative prompts of the caller, or else the null prompts, see `Target.null_prompt`."""
        return super().null_prompt(mask) if self.negative is None else self.negative

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Numbers of layers and of key/value heads, and channels of a head, see `Target.cache_shape`."""
        text = self.layers.config
        head_dim = getattr(text, "head_dim", None)
        head_dim = text.hidden_size // text.num_attention_heads if head_dim is None else head_dim
        return text.num_hidden_layers, text.num_key_value_heads, head_dim

    def forward(self, features: torch.Tensor, mask: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Compute the hidden states of whole images, see `Target.forward`."""
        ids, positions_of_prompt = _split(features, mask)
        x = torch.cat([self.embed_prompts(ids), self.token_embedding(codes)], dim=1)
        positions = self._positions_of(torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]))
        if positions_of_prompt is not None:
            positions[:, :, : mask.shape[1]] = positions_of_prompt
        return self._call(x, positions, prefix_mask(mask, x.shape[1], x.dtype), None)

    def prefill(self, features: torch.Tensor, mask: torch.Tensor, num_slots: int) -> tuple[torch.Tensor, KVCache]:
        """Run prompts, which may contain source pictures, and fill a new cache, see `Target.prefill`."""
        ids, positions = _split(features.flatten(0, 1), mask.flatten(0, 1))
        if positions is None:
            return super().prefill(features, mask, num_slots)
        cache = self.make_cache(mask, num_slots)
        slots = torch.arange(mask.shape[2], device=mask.device).expand(mask.shape[1:])
        hidden = self._call(self.embed_prompts(ids), positions, cache.text_mask(mask), _Slots(cache, slots))
        return hidden.unflatten(0, mask.shape[:2]), cache

    def source_codes(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
        """Return the codes of the first source picture in each prompt, see `Target.source_codes`."""
        return None if features.shape == mask.shape else codes_at_target(features, mask, self.config.shape)

    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Run the layers on the embeddings of new tokens, see `Target.run_nodes`."""
        rows = rotary_positions.repeat(len(x) // len(rotary_positions), 1)
        hidden = self._call(x, self._positions_of(rows), mask, _Slots(cache, slots))
        return hidden.view(-1, *slots.shape, x.shape[2])

    def _positions_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the `position_ids` that the layers read at some positions in the sequence.

        Args:
            rows: positions in the sequence, int64 (batch, n).

        Returns:
            `rows` itself, or for GLM-Image the time, row and column of each position, int64 (3, batch, n).
        """
        return rows if self.positions is None else self.positions[:, rows]

    def _call(self, x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, past: _Slots | None) -> torch.Tensor:
        known = {"inputs_embeds": x, "position_ids": positions, self._cache_name: past, "use_cache": past is not None}
        with _grouped_attention(self.layers.config) as groups:
            return self.layers(**known, attention_mask=group_mask(mask, groups)).last_hidden_state


def cache_name(function: Callable[..., object]) -> str:
    """Return the name under which a function of transformers takes the key/value cache."""
    known = inspect.signature(function).parameters
    return next((name for name in CACHE_NAMES if name in known), CACHE_NAMES[-1])  # new versions take the old name too


def _split(features: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Split prompts into ids, int64 (batch, n), and positions (time, row and column), int64 (3, batch, n).

    Only prompts with source pictures state positions. For other prompts the positions are None.

    Args:
        features: ids, int64 (batch, n), or ids and positions, int64 (batch, n, 4).
        mask: True for prompt tokens, bool (batch, n). Only its shape is read.
    """
    if features.shape == mask.shape:
        return features, None
    return features[..., 0], features[..., 1:].movedim(-1, 0)


def adapt(model: PreTrainedModel, family: str, *, grid: int, **sizes: Any) -> TransformersTarget:
    """Make a target from a loaded transformers model, so that Lantern's methods can decode with it.

    Args:
        model: model of the class that the family names.
        family: name of the family of models, a key of `FAMILIES`.
        grid: height of the image in codes, the field `grid` of `TargetConfig`. Its width is `columns`.
        sizes: further fields of `TargetConfig`. num_text_tokens, null_ids and null_filler must be given, because the
            model's config does not state them. columns, small_grid, small_columns and line_end override those of the
            family.

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
        return TransformersTarget(AdapterConfig(**{**sizes, **found}), parts)


def _check_mode(model: PreTrainedModel) -> None:
    """Check that no part of a model is in training mode.

    In training mode, dropout makes passes random, and gradient checkpointing makes transformers ignore the cache.

    Raises:
        ValueError: a part is in training mode.
    """
    name = next((name for name, part in model.named_modules() if part.training), None)
    if name is not None:
        raise ValueError(
            f"all parts of the model must be in evaluation mode, got {name or type(model).__name__} in training mode; "
            "call model.eval()"
        )


def _device_of(model: PreTrainedModel, parts: Parts) -> torch.device:
    """Return the device on which the parts of a model run.

    Offloaded parts run on the device to which accelerate moves their weights.

    Args:
        model: the model.
        parts: layers, input embedding and head of the model.

    Raises:
        ValueError: the parts run on several devices, or weights were never loaded.
    """
    devices = {parts.tokens.device, *_hook_devices(model)}
    for part in (*parts.layers.modules(), *parts.head.modules()):
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
    found = (getattr(one, "execution_device", None) for one in getattr(hook, "hooks", (hook,)))
    devices = {torch.device(device) for device in found if device is not None}
    return {torch.device(device.type, 0) if device == torch.device("cuda") else device for device in devices}


@contextmanager
def _grouped_attention(config: PreTrainedConfig) -> Iterator[int]:
    """Context manager in whose block the attention of a transformers model takes the mask of a draft tree.

    The implementation of attention is kept if it is "eager", or "sdpa" without shared key/value heads. Otherwise
    `_attend_grouped` replaces it, since flash attention does not take the mask, and "sdpa" copies shared keys and
    values for every query head.

    Args:
        config: config of the layers. It is changed within the block.

    Yields:
        Number of query heads per key/value head, for the argument `groups` of `group_mask`. 1 if the attention of
            transformers is kept.
    """
    groups, kind = config.num_attention_heads // config.num_key_value_heads, config._attn_implementation
    if kind == "eager" or (kind == "sdpa" and groups == 1):
        yield 1
        return
    from transformers import AttentionInterface  # an optional part of the package

    # Here, since a target that another process has pickled is not made by its constructor.
    AttentionInterface.register(GROUPED_ATTENTION, _attend_grouped)
    config._attn_implementation = GROUPED_ATTENTION
    try:
        yield groups
    finally:
        config._attn_implementation = kind


def _attend_grouped(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, **_: object
) -> tuple[torch.Tensor, None]:
    """Compute attention by `attend`, in the form in which transformers calls attention functions.

    Args:
        module: the attention layer.
        query: (branches * batch, heads, nodes, head_dim).
        key: (branches * batch, key/value heads, slots, head_dim).
        value: shaped like `key`.
        mask: additive mask from `group_mask`, (branches * batch, 1, query heads per key/value head * nodes, slots).

    Returns:
        (attended values, (branches * batch, nodes, heads, head_dim); None in place of attention weights).
    """
    return attend(query.transpose(1, 2), key, value, mask).flatten(2, 3), None


def grid_positions(config: TargetConfig) -> torch.Tensor:
    """Return the time, row and column of each token, which GLM-Image's rotary embedding reads.

    For a prompt token, all three numbers are its position. Two images follow: a smaller preview, unless the prompt has
    source pictures, and the image itself. Let p be the start of an image. The code in row r and column c of this image
    has time p, row p + r and column p + c. For example, after a prompt of 5 tokens, p of the first image is 5. If the
    first image has 4 rows and 3 columns, p of the second image is 9: the longer side is added. Drafts may have
    positions after the end of the last image. All three of their numbers are the p that a further image would have.

    Returns:
        Times, rows and columns, int64 (3, num_text_tokens + image tokens + OVERSHOOT).
    """
    begin, parts = config.num_text_tokens, [torch.arange(config.num_text_tokens).expand(3, -1)]
    for height, width in (config.small_shape, config.shape):
        place = torch.arange(height * width)
        parts.append(begin + torch.stack([torch.zeros_like(place), place // max(width, 1), place % max(width, 1)]))
        begin += max(height, width)
    return torch.cat([*parts, torch.full((3, OVERSHOOT), begin)], dim=1)


def _settings(config: PreTrainedConfig) -> dict[str, object]:
    """Return the keyword arguments from which a transformers config can be made again.

    Chameleon's config holds the whole vocabulary of the tokenizer, which takes megabytes. It is left out, since the
    layers do not read it.
    """
    return {name: {} if name == "vocabulary_map" else value for name, value in config.to_diff_dict().items()}


def _empty_parts(config: AdapterConfig) -> Parts:
    """Make the layers, input embedding and head that a config describes. Their weights are random until loaded."""
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
    """Adapter through which a transformers model writes its keys and values into a `KVCache`, and reads them.

    Args:
        cache: the cache.
        slots: indices of the cache entries for the new tokens, int64 (batch, nodes).
    """

    is_compileable, is_sliding = False, [False]

    def __init__(self, cache: KVCache, slots: torch.Tensor) -> None:
        self._layers = cache.layers
        self._flat_slots = cache.flat_slots(slots)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of new tokens, and return those of all used slots.

        Args:
            keys: (branches * batch, key/value heads, nodes, head_dim).
            values: shaped like `keys`.
            layer_idx: index of the layer.

        Returns:
            (keys, values) of all used slots, each (branches * batch, key/value heads, slots, head_dim).
        """
        past = self._layers[layer_idx]
        both = torch.cat([keys, values], dim=1).transpose(1, 2)  # (rows, nodes, 2 * heads, head_dim)
        past.write(self._flat_slots, both.flatten(0, 1))
        return past.read()

    def get_seq_length(self, *_: object) -> int:
        """Return 0. The model gets `position_ids`, and so does not compute positions from this length."""
        return 0
