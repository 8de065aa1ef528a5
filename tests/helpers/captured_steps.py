"""A stand-in for CUDA graphs, and what a step that is captured must not do."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lantern.decoding import Decoder
from lantern.stepping import StepRunner


class Tape(TorchDispatchMode):
    """Records operations with the tensors that they read and gave; `replay` does them again in the same places."""

    def __init__(self):
        super().__init__()
        self.calls, self.num_replays = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        self.num_replays += 1
        assert self.num_replays < 100, "replayed steps do not come to an end"
        for func, args, kwargs, result in self.calls:
            for place, value in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                is_copy = isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr()
                if is_copy:  # neither view nor in place
                    place.copy_(value)


def captured(decoder: Decoder) -> Decoder:
    """The decoder as on a GPU."""
    other = decoder.stepped("eager")
    other.runner = StepRunner("auto", torch.device("cuda"), decoder.spec.name)
    return other


class NoHostSync(TorchDispatchMode):
    """Raises where an operation would have to wait for the device."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.forbidden:
            raise AssertionError(f"{name} reads from the device inside a step")
        if name in ("index", "index_put", "index_put_"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "boolean index: shape depends on data"
        return func(*args, **(kwargs or {}))
