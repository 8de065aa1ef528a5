"""Parts of `gpu_check.py`, the most important first, because time may run out. Each runs in a separate process.

This file does not import torch.
"""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """One part of the GPU check: a group of measurements that run in one process.

    Attributes:
        module: name of its module in this package, which has a function `measure`.
        title: heading on the page.
        needed_s: expected seconds on an H100. The part is skipped if less time is left.
        limit_s: seconds after which the part is killed.
    """

    module: str
    title: str
    needed_s: int
    limit_s: int


PARTS = {
    "A": Part("device", "What the device gives", 40, 90),
    "B": Part("equality", "CPU = eager = graph, float32, trained model", 100, 160),
    "C": Part("steps", "Steps at the sizes of LlamaGen XL, batch 1", 130, 220),
    "D": Part("exactness", "Exactness in bfloat16", 40, 80),
    "E": Part("images", "Whole images", 100, 180),
    "F": Part("batches", "Steps of batches", 100, 180),
    "G": Part("adapters", "Layers of larger models", 120, 200),
    "H": Part("fusion", "What compiling and fusing bring", 150, 240),
}
