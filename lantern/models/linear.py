"""Linear maps that are fast in decoding, where inputs have few rows.

The sizes of weight and input determine the kernel that multiplies them. Kernels are not chosen by timing them. The
choice could then differ from run to run, and with it the last digits of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

LARGE = 150_000  # number of elements from which a weight is packed, for products of at least MANY rows
MANY = 4
HUGE = 1_500_000  # number of elements from which a weight is packed for all products, and stored only in packed form

Product = Callable[[torch.Tensor], torch.Tensor]
AddProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PreparedLinear(nn.Module):
    """A linear map for inference that is faster than `nn.Linear` on a CPU. It cannot be trained, cast or moved.

    On a CPU in float32 there are two kernels. The first is `torch.mm` on column-major weights, which it reads up to
    twice as fast as row-major weights. The second is oneDNN's product on weights that are converted once to its packed
    layout.

    The second kernel is only used on AMD's CPUs with AVX-512, where torch.mm runs MKL without it. Each call of the
    second kernel costs about 8 microseconds more. It is therefore only used for weights of at least `LARGE` elements
    and inputs of at least `MANY` rows. Weights of at least `HUGE` elements use it for any number of rows.

    On other devices and in other dtypes, `torch.mm` runs on the original weights.

    Args:
        linear: the map to replace.
        is_view: whether to read the original weights on a CPU, too, instead of a copy in a faster layout. This is
            slower but saves memory.
    """

    def __init__(self, linear: nn.Linear, is_view: bool = False) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.size = weight.numel()  # multiply-adds of one row
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.packed = self.columns = None
        is_view = is_view or weight.device.type != "cpu" or weight.dtype != torch.float32
        if not is_view and self.size >= LARGE and can_pack():
            self.packed = pack(weight)
        if not self.is_packed(1):
            self.columns = weight.t() if is_view else weight.t().contiguous()

    def __getstate__(self) -> dict[str, Any]:
        # The packed layout can be neither copied nor pickled.
        return {**vars(self), "packed": None if self.packed is None else self.packed.to_dense()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.packed = None if self.packed is None else pack(self.packed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., inputs) to (..., outputs)."""
        rows = x.reshape(-1, x.shape[-1])
        product, _ = self.kernels(len(rows))
        mapped = product(rows)
        if self.bias is not None:
            mapped += self.bias
        return mapped.view(*x.shape[:-1], -1)

    def kernels(self, num_rows: int) -> tuple[Product, AddProduct]:
        """Return two functions that multiply an input of `num_rows` rows by the weight W, without the bias.

        Args:
            num_rows: number of rows of the input, which determines the kernel.

        Returns:
            Two functions. The first maps x, (num_rows, inputs), to x W^T. The second takes `total` and x, and adds x
            W^T to `total` in place.
        """
        columns, packed = self.columns, self.packed
        if columns is not None and not self.is_packed(num_rows):
            return lambda x: torch.mm(x, columns), lambda total, x: total.addmm_(x, columns)

        def product(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

        return product, lambda total, x: total.add_(product(x))

    def is_packed(self, num_rows: int) -> bool:
        """Return whether an input of `num_rows` rows is multiplied by the weight in oneDNN's packed layout."""
        return self.packed is not None and (num_rows >= MANY or self.size >= HUGE)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Convert a weight to oneDNN's packed layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())


def can_pack() -> bool:
    """Return whether weights can be packed, that is, converted to the layout of oneDNN's fast matrix product.

    This is so on AMD's CPUs with AVX-512, if the installed torch has that product.
    """
    has_product = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return is_amd() and has_avx512() and has_product


@cache
def is_amd() -> bool:
    """Return whether the CPU is made by AMD, according to /proc/cpuinfo. False if that file does not exist."""
    return "AuthenticAMD" in _words_of_cpu()


@cache
def has_avx512() -> bool:
    """Return whether the CPU has AVX-512, without which packed products gain nothing."""
    return "avx512f" in _words_of_cpu()


def _words_of_cpu() -> list[str]:
    info = Path("/proc/cpuinfo")
    return info.read_text(encoding="utf-8").split() if info.is_file() else []


def prepare_linears(model: nn.Module) -> None:
    """Replace all linear maps of a model by the faster `PreparedLinear`, in place.

    Each old map is freed before the next one is prepared, to save memory.
    """
    for parent in [part for part in model.modules() if not isinstance(part, nn.Linear)]:
        for name in [name for name, part in parent.named_children() if isinstance(part, nn.Linear)]:
            setattr(parent, name, PreparedLinear(getattr(parent, name)))
