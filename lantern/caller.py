"""The caller's settings of torch, which Lantern shuts out, so that they change no code of an image.

They are autocast, the default dtype, the default device and a lower precision of float32 matrix products. Published
examples of image models wrap generation in autocast, where a step would mix dtypes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_num_calls = 0  # calls that run now; the process has one default dtype and one precision for all threads
_restore = ExitStack()  # what undoes the changes; `close` empties it for the next call
# Backends of matrix products. They are read from torch 2.9 on, where none of them is None.
_PRODUCTS: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))


@contextmanager
def shut_out_settings() -> Iterator[None]:
    """Context manager or decorator within which torch has the settings that it starts with."""
    global _num_calls
    with ExitStack() as stack:
        # Autocast and the default device belong to a thread. The other settings belong to the process.
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        with _lock:
            # Calls of several threads may overlap: the first one changes the settings, and the last one restores them.
            if _num_calls == 0:
                _change_settings()
            _num_calls += 1
        stack.callback(_leave)
        yield


def _leave() -> None:
    global _num_calls
    with _lock:
        _num_calls -= 1
        if _num_calls == 0:
            _restore.close()


def _change_settings() -> None:
    if (dtype := torch.get_default_dtype()) != torch.float32:
        _restore.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):  # before torch 2.9
        _restore.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        return
    # Since torch 2.9 each backend has its own precision, and `get_float32_matmul_precision` fails if they differ.
    # "none": a precision is set neither for the backend nor for all of them.
    for part in _PRODUCTS:
        if (precision := part.fp32_precision) not in ("none", "ieee"):
            part.fp32_precision = "none"
            # If it reads the same, it comes from the setting for all backends, which it must follow again afterwards.
            before = "none" if part.fp32_precision == precision else precision
            _restore.callback(setattr, part, "fp32_precision", before)
            part.fp32_precision = "ieee"
