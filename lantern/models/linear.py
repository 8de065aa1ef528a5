"""Linear maps that are fast in decoding, where inputs have few rows.

On a CPU in float32 there are two kernels. The first is `torch.mm` on column-major weights, which it reads up to twice
as fast as row-major weights. The second is oneDNN's product on weights that are converted once to its *packed* layout.
It is only used on AMD's CPUs with AVX-512, where MKL, which torch.mm calls, does not use AVX-512.

The sizes of weight and input determine the kernel. Kernels are not chosen by timing them. The choice could then differ
from run to run, and with it the last digits of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from typing_extensions import override

# Measured: each call of the packed kernel costs about 8 microseconds more, which only large products gain back.
LARGE = 150_000  # number of elements from which a weight is packed, for products of at least MANY rows
MANY = 4
HUGE = 1_500_000  # number of elements from which a weight is packed for all products, and stored only in packed form

Product = Callable[[torch.Tensor], torch.Tensor]
AddProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PreparedLinear(nn.Module):
    """A linear map for inference that is faster than `nn.Linear` on a CPU. It cannot be trained, cast or moved.

    With `is_view`, on other devices and in other dtypes, torch.mm reads the original weights, without a copy.
    """

    def __init__(self, linear: nn.Linear, is_view: bool = False) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.size = weight.numel()  # multiply-adds of one row of input
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.packed = self.columns = None
        is_view = is_view or weight.device.type != "cpu" or weight.dtype != torch.float32
        if not is_view and self.size >= LARGE and can_pack():
            self.packed = pack(weight)
        if not self.is_packed(1):
            # A weight that is packed only for MANY rows is stored in both layouts.
            self.columns = weight.t() if is_view else weight.t().contiguous()

    @override
    def __getstate__(self) -> dict[str, Any]:
        # The packed layout can be neither copied nor pickled.
        return {**vars(self), "packed": None if self.packed is None else self.packed.to_dense()}

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.packed = None if self.packed is None else pack(self.packed)

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1])
        product, _ = self.kernels(len(rows))
        mapped = product(rows)
        if self.bias is not None:
            mapped += self.bias
        return mapped.view(*x.shape[:-1], -1)

    def kernels(self, num_rows: int) -> tuple[Product, AddProduct]:
        """Return functions for inputs x of `num_rows` rows: x -> x W^T, and (total, x) -> total += x W^T. No bias."""
        columns, packed = self.columns, self.packed
        if columns is not None and not self.is_packed(num_rows):
            return lambda x: torch.mm(x, columns), lambda total, x: total.addmm_(x, columns)

        def product(x: torch.Tensor) -> torch.Tensor:
            # None: no bias. "none", [], "": no pointwise function after the product.
            return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

        return product, lambda total, x: total.add_(product(x))

    def is_packed(self, num_rows: int) -> bool:
        """Return whether an input of `num_rows` rows is multiplied by the packed weight."""
        return self.packed is not None and (num_rows >= MANY or self.size >= HUGE)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Convert a weight to oneDNN's layout, a tensor that only oneDNN's operations read."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())


def can_pack() -> bool:
    """Return whether the packed kernel exists and is the faster one."""
    has_product = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return is_amd() and has_avx512() and has_product


@cache
def is_amd() -> bool:
    """Return whether the CPU is made by AMD, according to /proc/cpuinfo. False if that file does not exist."""
    return "AuthenticAMD" in _words_of_cpu()


@cache
def has_avx512() -> bool:
    """Return whether it has AVX-512, without which packed products gain nothing."""
    return "avx512f" in _words_of_cpu()


def _words_of_cpu() -> list[str]:
    info = Path("/proc/cpuinfo")
    return info.read_text(encoding="utf-8").split() if info.is_file() else []


def prepare_linears(model: nn.Module) -> None:
    """Replace all linear maps of a model by `PreparedLinear`, in place."""
    # One after the other, so that each old map is freed before the next one is copied.
    for parent in [part for part in model.modules() if not isinstance(part, nn.Linear)]:
        for name in [name for name, part in parent.named_children() if isinstance(part, nn.Linear)]:
            setattr(parent, name, PreparedLinear(getattr(parent, name)))
