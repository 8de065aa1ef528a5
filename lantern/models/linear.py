"""Linear maps as decoding runs them. The kernel of a product follows from its size, never from a timing, so that the
same call gives the same digits tomorrow.
"""

from __future__ import annotations

import torch
from torch import nn

# Multiply-adds of a product from which packed weights are faster: their kernel costs about 8 microseconds more a call.
PACKED_FROM = 1_500_000


class PreparedLinear(nn.Module):
    """A linear map of stored weights: no gradients, no further casts or moves.

    On a CPU in float32 there are two kernels. `torch.mm` on column-major weights is best for small products: with few
    rows it reads them up to twice as fast as row-major ones. oneDNN's, on weights packed once, is best for large ones:
    torch.mm runs MKL, which does not use AVX-512 on AMD's CPUs. Weights whose smallest product is large are kept packed
    only. Other devices and dtypes have `torch.mm` on the weights as they are.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.size = weight.numel()  # multiply-adds of one row
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.packed = self.columns = None
        is_plain = weight.device.type != "cpu" or weight.dtype != torch.float32
        if not is_plain and can_pack():
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
        if self.packed is None or self.size < PACKED_FROM:
            self.columns = weight.t() if is_plain else weight.t().contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., inputs) to (..., outputs)."""
        mapped = self.product(x.reshape(-1, x.shape[-1]))
        if self.bias is not None:
            mapped += self.bias
        return mapped.view(*x.shape[:-1], -1)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """Return x W^T for x (rows, inputs), without the bias."""
        if self.is_packed(len(x)):
            return torch.ops.mkldnn._linear_pointwise(x, self.packed, None, "none", [], "")
        return torch.mm(x, self.columns)

    def add_product_(self, total: torch.Tensor, x: torch.Tensor) -> None:
        """Add x W^T for x (rows, inputs) to `total` (rows, outputs), in place."""
        if self.is_packed(len(x)):
            total.add_(self.product(x))
        else:
            total.addmm_(x, self.columns)

    def is_packed(self, num_rows: int) -> bool:
        """Return whether a product of this many rows runs on packed weights."""
        return self.packed is not None and num_rows * self.size >= PACKED_FROM


def can_pack() -> bool:
    """Return whether this torch has oneDNN's products on packed weights."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def prepare_linears(model: nn.Module) -> None:
    """Replace all linear maps of a model by prepared ones, in place."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.Linear):
                setattr(parent, name, PreparedLinear(part))
