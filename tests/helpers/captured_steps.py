"""Stand-ins for CUDA graphs on a CPU, and a check that a decoding step never waits for the device."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lantern.decoding import Decoder
from lantern.stepping import StepRunner


def storages(parts: list) -> set[int]:
    """Return the addresses of the memory of all tensors among objects."""
    return {part.untyped_storage().data_ptr() for part in parts if isinstance(part, torch.Tensor)}


class Tape(TorchDispatchMode):
    """Recorder of tensor operations, which acts as a CUDA graph on a CPU.

    While it is active, it records each operation with its arguments and results. `replay` runs the operations again and
    writes the results into the same tensors. Views share the memory of their argument, so they are not recorded.
    """

    def __init__(self):
        super().__init__()
        self.calls, self.num_replays = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        places = tree_leaves(result)
        if not (func.is_view and storages(places) <= storages(tree_leaves(args))):
            self.calls.append((func, args, kwargs or {}, places))
        return result

    def replay(self):
        self.num_replays += 1
        assert self.num_replays < 100, "replayed steps do not come to an end"
        for func, args, kwargs, places in self.calls:
            for place, value in zip(places, tree_leaves(func(*args, **kwargs)), strict=True):
                is_copy = isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr()
                if is_copy:  # the operation returns new memory: it is not in place
                    place.copy_(value)


def captured(decoder: Decoder) -> Decoder:
    """Return a copy of a decoder that believes it is on a GPU, so that it captures its steps as CUDA graphs."""
    other = decoder.stepped("eager")
    other.runner = StepRunner("auto", torch.device("cuda"), decoder.spec.name)
    return other


class NoHostSync(TorchDispatchMode):
    """Context in which an operation that has to wait for the device raises an AssertionError.

    Such operations read a value back, or have a result whose shape depends on data.
    """

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "unique")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.forbidden:
            raise AssertionError(f"{name} reads from the device inside a step")
        if name in ("index", "index_put", "index_put_"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "boolean index: shape depends on data"
        return func(*args, **(kwargs or {}))
