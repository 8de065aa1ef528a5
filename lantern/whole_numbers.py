"""Whole numbers in every form that users pass: of Python, numpy or torch. This module imports neither of the latter."""

from __future__ import annotations

import operator
from typing import Any


def as_whole(value: Any) -> int | None:
    """Return a whole number as an int, also one of numpy or a torch scalar, or None for bool and all else."""
    # A torch tensor of one value, in any number of axes and also of bool, has an __index__. The names of the dtypes are
    # "bool" in numpy and "torch.bool".
    if isinstance(value, bool) or getattr(value, "ndim", 0) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
