"""Predicted times on an H100: number of kernels times their durations, which were measured on other GPUs.

docs/gpu.md explains the durations. The page of the GPU check shows predictions next to measurements.
"""

from __future__ import annotations

COPY_GB_PER_S = 3000.0
ATTENTION_US = 4.0
ATTENTION_BYTES_PER_S = 50e9  # of one thread block, which reads the keys and values of one head
TOP_K_US = 55.0  # of up to 20 rows
GEMM_US = 1.6
GEMM_BYTES_PER_S = 2.4e12
# Milliseconds of a step in a graph without Triton's kernels, 256 tokens, batch 1, LlamaGen XL, guided, bfloat16.
STEP_MS = {
    "autoregressive": 1.8,
    "jacobi-chain9": 2.0,
    "jacobi-chain15": 2.0,
    "jacobi-50": 2.5,
    "coupled-chain3": 2.5,
    "eagle1-chain3": 2.6,
    "eagle1-tree57": 4.0,
    "sjd": 2.2,
    "eagle2": 4.0,
    "lantern": 4.3,
    "lantern_pp-tree57": 4.1,
}
# The same at 1024 tokens and several images, where a step reads all slots: (method, batch) -> milliseconds.
BATCH_MS = {
    ("autoregressive", 16): 4.6,
    ("jacobi-chain9", 16): 6.3,
    ("jacobi-50", 16): 17.5,
    ("autoregressive", 64): 13.0,
    ("jacobi-chain9", 64): 22.5,
    ("jacobi-50", 64): 71.5,
}


def gemm_us(num_bytes: int) -> float:
    """Predict the microseconds of a matrix product with few rows, from the size of its weights in bytes."""
    return GEMM_US + 1e6 * num_bytes / GEMM_BYTES_PER_S


def attention_us(num_bytes: int) -> float:
    """Predict the microseconds of attention, from the size of the keys and values of one head in bytes."""
    return ATTENTION_US + 1e6 * num_bytes / ATTENTION_BYTES_PER_S
