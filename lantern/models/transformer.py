"""The transformer layer of target and draft models, as in LlamaGen and Llama.

    x += attention_out(attention(rotary(qkv(norm(x)))))
    x += down(silu(gate) * up),  (gate, up) = gate_up(norm(x))

Two classes run it with the same weights: `Layer` on whole sequences, differentiable, and `DecodingLayer` on a few new
tokens with a `KVCache`. On a CPU, an RMS norm with weight g can be *folded* into the linear map W after it, which
leaves one division:

    W (g x / sqrt(mean(x^2) + eps)) = (sqrt(dim) W g) (x / hypot(|x|, sqrt(dim eps)))

Axes: rows = branches * batch; nodes = new tokens of a pass; slots = entries of the cache; groups = query heads that
share a key/value head (grouped-query attention). Masks are additive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from typing_extensions import override

from lantern import fused
from lantern.kv_cache import LayerCache
from lantern.models.config import OVERSHOOT, DraftConfig, TargetConfig
from lantern.models.linear import PreparedLinear, prepare_linears

Model = TypeVar("Model", bound=nn.Module)

MANY_ROWS = 16  # number of rows from which `attend` uses two batched products on a CPU


def rotary_table(
    num_text_tokens: int, lines: tuple[int, int], head_dim: int, base: float, kind: str = "2d"
) -> torch.Tensor:
    """Return the rotary table, complex64 (num_text_tokens + image tokens + OVERSHOOT, head_dim / 2).

    Entry (r, i) rotates channels 2 i and 2 i + 1 of a head at position r. Kind "1d", as in language models, rotates all
    channels by the position in the sequence. Kind "2d" rotates the first half of the channels by the row in the image,
    and the second half by the column. `lines` is the height and width of the image in tokens.

    Source: LlamaGen autoregressive/models/gpt.py, precompute_freqs_cis_2d.
    """
    half, (height, width) = head_dim // 2, lines
    if kind == "1d":
        frequencies = base ** (-torch.arange(half, dtype=torch.float32) / half)
        positions = torch.arange(num_text_tokens + height * width + OVERSHOOT, dtype=torch.float32)
        return torch.polar(torch.ones(()), torch.outer(positions, frequencies))
    frequencies = base ** (-torch.arange(0, half, 2, dtype=torch.float32) / half)  # (head_dim / 4)
    angles = torch.outer(torch.arange(max(lines), dtype=torch.float32), frequencies)  # (longer side, head_dim / 4)
    by_row = angles[:height, None, :].expand(height, width, -1)
    by_column = angles[None, :width, :].expand(height, width, -1)
    image_rows = torch.polar(torch.ones(()), torch.cat([by_row, by_column], dim=-1).reshape(-1, half))
    # Zeros for the prompt, as in LlamaGen: its queries and keys become zero, so that attention among prompt
    # positions is uniform. Zeros for drafts after the end of the image, too.
    outside = torch.zeros(num_text_tokens + OVERSHOOT, half, dtype=torch.complex64)
    return torch.cat([outside[:num_text_tokens], image_rows, outside[num_text_tokens:]])


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32.

    `weight` is None after `fold_into` has moved it. `floor` is sqrt(dim * eps), a tensor since hypot takes no numbers.
    """

    weight: nn.Parameter | None
    floor: torch.Tensor

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.register_buffer("floor", torch.tensor((dim * eps) ** 0.5), persistent=False)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight is None:
            return divide_by_norm(x, self.floor)
        # A GPU's kernel multiplies by the weight first and casts afterwards. A CPU casts first, as in LlamaGen.
        # Their outputs in bfloat16 differ by rounding.
        if x.device.type == "cuda" and x.dtype == self.weight.dtype:
            return F.rms_norm(x, (self.dim,), self.weight, self.eps)
        return F.rms_norm(x.float(), (self.dim,), None, self.eps).to(x.dtype) * self.weight

    def function(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a plain function that applies this norm. Calling it is faster than calling a module."""
        return self.forward if self.weight is not None else partial(divide_by_norm, floor=self.floor)

    def fold_into(self, linear: nn.Linear) -> None:
        """Move weight and factor sqrt(dim) into the linear map that reads this norm's output, in place."""
        if self.weight is None:
            raise ValueError("a norm can be folded once only, got one without a weight; load the model again")
        # (outputs, inputs) * (inputs,): each input channel is scaled.
        linear.weight.data = linear.weight.data * (self.weight.data * self.dim**0.5)
        self.weight = None


def divide_by_norm(x: torch.Tensor, floor: torch.Tensor) -> torch.Tensor:
    """Return x / hypot(norm of x, floor), the rest of a folded norm, (..., dim)."""
    # On a CPU this takes half the time of F.rms_norm, which runs eight kernels there.
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(floor)


class HeadNorm(nn.Module):
    """Layer norm of each head's queries and keys, before the rotary embedding, as in Chameleon."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_heads, head_dim))  # query heads, then key heads
        self.bias = nn.Parameter(torch.zeros(num_heads, head_dim))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight + self.bias


class Layer(nn.Module):
    """The layer for whole sequences. `has_attention_norm` is False in EAGLE's draft model.

    dim / num_heads must be divisible by 4, for the rotary table of kind "2d".
    """

    def __init__(self, config: TargetConfig | DraftConfig, *, has_attention_norm: bool = True) -> None:
        super().__init__()
        dim, eps, ffn_hidden = config.dim, config.norm_eps, config.ffn_hidden
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads or config.num_heads
        # The rotary embedding turns queries and keys, not values.
        self.head_dim, num_turned = dim // self.num_heads, self.num_heads + self.num_kv_heads
        self.attention_norm = RMSNorm(dim, eps) if has_attention_norm else None
        self.qkv = nn.Linear(dim, (num_turned + self.num_kv_heads) * self.head_dim, bias=False)
        self.qk_norm = HeadNorm(num_turned, self.head_dim) if config.has_qk_norm else None
        self.attention_out = nn.Linear(dim, dim, bias=False)
        self.ffn_norm = RMSNorm(dim, eps)
        self.gate_up = nn.Linear(dim, 2 * ffn_hidden, bias=False)
        self.down = nn.Linear(ffn_hidden, dim, bias=False)

    @override
    def forward(
        self,
        x: torch.Tensor,
        rotary: torch.Tensor,
        mask: torch.Tensor | None,
        append: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> torch.Tensor:
        """Return hidden states, shaped like x, (sequences, positions, dim).

        Args:
            rotary: complex64, broadcastable to (sequences, positions, query heads + key heads, head_dim / 2).
            mask: (sequences or 1, 1, positions, keys).
            append: maps the keys and values of x, each (sequences, positions, heads, head_dim), to those to which x
                attends. By default x attends to itself.
        """
        rows, nodes, dim = x.shape
        normed = x if self.attention_norm is None else self.attention_norm(x)
        heads, kv_heads = self.num_heads, self.num_kv_heads
        # both: queries, then keys, along the axis of heads. Norm and rotation treat them alike.
        both, value = self.qkv(normed).unflatten(-1, (-1, self.head_dim)).tensor_split([heads + kv_heads], dim=2)
        if self.qk_norm is not None:
            both = self.qk_norm(both)
        # Complex numbers need float32, also in a bfloat16 model.
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
    """The layer for decoding, which runs few kernels and calls no modules.

    Modules look up their attributes in each call, which would take a quarter of the time of a short pass. The object
    keeps references to the weights of a `Layer`. If these are cast, moved or folded, create a new object.
    """

    def __init__(self, layer: Layer) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = layer.num_heads, layer.num_kv_heads, layer.head_dim
        self.attention_norm = layer.attention_norm and layer.attention_norm.function()
        self.ffn_norm = layer.ffn_norm.function()
        self.qk_norm = layer.qk_norm
        parts = (layer.qkv, layer.attention_out, layer.gate_up, layer.down)
        # A layer that `prepare_layers` has not prepared runs on its own weights, without a copy.
        parts = (part if isinstance(part, PreparedLinear) else PreparedLinear(part, is_view=True) for part in parts)
        self.linears = [*parts]
        self.is_fused = fused.is_usable(layer.ffn_norm.floor.device)
        self.kernels: dict[int, tuple] = {}  # number of rows -> the four kernels for it

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "kernels": {}}  # they are closures, which pickle does not write

    def __call__(
        self, x: torch.Tensor, rotary: torch.Tensor, mask: torch.Tensor, past: LayerCache, flat_slots: torch.Tensor
    ) -> None:
        """Replace x, (rows * nodes, dim), by the output of the layer in place. This is not differentiable.

        Args:
            rotary: complex64 (batch * nodes, 1, head_dim / 2), the same for both branches.
            mask: from `group_mask`.
            past: cache of this layer, into which the keys and values of the new tokens are written.
            flat_slots: their slots, from `KVCache.flat_slots`.
        """
        dim, heads, kv_heads, head_dim = x.shape[1], self.num_heads, self.num_kv_heads, self.head_dim
        make_qkv, add_attention_, make_gate_up, add_ffn_ = self.kernels.get(len(x)) or self._choose_kernels(len(x))
        qkv = make_qkv(x if self.attention_norm is None else self.attention_norm(x))
        # Columns of qkv: queries, keys, values. `turned` is a view, so that what follows changes qkv itself.
        turned = qkv[:, : (heads + kv_heads) * head_dim]
        if self.qk_norm is not None:
            both = turned.view(-1, heads + kv_heads, head_dim)
            both.copy_(self.qk_norm(both))
        if self.is_fused:
            fused.rotate_and_write(qkv, rotary, past.vectors, flat_slots)
        else:
            # (branches, batch * nodes, heads, pairs, 2): the branches share the rotations.
            apply_rotary_(turned.view(-1, rotary.shape[0], heads + kv_heads, rotary.shape[2], 2), rotary)
            # Keys and values are written before `attend` reads them, so that new tokens see one another.
            past.write(flat_slots, qkv[:, dim:].view(len(qkv), -1, head_dim))
        query = qkv[:, :dim].view(mask.shape[0], -1, heads, head_dim)
        # The residual sum is part of the product: x += attended W^T.
        add_attention_(x, attend(query, *past.read(), mask).reshape(x.shape))
        gate_up = make_gate_up(self.ffn_norm(x))
        if self.is_fused:
            product = fused.silu_times(gate_up)
        else:
            gate, up = gate_up.chunk(2, dim=1)
            product = F.silu(gate).mul_(up)
        add_ffn_(x, product)

    def _choose_kernels(self, num_rows: int) -> tuple:
        # Products that write new tensors, and those that add to x.
        (qkv, _), (_, attention_out), (gate_up, _), (_, down) = (part.kernels(num_rows) for part in self.linears)
        chosen = qkv, attention_out, gate_up, down
        if not torch.compiler.is_compiling():  # torch.compile would compile again if this dict changed
            self.kernels[num_rows] = chosen
        return chosen


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the attention of new tokens to a cache, (rows, nodes, key/value heads, groups, head_dim).

    query is (rows, nodes, heads, head_dim), keys and values are (rows, key/value heads, slots, head_dim), and the mask
    comes from `group_mask`. The result may be a view.
    """
    rows, nodes, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    groups = heads // kv_heads
    query = query.transpose(1, 2)
    # The queries of a group become further tokens of one head. Every attention kernel supports this layout, and
    # keys and values are read only once.
    if groups > 1:
        query = query.reshape(rows, kv_heads, groups * nodes, head_dim)
    # One token per row, no groups, many rows: two batched products take a third of the fused kernel's time.
    if query.device.type == "cpu" and query.dtype == torch.float32 and query.shape[2] == 1 and rows >= MANY_ROWS:
        query = query.flatten(0, 1) * head_dim**-0.5
        weights = torch.bmm(query, keys.flatten(0, 1).transpose(1, 2)).view(rows, heads, 1, -1)
        weights = weights.add_(mask).softmax(-1).flatten(0, 1)
        attended = torch.bmm(weights, values.flatten(0, 1)).view(rows, heads, 1, -1)
    else:
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return attended.view(rows, kv_heads, groups, nodes, head_dim).permute(0, 3, 1, 2, 4)


def group_mask(mask: torch.Tensor, groups: int) -> torch.Tensor:
    """Repeat a mask, (rows, 1, nodes, slots), for each group's queries: (rows, 1, groups * nodes, slots)."""
    return mask if groups == 1 else mask.repeat(1, 1, groups, 1)


def apply_rotary_(x: torch.Tensor, rotary: torch.Tensor) -> None:
    """Rotate pairs of channels x, (..., head_dim / 2, 2), in place by complex64 (..., head_dim / 2)."""
    if x.dtype == torch.float32:
        torch.view_as_complex(x).mul_(rotary)
    else:
        x.copy_(torch.view_as_real(torch.view_as_complex(x.float()) * rotary))


def gather_rotary(table: torch.Tensor, rotary_positions: torch.Tensor) -> torch.Tensor:
    """Return the table's rotations at positions (batch, nodes), complex64 (batch * nodes, 1, head_dim / 2)."""
    return table.index_select(0, rotary_positions.flatten())[:, None]


def prepare_layers(model: nn.Module, layers: Sequence[Layer]) -> list[DecodingLayer]:
    """Make decoding layers from a model's layers. The model must then not be trained, saved, moved or cast.

    On a CPU in float32, norms are folded and all linear maps of the model become `PreparedLinear`, in place. Outputs
    change by rounding.
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
    """Cast parameters and real buffers of a model in place, except weights that `module.wide` names."""
    # Not `Module.to`, which would cast the complex numbers of the rotary table.
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_floating_point() and not name.startswith(getattr(module, "wide", ())):
            tensor.data = tensor.data.to(dtype)
    return module
