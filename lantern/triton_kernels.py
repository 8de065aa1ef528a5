"""GPU kernels in Triton, for the functions of the same names in `lantern.fused`, which describes the arguments.

A *program* is one of the parallel calls of a kernel. It computes a block of a fixed size, a power of 2, and masks what
lies outside. Programs get addresses without shapes. They compute offsets from sizes, so all tensors must be contiguous.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 1024  # number of values that one program computes


@triton.jit
def _rotate_and_write(
    qkv,
    rotary,
    vectors,
    flat_slots,
    num_rotary,
    num_queries,
    num_turned,
    num_heads,
    half: tl.constexpr,
    block: tl.constexpr,
):
    """Rotate one query or key head of one token (RoPE), and store it. Value heads are stored without rotation.

    `half` is head_dim / 2, and `block` the next power of 2. Heads stand in the order queries, keys, values: the first
    `num_turned` are rotated, and all after the first `num_queries` go to the cache.
    """
    # The row is int64, since offsets may exceed 2^31.
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, block)
    is_pair = pair < half
    source = qkv + (row * num_heads + head) * 2 * half + 2 * pair
    even = tl.load(source, mask=is_pair, other=0.0).to(tl.float32)
    odd = tl.load(source + 1, mask=is_pair, other=0.0).to(tl.float32)
    if head < num_turned:
        # Channels 2 j and 2 j + 1 are real and imaginary part of a complex number, which is multiplied by cos + i sin.
        # Branches share the rotations of their positions, hence the remainder.
        angle = rotary + (row % num_rotary) * 2 * half + 2 * pair
        cos = tl.load(angle, mask=is_pair, other=0.0)
        sin = tl.load(angle + 1, mask=is_pair, other=0.0)
        turned = even * cos - odd * sin
        odd = even * sin + odd * cos
        even = turned
    if head < num_queries:
        tl.store(source, even.to(qkv.dtype.element_ty), mask=is_pair)
        tl.store(source + 1, odd.to(qkv.dtype.element_ty), mask=is_pair)
    else:
        # The slots of a token's key heads, then of its value heads.
        flat_slot = tl.load(flat_slots + row * (num_heads - num_queries) + head - num_queries)
        target = vectors + flat_slot * 2 * half + 2 * pair
        tl.store(target, even.to(vectors.dtype.element_ty), mask=is_pair)
        tl.store(target + 1, odd.to(vectors.dtype.element_ty), mask=is_pair)


@triton.jit
def _silu_times(gate_up, product, width, block: tl.constexpr):
    """Fill a block of columns of one row of `product`. A row of `gate_up` has 2 * width values."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_column = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=is_column, other=0.0).to(tl.float32)
    # SiLU and then the product are rounded to the dtype of the result, as two PyTorch operations would do.
    silu = (gate / (1 + tl.exp(-gate))).to(product.dtype.element_ty).to(tl.float32)
    tl.store(product + row * width + column, (silu * up).to(product.dtype.element_ty), mask=is_column)


@triton.jit
def _noise(key, noise, first, num_values, is_gumbel: tl.constexpr, block: tl.constexpr):
    """Make noise for a block of counters of numpy's Philox generator, which `lantern.philox` describes."""
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    # A counter gives four values. The generator steps its counter before it uses it, hence + 1. The counter has 256
    # bits, (a, b, c, d) from the lowest word on, of which the upper three stay 0.
    a = (first // 4 + 1 + index).to(tl.uint64)
    b = tl.full([block], 0, tl.uint64)
    c = tl.full([block], 0, tl.uint64)
    d = tl.full([block], 0, tl.uint64)
    key_0, key_1 = tl.load(key).to(tl.uint64, bitcast=True), tl.load(key + 1).to(tl.uint64, bitcast=True)
    # The constants are KEY_STEPS and MULTIPLIERS of `lantern.philox`.
    step_0, step_1 = tl.full([], 0x9E3779B97F4A7C15, tl.uint64), tl.full([], 0xBB67AE8584CAA73B, tl.uint64)
    factor_0, factor_1 = (
        tl.full([block], 0xD2E7470EE14C6C93, tl.uint64),
        tl.full([block], 0xCA5A826395121157, tl.uint64),
    )
    # A round of Philox 4x64: two products of 128 bits, mixed with keys that grow by constants.
    for _ in tl.static_range(10):
        high_a, low_a = tl.umulhi(a, factor_0), a * factor_0
        high_c, low_c = tl.umulhi(c, factor_1), c * factor_1
        a = high_c ^ b ^ key_0
        c = high_a ^ d ^ key_1
        b = low_c
        d = low_a
        key_0 += step_0
        key_1 += step_1
    # Index in the output. It is negative for values of the first counter before `first`, which are masked.
    flat_slot = 4 * index - first % 4
    _store_noise(noise, flat_slot, a, num_values, is_gumbel)
    _store_noise(noise, flat_slot + 1, b, num_values, is_gumbel)
    _store_noise(noise, flat_slot + 2, c, num_values, is_gumbel)
    _store_noise(noise, flat_slot + 3, d, num_values, is_gumbel)


@triton.jit
def _store_noise(noise, flat_slot, bits, num_values, is_gumbel: tl.constexpr):
    value = ((bits >> 11).to(tl.int64).to(tl.float64) + 0.5) * 1.1102230246251565e-16  # 2^-53
    # At most 1 - 2^-53: the largest value would round to 1 and give infinite Gumbel noise. In `tl.full`, since Triton
    # converts a plain float to float32, in which it is 1.
    value = tl.minimum(value, tl.full([], 0.9999999999999999, tl.float64))
    if is_gumbel:
        value = -tl.log(-tl.log(value))
    tl.store(noise + flat_slot, value.to(tl.float32), mask=(flat_slot >= 0) & (flat_slot < num_values))


def rotate_and_write(qkv: torch.Tensor, rotary: torch.Tensor, vectors: torch.Tensor, flat_slots: torch.Tensor) -> None:
    """Launch one program per token and head."""
    # num_new is the number of key and value heads, half of them each.
    half, num_new = rotary.shape[-1], flat_slots.shape[1]
    num_heads = qkv.shape[1] // (2 * half)
    sizes = (len(rotary), num_heads - num_new, num_heads - num_new // 2, num_heads)
    launch: Any = _rotate_and_write
    launch[(len(qkv), num_heads)](
        qkv, torch.view_as_real(rotary), vectors, flat_slots, *sizes, half, triton.next_power_of_2(half), num_warps=1
    )


def silu_times(gate_up: torch.Tensor) -> torch.Tensor:
    """Launch one program per row and `BLOCK` columns."""
    width = gate_up.shape[1] // 2
    product = gate_up.new_empty(len(gate_up), width)
    launch: Any = _silu_times
    launch[(len(gate_up), triton.cdiv(width, BLOCK))](gate_up, product, width, BLOCK)
    return product


def make_noise(key: torch.Tensor, first: int, num_values: int, is_gumbel: bool) -> torch.Tensor:
    """Launch one program per `BLOCK` values."""
    noise = torch.empty(num_values, device=key.device)
    # From the counter in which `first` lies, of whose values first % 4 are not stored.
    num_counters = triton.cdiv(num_values + first % 4, 4)
    launch: Any = _noise
    launch[(triton.cdiv(num_counters, BLOCK // 4),)](key, noise, first, num_values, is_gumbel, BLOCK // 4)
    return noise
