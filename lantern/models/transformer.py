"""The transformer layer of target and draft models, as in LlamaGen and Llama.

It has pre-norm attention with rotary embeddings, and a SwiGLU feed-forward network. Two classes run it with the same
weights. `Layer` runs whole sequences and is differentiable. `DecodingLayer` runs a few new tokens, the nodes of a draft
tree, with a `KVCache`. It changes the hidden states in place.

Axes: rows = batch times guidance branches; nodes = new tokens of a pass; slots = entries of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from lantern import fused
from lantern.kv_cache import LayerCache
from lantern.models.config import OVERSHOOT, DraftConfig, TargetConfig
from lantern.models.linear import PreparedLinear, prepare_linears

Model = TypeVar("Model", bound=nn.Module)

MANY_ROWS = 16  # number of rows from which `attend` uses batched products on a CPU


def rotary_table(
    num_text_tokens: int, lines: tuple[int, int], head_dim: int, base: float, kind: str = "2d"
) -> torch.Tensor:
    """Return the rotary table, from which queries and keys of a prompt and an image are rotated.

    Each entry is a complex number that rotates a pair of neighbouring channels. Kind "1d", as in language models,
    rotates all channels by the position in the sequence. Kind "2d" rotates the first half of the channels by the row in
    the image, and the second half by the column. The entries of kind "2d" at prompt positions are zeros, as in
    LlamaGen. Queries and keys of the prompt thus become zero, so that attention among prompt positions is uniform.

    Args:
        num_text_tokens: number of prompt positions.
        lines: height and width of the image, in tokens.
        head_dim: channels of a head.
        base: base of the rotary frequencies, such as 10,000.
        kind: "2d" or "1d".

    Returns:
        complex64 (num_text_tokens + image tokens + OVERSHOOT, head_dim / 2). The last OVERSHOOT entries are zeros, for
        drafts after the end of the image.

    Source: LlamaGen autoregressive/models/gpt.py, precompute_freqs_cis_2d.
    """
    half, (height, width) = head_dim // 2, lines
    if kind == "1d":
        frequencies = base ** (-torch.arange(half, dtype=torch.float32) / half)
        positions = torch.arange(num_text_tokens + height * width + OVERSHOOT, dtype=torch.float32)
        return torch.polar(torch.ones(()), torch.outer(positions, frequencies))
    frequencies = base ** (-torch.arange(0, half, 2, dtype=torch.float32) / half)  # (head_dim / 4)
    angles = torch.outer(torch.arange(max(lines), dtype=torch.float32), frequencies)  # (..., head_dim / 4)
    by_row = angles[:height, None, :].expand(height, width, -1)
    by_column = angles[None, :width, :].expand(height, width, -1)
    image_rows = torch.polar(torch.ones(()), torch.cat([by_row, by_column], dim=-1).reshape(-1, half))
    outside = torch.zeros(num_text_tokens + OVERSHOOT, half, dtype=torch.complex64)
    return torch.cat([outside[:num_text_tokens], image_rows, outside[num_text_tokens:]])


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32.

    On a CPU, x is normalised, cast back to its dtype, and multiplied by the weight, as in LlamaGen. On a GPU, one
    kernel multiplies by the weight first and casts afterwards. Outputs of CPU and GPU in bfloat16 therefore differ by
    rounding.

    Args:
        dim: size of the last axis.
        eps: number that is added to the mean square.

    Attributes:
        weight: factor of each channel, or None after `fold_into` has moved it.
        floor: sqrt(dim * eps), an argument of `divide_by_norm`.
    """

    weight: nn.Parameter | None
    floor: torch.Tensor

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.register_buffer("floor", torch.tensor((dim * eps) ** 0.5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x, (..., dim)."""
        if self.weight is None:
            return divide_by_norm(x, self.floor)
        if x.device.type == "cuda" and x.dtype == self.weight.dtype:
            return F.rms_norm(x, (self.dim,), self.weight, self.eps)
        return F.rms_norm(x.float(), (self.dim,), None, self.eps).to(x.dtype) * self.weight

    def function(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a plain function that applies this norm. Calling it is faster than calling a module."""
        return self.forward if self.weight is not None else partial(divide_by_norm, floor=self.floor)

    def fold_into(self, linear: nn.Linear) -> None:
        """Move the weight of this norm into the linear map after it, so that decoding has fewer operations.

        The columns of the linear map are multiplied by the weight. The factor sqrt(dim) of the norm is moved, too. Norm
        and linear map together still have the same output.

        Args:
            linear: the linear map that reads the output of this norm, changed in place.

        Raises:
            ValueError: the norm has been folded before.
        """
        if self.weight is None:
            raise ValueError("a norm can be folded once only, got one without a weight; load the model again")
        linear.weight.data = linear.weight.data * (self.weight.data * self.dim**0.5)
        self.weight = None


def divide_by_norm(x: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Apply an RMS norm without its weight and without the factor sqrt(dim).

    `RMSNorm.fold_into` moves the weight and this factor into the next linear map. On a CPU, the remaining division
    takes half the time of F.rms_norm, which runs eight kernels there.

    Args:
        x: (..., dim).
        floor: sqrt(dim * eps).

    Returns:
        x / hypot(norm of x, floor), (..., dim).
    """
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(floor)


class HeadNorm(nn.Module):
    """Layer norm of the queries and keys of each attention head, before the rotary embedding, as in Chameleon.

    Args:
        num_heads: number of query heads plus key heads.
        head_dim: channels of a head.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_heads, head_dim))  # query heads, then key heads
        self.bias = nn.Parameter(torch.zeros(num_heads, head_dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis of x, (..., query heads + key heads, head_dim)."""
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight + self.bias


class Layer(nn.Module):
    """Transformer decoder layer, as in Llama: attention, then a SwiGLU feed-forward network.

    Args:
        config: sizes of the model. dim / num_heads must be divisible by 4.
        has_attention_norm: whether there is a norm before the attention. EAGLE's draft model has none.
    """

    def __init__(self, config: TargetConfig | DraftConfig, *, has_attention_norm: bool = True) -> None:
        super().__init__()
        dim, eps, ffn_hidden = config.dim, config.norm_eps, config.ffn_hidden
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
        self.head_dim, num_turned = dim // self.num_heads, self.num_heads + self.num_kv_heads
        self.attention_norm = RMSNorm(dim, eps) if has_attention_norm else None
        self.qkv = nn.Linear(dim, (num_turned + self.num_kv_heads) * self.head_dim, bias=False)
        self.qk_norm = HeadNorm(num_turned, self.head_dim) if config.has_qk_norm else None
        self.attention_out = nn.Linear(dim, dim, bias=False)
        self.ffn_norm = RMSNorm(dim, eps)
        self.gate_up = nn.Linear(dim, 2 * ffn_hidden, bias=False)
        self.down = nn.Linear(ffn_hidden, dim, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        rotary: torch.Tensor,
        mask: torch.Tensor | None,
        append: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> torch.Tensor:
        """Run the layer on whole sequences, for training and measurements. The result is differentiable.

        Args:
            x: (sequences, positions, dim).
            rotary: complex64, broadcastable to (sequences, positions, query heads + key heads, head_dim / 2).
            mask: additive attention mask, (sequences or 1, 1, positions, keys).
            append: function that takes the keys and values of x, each (sequences, positions, heads, head_dim). It
                returns all keys and values to which x attends. None lets x attend to itself only.

        Returns:
            Hidden states, (sequences, positions, dim).
        """
        rows, nodes, dim = x.shape
        normed = x if self.attention_norm is None else self.attention_norm(x)
        heads, kv_heads = self.num_heads, self.num_kv_heads
        both, value = self.qkv(normed).unflatten(-1, (-1, self.head_dim)).tensor_split([heads + kv_heads], dim=2)
        if self.qk_norm is not None:
            both = self.qk_norm(both)
        turned = torch.view_as_complex(both.float().unflatten(-1, (-1, 2))) * rotary
        query, key = torch.view_as_real(turned).to(x.dtype).flatten(-2).tensor_split([heads], dim=2)
        if append is not None:
            key, value = append(key, value)
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=heads != kv_heads)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(rows, nodes, dim))
        gate, up = self.gate_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class DecodingLayer:
    """A `Layer` for decoding, which runs few kernels and calls no modules.

    Modules look up their attributes in each call, which would take a quarter of the time of a short pass. The object
    keeps references to the weights of the layer. If these weights are cast, moved or changed by `fold_into`, create a
    new object.

    Args:
        layer: the layer.
    """

    def __init__(self, layer: Layer) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
        self.attention_norm = layer.attention_norm and layer.attention_norm.function()
        self.ffn_norm = layer.ffn_norm.function()
        self.qk_norm = layer.qk_norm
        parts = (layer.qkv, layer.attention_out, layer.gate_up, layer.down)
        parts = (part if isinstance(part, PreparedLinear) else PreparedLinear(part, is_view=True) for part in parts)
        self.linears = [*parts]
        self.is_fused = fused.is_usable(layer.ffn_norm.floor.device)
        self.kernels: dict[int, tuple] = {}  # number of rows -> the four kernels for it

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "kernels": {}}  # they are closures, which pickle does not write

    def __call__(
        self, x: torch.Tensor, rotary: torch.Tensor, mask: torch.Tensor, past: LayerCache, flat_slots: torch.Tensor
    ) -> None:
        """Replace x in place by the output of the layer. This is not differentiable.

        Args:
            x: hidden states of the new tokens, (branches * batch * nodes, dim).
            rotary: complex64 (batch * nodes, 1, head_dim / 2), the same for both guidance branches.
            mask: additive attention mask from `group_mask`.
            past: cache of this layer, into which the keys and values of the new tokens are written.
            flat_slots: slots of the new keys and values, from `KVCache.flat_slots`.
        """
        dim, heads, kv_heads, head_dim = x.shape[1], self.num_heads, self.num_kv_heads, self.head_dim
        make_qkv, add_attention_, make_gate_up, add_ffn_ = self.kernels.get(len(x)) or self._choose_kernels(len(x))
        qkv = make_qkv(x if self.attention_norm is None else self.attention_norm(x))
        turned = qkv[:, : (heads + kv_heads) * head_dim]
        if self.qk_norm is not None:
            both = turned.view(-1, heads + kv_heads, head_dim)
            both.copy_(self.qk_norm(both))
        if self.is_fused:
            fused.rotate_and_write(qkv, rotary, past.vectors, flat_slots)
        else:
            apply_rotary_(turned.view(-1, rotary.shape[0], heads + kv_heads, rotary.shape[2], 2), rotary)
            past.write(flat_slots, qkv[:, dim:].view(len(qkv), -1, head_dim))
        query = qkv[:, :dim].view(mask.shape[0], -1, heads, head_dim)
        add_attention_(x, attend(query, *past.read(), mask).reshape(x.shape))
        gate_up = make_gate_up(self.ffn_norm(x))
        if self.is_fused:
            product = fused.silu_times(gate_up)
        else:
            gate, up = gate_up.chunk(2, dim=1)
            product = F.silu(gate).mul_(up)
        add_ffn_(x, product)

    def _choose_kernels(self, num_rows: int) -> tuple:
        (qkv, _), (_, attention_out), (gate_up, _), (_, down) = (part.kernels(num_rows) for part in self.linears)
        chosen = qkv, attention_out, gate_up, down
        if not torch.compiler.is_compiling():  # torch.compile would compile again if this dict changed
            self.kernels[num_rows] = chosen
        return chosen


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute attention of new tokens to a cache, with an additive mask.

    Several query heads may share a key/value head (grouped-query attention). Their queries are then put one after the
    other along the axis of the new tokens, so that one query head per key/value head remains. Every attention kernel
    supports this layout, and keys and values are read only once.

    If every row has one new token, and there are many rows, a CPU in float32 uses two batched products. They take a
    third of the time of the fused kernel.

    Args:
        query: (rows, nodes, heads, head_dim), with rows = branches * batch and nodes = new tokens.
        keys: (rows, key/value heads, slots, head_dim).
        values: shaped like `keys`.
        mask: additive mask from `group_mask`.

    Returns:
        (rows, nodes, key/value heads, query heads per key/value head, head_dim). It may be a view.
    """
    rows, nodes, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    groups = heads // kv_heads
    query = query.transpose(1, 2)
    if groups > 1:
        query = query.reshape(rows, kv_heads, groups * nodes, head_dim)
    if query.device.type == "cpu" and query.dtype == torch.float32 and query.shape[2] == 1 and rows >= MANY_ROWS:
        query = query.flatten(0, 1) * head_dim**-0.5
        weights = torch.bmm(query, keys.flatten(0, 1).transpose(1, 2)).view(rows, heads, 1, -1)
        weights = weights.add_(mask).softmax(-1).flatten(0, 1)
        attended = torch.bmm(weights, values.flatten(0, 1)).view(rows, heads, 1, -1)
    else:
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return attended.view(rows, kv_heads, groups, nodes, head_dim).permute(0, 3, 1, 2, 4)


def group_mask(mask: torch.Tensor, groups: int) -> torch.Tensor:
    """Repeat an attention mask for all query heads that share a key/value head, as `attend` needs it.

    Args:
        mask: additive mask, (rows, 1, nodes, slots), with rows = branches * batch and nodes = new tokens.
        groups: number of query heads per key/value head.

    Returns:
        (rows, 1, groups * nodes, slots).
    """
    return mask if groups == 1 else mask.repeat(1, 1, groups, 1)


def apply_rotary_(x: torch.Tensor, rotary: torch.Tensor) -> None:
    """Apply a rotary embedding in place, by rotating pairs of channels.

    Args:
        x: pairs of channels of queries or keys, (..., head_dim / 2, 2).
        rotary: rotations, complex64, broadcastable to (..., head_dim / 2).
    """
    if x.dtype == torch.float32:
        torch.view_as_complex(x).mul_(rotary)
    else:
        x.copy_(torch.view_as_real(torch.view_as_complex(x.float()) * rotary))


def gather_rotary(table: torch.Tensor, rotary_positions: torch.Tensor) -> torch.Tensor:
    """Return the rotations of new tokens from a rotary table.

    Args:
        table: complex64 (n, head_dim / 2).
        rotary_positions: position of each token in the table, int64 (batch, nodes).

    Returns:
        complex64 (batch * nodes, 1, head_dim / 2).
    """
    return table.index_select(0, rotary_positions.flatten())[:, None]


def prepare_layers(model: nn.Module, layers: Sequence[Layer]) -> list[DecodingLayer]:
    """Make fast decoding layers from a model's layers. The model must then not be trained, saved, moved or cast.

    On a CPU in float32, the weights of norms are moved into the linear maps after them, and all linear maps become
    `PreparedLinear`. Outputs change by rounding. On other devices the weights do not change.

    Args:
        model: the model, changed in place.
        layers: the layers of the model.
    """
    weight = layers[0].qkv.weight
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        for layer in layers:
            if layer.attention_norm is not None:
                layer.attention_norm.fold_into(layer.qkv)
            layer.ffn_norm.fold_into(layer.gate_up)
        prepare_linears(model)
    return [DecodingLayer(layer) for layer in layers]


def cast_weights(module: Model, dtype: torch.dtype) -> Model:
    """Cast parameters and real buffers of a model in place, and return the model.

    Weights whose names begin with a prefix in `module.wide` keep their dtype. So does the rotary table, whose complex
    numbers `Module.to` would cast.

    Args:
        module: the model.
        dtype: the new dtype.
    """
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_floating_point() and not name.startswith(getattr(module, "wide", ())):
            tensor.data = tensor.data.to(dtype)
    return module
