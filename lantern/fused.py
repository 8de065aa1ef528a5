"""Operations that run as one Triton kernel each on a GPU, instead of several PyTorch operations.

They are used if Triton is installed and their results equal those of PyTorch up to rounding. This is checked once per
process and device. Otherwise, or if the environment variable LANTERN_FUSED is 0, PyTorch's operations run.

The kernels are registered as PyTorch operations, so that `torch.compile` sees one call and does not look inside. While
it traces tensors without values, it calls the functions `_..._of_shapes` in their place.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

log = logging.getLogger(__name__)

_is_equal: dict[torch.device, bool] = {}  # whether the kernels passed the check on a device

# (a!) and (b!) mark the arguments that change in place.
torch.library.define(
    "lantern::rotate_and_write", "(Tensor(a!) qkv, Tensor rotary, Tensor(b!) vectors, Tensor flat_slots) -> ()"
)
torch.library.define("lantern::silu_times", "(Tensor gate_up) -> Tensor")
torch.library.define("lantern::make_noise", "(Tensor key, int first, int num_values, bool is_gumbel) -> Tensor")


def _register_kernel(name: str) -> None:
    def launch(*arguments: Any) -> torch.Tensor | None:
        # Triton launches on the current device, not on that of its arguments.
        with torch.cuda.device(arguments[0].device):
            return getattr(_kernels(), name)(*arguments)

    torch.library.impl(f"lantern::{name}", "CUDA", launch)


for _name in ("rotate_and_write", "silu_times", "make_noise"):
    _register_kernel(_name)


@torch.library.register_fake("lantern::rotate_and_write")
def _rotate_and_write_of_shapes(*_: torch.Tensor) -> None:
    """Do nothing: tensors without values hold nothing to change."""


@torch.library.register_fake("lantern::silu_times")
def _silu_times_of_shapes(gate_up: torch.Tensor) -> torch.Tensor:
    return gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)


@torch.library.register_fake("lantern::make_noise")
def _make_noise_of_shapes(key: torch.Tensor, first: int, num_values: int, is_gumbel: bool) -> torch.Tensor:
    return torch.empty(num_values, device=key.device)


def rotate_and_write(qkv: torch.Tensor, rotary: torch.Tensor, vectors: torch.Tensor, flat_slots: torch.Tensor) -> None:
    """Rotate queries and keys (RoPE), and write keys and values to a layer's cache.

    Args:
        qkv: queries, keys and values of each token next to each other, (tokens, heads * head_dim). Queries are rotated
            in place, keys only in the cache.
        rotary: rotations, complex64 (n, 1, head_dim / 2). n divides the number of tokens, and token t uses rotation t %
            n.
        vectors: `LayerCache.vectors`, (slots of all heads, head_dim).
        flat_slots: indices into `vectors`, int64 (tokens, 2 * key/value heads), from `KVCache.flat_slots`.
    """
    torch.ops.lantern.rotate_and_write(qkv, rotary, vectors, flat_slots)


def silu_times(gate_up: torch.Tensor) -> torch.Tensor:
    """Return SiLU(gate) * up, (rows, width). `gate_up` is both next to each other, (rows, 2 * width)."""
    return torch.ops.lantern.silu_times(gate_up)


def make_noise(key: torch.Tensor, first: int, num_values: int, is_gumbel: bool) -> torch.Tensor:
    """Make the values of `lantern.philox.noise_values` up to rounding, float32 (num_values,).

    Args:
        key: key of the generator, two unsigned 64-bit integers stored as int64 (2,).
        first: index of the first value.
        is_gumbel: True for Gumbel noise, False for uniform noise in (0, 1], since float32 rounds values near 1 to 1.
    """
    return torch.ops.lantern.make_noise(key, first, num_values, is_gumbel)


def is_usable(device: torch.device) -> bool:
    """Return whether the kernels may be used on a device. The first call for it compiles and checks them."""
    if device.type != "cuda" or not torch.cuda.is_available() or os.environ.get("LANTERN_FUSED") == "0":
        return False
    if device not in _is_equal:
        if type(torch.empty(0, device=device)) is not torch.Tensor:  # fake tensors have no values to compare
            return False
        _is_equal[device] = _passes_check(device)
    return _is_equal[device]


def _passes_check(device: torch.device) -> bool:
    try:
        with torch.cuda.device(device):
            check(_kernels(), device)
    except Exception as error:  # Triton is missing, finds no compiler, or does not know the device
        log.warning("fused kernels are not used on %s: %s: %s", device, type(error).__name__, str(error)[:200])
        return False
    return True


def check(kernels: ModuleType, device: torch.device) -> None:
    """Compare the kernels with operations of PyTorch and numpy on small inputs, or raise an AssertionError."""
    generator = torch.Generator().manual_seed(0)
    # head_dim / 2 = 12 is no power of 2, so the kernel must mask channels. Rows share rotations, as branches do.
    num_heads, num_kv_heads, head_dim, num_rows, num_turns = 4, 2, 24, 6, 3
    num_turned = (num_heads + num_kv_heads) * head_dim
    angles = torch.randn(num_turns, 1, head_dim // 2, generator=generator)
    rotary = torch.polar(torch.ones_like(angles), angles).to(device)
    flat_slots = torch.randperm(40, generator=generator)[: num_rows * 2 * num_kv_heads].view(num_rows, -1).to(device)
    for dtype in (torch.float32, torch.bfloat16):
        atol, rtol = (1e-6, 1e-5) if dtype == torch.float32 else (1e-3, 2e-2)
        qkv = torch.randn(num_rows, num_turned + num_kv_heads * head_dim, generator=generator).to(device, dtype)
        # vectors[0] is what PyTorch writes, vectors[1] what the kernel writes. `pairs` are views of `expected`.
        expected, vectors = qkv.clone(), torch.zeros(2, 40, head_dim, dtype=dtype, device=device)
        pairs = expected[:, :num_turned].view(-1, num_turns, num_turned // head_dim, head_dim // 2, 2)
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()) * rotary))
        vectors[0].index_put_((flat_slots,), expected[:, num_heads * head_dim :].view(num_rows, -1, head_dim))
        kernels.rotate_and_write(qkv, rotary, vectors[1], flat_slots)
        found, wanted = (part[:, : num_heads * head_dim] for part in (qkv, expected))
        torch.testing.assert_close(found, wanted, atol=atol, rtol=rtol)
        torch.testing.assert_close(vectors[1], vectors[0], atol=atol, rtol=rtol)
        gate, up = qkv.chunk(2, dim=1)
        torch.testing.assert_close(kernels.silu_times(qkv), F.silu(gate) * up, atol=atol, rtol=rtol)
    # A key with the highest bit set, 2^64 - 2 or -2 as int64, and a first value, 5, within a counter of four.
    raw = np.random.Philox(key=np.array([1, 2**64 - 2], dtype=np.uint64)).random_raw(2000)[5:]
    uniform = torch.from_numpy(((raw >> np.uint64(11)) + 0.5) * 2.0**-53)
    key = torch.tensor([1, -2], device=device)
    for is_gumbel, expected in ((False, uniform), (True, -(-uniform.log()).log())):
        found = kernels.make_noise(key, 5, len(raw), is_gumbel)
        torch.testing.assert_close(found.cpu(), expected.float(), atol=1e-7, rtol=1e-6)


def _kernels() -> ModuleType:
    from lantern import triton_kernels  # needs Triton, which may be missing

    return triton_kernels
