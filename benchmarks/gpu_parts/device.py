"""Part A of the GPU check: basic speeds of the device, from which docs/gpu.md estimates all other times.

This is the first part, so that its numbers are known even if later parts fail. It measures the bandwidth of a copy, the
speed of a matrix product, and the cost of launching a kernel. It also measures the kernels of a LlamaGen XL layer:
matrix products, attention by each backend, top-k, norm and rotary embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product

import torch
import torch.nn.functional as F
from kernels import SAMPLING
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_parts.common import Check, capture, free
from gpu_parts.predicted import COPY_GB_PER_S, TOP_K_US, attention_us, gemm_us
from lantern.models.transformer import RMSNorm, apply_rotary_
from lantern.sampling import filter_logits
from lantern_pipeline.measure.speed.clocks import clock
from lantern_pipeline.tables.predict import KERNEL_US, LAUNCH_US

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
NUM_TINY_KERNELS = 500


def measure(check: Check) -> None:
    """Measure memory bandwidth, matrix products, the launch of kernels, attention and small kernels."""
    with torch.inference_mode():
        _measure_memory(check)
        free(check.device)
        _measure_launches(check)
        _measure_products(check)
        _measure_attention(check)
        _measure_small_kernels(check)


def _measure_memory(check: Check) -> None:
    """Measure the bandwidth of copying a tensor that is larger than any cache, and the speed of a matrix product."""
    num_values = 2**16 if check.is_tiny else 2**29
    with check.attempt("limits", "copy"):
        source = torch.ones(num_values, dtype=torch.bfloat16, device=check.device)
        target = torch.empty_like(source)
        timing = check.time(lambda: target.copy_(source), 10)
        rate = 4 * num_values / timing.median
        peak = check.peak_bandwidth()
        share = {} if peak is None else {"share_of_data_sheet": rate / peak}
        check.write("limits", "copy", gigabytes_per_s=rate / 1e9, predicted_gigabytes_per_s=COPY_GB_PER_S, **share)
    with check.attempt("limits", "matrix product"):
        side = 64 if check.is_tiny else 8192
        matrix = torch.ones(side, side, dtype=torch.bfloat16, device=check.device)
        timing = check.time(lambda: matrix @ matrix, 10)
        check.write("limits", "matrix product", teraflops=2 * side**3 / timing.median / 1e12, side=side)


def _measure_launches(check: Check) -> None:
    """Time a kernel with almost no work, launched from Python, and as a node of a CUDA graph."""
    value = torch.zeros(64, device=check.device)
    with check.attempt("launches", "eager"):
        timing = check.time(lambda: value.add_(1), NUM_TINY_KERNELS)
        check.write("launches", "eager", stepping="eager", us=1e6 * timing.median, predicted_us=LAUNCH_US.likely)
    if check.has_graphs:
        with check.attempt("launches", "node of a graph"):
            seconds = check.time(capture(lambda: value.add_(1), NUM_TINY_KERNELS), 20).median
            us = 1e6 * seconds / NUM_TINY_KERNELS
            check.write("launches", "node of a graph", stepping="graph", us=us, predicted_us=KERNEL_US.likely)


def _measure_products(check: Check) -> None:
    """Time the four matrix products of a LlamaGen XL layer.

    Each product uses the weights of all layers in turn, as in a decoding step, so that no cache of the GPU contains the
    weights.
    """
    config = check.xl()
    dim, ffn = config.dim, config.ffn_hidden
    shapes = {"qkv": (dim, 3 * dim), "attention_out": (dim, dim), "gate_up": (dim, 2 * ffn), "down": (ffn, dim)}
    for (name, (inputs, outputs)), rows in product(shapes.items(), (2,) if check.is_tiny else (2, 20, 32, 102)):
        with check.attempt("products", f"{name}, {rows} rows"):
            size = (config.num_layers, outputs, inputs)
            weights = torch.ones(size, dtype=torch.bfloat16, device=check.device).transpose(1, 2).unbind()
            x = torch.ones(rows, inputs, dtype=torch.bfloat16, device=check.device)
            timing = check.time_kernels(_products(x, weights), 1)
            seconds = timing.median / len(weights)
            num_bytes = 2 * inputs * outputs
            check.write(
                "products",
                f"{name}, {rows} rows",
                us=1e6 * seconds,
                predicted_us=gemm_us(num_bytes),
                gigabytes_per_s=num_bytes / seconds / 1e9,
                **_roofline(check, num_bytes, seconds),
            )


def _products(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> Callable[[], None]:
    def run() -> None:
        for weight in weights:
            torch.mm(x, weight)

    return run


def _roofline(check: Check, num_bytes: int, seconds: float) -> dict[str, float]:
    """Return a column with the reached share of the GPU's peak memory bandwidth, or no column if the GPU is unknown."""
    peak = check.peak_bandwidth()
    return {} if peak is None else {"share_of_roofline": num_bytes / peak / seconds}


