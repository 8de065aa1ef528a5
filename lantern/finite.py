"""The check of the outputs of a stage, such as the text encoder or the image tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def check_finite(values: torch.Tensor, names: Sequence[str], what: str, stage: str) -> None:
    """Raise a FloatingPointError if an output of a stage is nan or infinite. A GPU is synchronised.

    Args:
        values: (n, ...).
        names: name of each output, such as "prompt 3". The message names the first that is not finite.
        what: what the outputs are, in the plural.
        stage: the part of the model that computed them.
    """
    is_bad = ~values.isfinite().flatten(1).all(1)  # (n,)
    if is_bad.any():
        # `argmax`, which takes no bool, finds the first one.
        raise FloatingPointError(
            f"{what} of {names[int(is_bad.int().argmax())]} are not finite, from {stage} ({int(is_bad.sum())} of "
            f"{len(names)} are not); check its weights, or use float32"
        )
