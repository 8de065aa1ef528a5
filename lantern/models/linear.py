"""Linear maps for decoding.

The size of a product determines its kernel. Timings have no influence, so that the same call always gives the same
digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import nn

LARGE = 150_000  # elements from which a weight is packed for products of at least MANY rows
MANY = 4
HUGE = 1_500_000  # elements from which a weight is packed for all products, and stored only packed

Product = Callable[[torch.Tensor], torch.Tensor]
AddProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class PreparedLinear(nn.Module):
    """Linear map for inference, which can no longer be trained, cast or moved.

    On a CPU in float32 there are two kernels. `torch.mm` on column-major weights is best for small weights and few
    rows: it reads them up to twice as fast as row-major ones. On AMD's CPUs, where torch.mm runs MKL without AVX-512,
    large weights are also packed once for oneDNN, whose call costs about 8 microseconds more. Other devices and dtypes
    use `torch.mm` on the original weights. So does `is_view`, which copies nothing.
    """

    def __init__(self, linear: nn.Linear, is_view: bool = False) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.size = weight.numel()  # multiply-adds of one row
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.packed = self.columns = None
        is_view = is_view or weight.device.type != "cpu" or weight.dtype != torch.float32
        if not is_view and self.size >= LARGE and can_pack():
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        if not self.is_packed(1):
            self.columns = weight.t() if is_view else weight.t().contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., inputs) to (..., outputs)."""
        rows = x.reshape(-1, x.shape[-1])
        product, _ = self.kernels(len(rows))
        mapped = product(rows)
        if self.bias is not None:
            mapped += self.bias
        return mapped.view(*x.shape[:-1], -1)

    def kernels(self, num_rows: int) -> tuple[Product, AddProduct]:
        """Return the functions that compute products of `num_rows` rows, both without the bias.

        Returns:
            (x -> x W^T for x (num_rows, inputs); (total, x) -> total + x W^T, in place in `total`).
        """
        columns, packed = self.columns, self.packed
        if columns is not None and not self.is_packed(num_rows):
            return lambda x: torch.mm(x, columns), lambda total, x: total.addmm_(x, columns)

        def product(x: torch.Tensor) -> torch.Tensor:
            return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

        return product, lambda total, x: total.add_(product(x))

    def is_packed(self, num_rows: int) -> bool:
        """Return whether products of this many rows run on packed weights."""
        return self.packed is not None and (num_rows >= MANY or self.size >= HUGE)


def can_pack() -> bool:
    """Return whether packed weights are used: on AMD's CPUs, if this torch has oneDNN's products on them."""
    return is_amd() and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def is_amd() -> bool:
    """Return whether the CPU is made by AMD, according to /proc/cpuinfo. Without that file, return False."""
    info = Path("/proc/cpuinfo")
    return info.is_file() and "AuthenticAMD" in info.read_text(encoding="utf-8")


def prepare_linears(model: nn.Module) -> None:
    """Replace all linear maps of a model by prepared ones, in place, one after the other to save memory."""
    for parent in [part for part in model.modules() if not isinstance(part, nn.Linear)]:
        for name in [name for name, part in parent.named_children() if isinstance(part, nn.Linear)]:
            setattr(parent, name, PreparedLinear(getattr(parent, name)))