def _measure_attention(check: Check) -> None:
    """Time attention in one layer, from the new tokens of an image to its key/value cache, by each backend of PyTorch.

    Guidance is on, so the batch has two rows. PyTorch's default choice of the backend is timed, too.
    """
    config = check.xl()
    heads, head_dim = config.num_heads, config.head_dim
    all_nodes, all_slots = ((1,), (16,)) if check.is_tiny else ((1, 10, 51), (384, 1152))
    for nodes, slots in product(all_nodes, all_slots):
        shape = (2, heads, slots, head_dim)
        keys, values = torch.ones(2, *shape, dtype=torch.bfloat16, device=check.device)
        query = torch.ones(2, nodes, heads, head_dim, dtype=torch.bfloat16, device=check.device).transpose(1, 2)
        mask = torch.zeros(2, 1, nodes, slots, dtype=torch.bfloat16, device=check.device)

        def attend(query=query, keys=keys, values=values, mask=mask) -> torch.Tensor:
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)

        num_heads, num_bytes = 2 * heads, 2 * keys.numel() * keys.element_size()
        for name, backend in {"default": None, **BACKENDS}.items():
            row = f"{name}, {nodes} nodes, {slots} slots"
            kernels = nullcontext() if backend is None else sdpa_kernel(backend)
            with check.attempt("attention", row), kernels:
                _time_attention(check, row, attend, num_heads, num_bytes)


def _time_attention(check: Check, row: str, attend: Callable[[], torch.Tensor], num_heads: int, num_bytes: int) -> None:
    first: dict[str, float] = {}
    with clock(first, "first_call_s", check.device):
        attend()
    seconds = check.time_kernels(attend).median
    values = {"us": 1e6 * seconds, "predicted_us": attention_us(num_bytes // num_heads), **first}
    check.write("attention", row, **values, gigabytes_per_s=num_bytes / seconds / 1e9)


def _measure_small_kernels(check: Check) -> None:
    """Time the top-k filter, the norm of Lantern and a fused norm, and the rotary embedding."""
    config = check.xl()
    for rows in (1,) if check.is_tiny else (1, 10, 20, 51):
        with check.attempt("small kernels", f"top-k filter, {rows} rows"):
            logits = torch.randn(1, rows, config.vocab_size, device=check.device)
            us = 1e6 * check.time_kernels(lambda logits=logits: filter_logits(logits, SAMPLING)).median
            predicted_us = TOP_K_US if rows <= 20 else None
            check.write("small kernels", f"top-k filter, {rows} rows", us=us, predicted_us=predicted_us)
    x = torch.randn(2, config.dim, device=check.device).bfloat16()
    norm = RMSNorm(config.dim, config.norm_eps).to(check.device, torch.bfloat16)
    rotary = torch.ones(1, 1, config.head_dim // 2, dtype=torch.complex64, device=check.device)
    pairs = torch.ones(2, 1, 2 * config.num_heads, config.head_dim // 2, 2, dtype=torch.bfloat16, device=check.device)
    calls = {
        "norm as decoding runs it": lambda: norm(x),
        "norm, one kernel": lambda: F.rms_norm(x, (config.dim,), norm.weight, config.norm_eps),
        "rotary embedding": lambda: apply_rotary_(pairs, rotary),
    }
    for name, call in calls.items():
        with check.attempt("small kernels", name):
            check.write("small kernels", name, us=1e6 * check.time_kernels(call).median)
