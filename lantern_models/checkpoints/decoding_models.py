"""Models of a finished run, whose files are in Lantern's layout, loaded together for decoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lantern.codebook import load_nearest_codes
from lantern.extensions import load_class
from lantern.models.draft import DraftModel
from lantern.models.stored import StoredModel, load_model
from lantern.models.target import Target
from lantern.registry import DRAFTS
from lantern.state import DecodingModels
from lantern_models.checkpoints.target import load_target


def load_decoding_models(
    target: Path | str,
    draft: Path | str | None = None,
    table: Path | str | None = None,
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    heads: Path | str | None = None,
) -> DecodingModels:
    """Load models and prepare them for decoding.

    Args:
        draft: file of the draft model. None for methods that need none, such as Jacobi decoding.
        table: file with the tensor "nearest_codes". None for exact methods.
        dtype: dtype of the weights, "float32", "bfloat16" or "float16".
        heads: file of shift heads or a state head. None for methods that need none.

    Raises:
        ValueError: a file is truncated or of the wrong kind, or its sizes differ from the target's.
    """
    torch_dtype = getattr(torch, dtype)
    models = DecodingModels(load_target(target, torch_dtype, device).prepare_for_decoding())
    if draft is not None:
        models.draft = load_model(draft, DraftModel, torch_dtype, device).prepare_for_decoding()
        # A draft model reads the target's hidden states, and uses its head, its prompts and its grid.
        names = ("dim", "vocab_size", "grid", "columns", "num_text_tokens")
        _check_sizes(models.draft, draft, models.target, target, names)
    if heads is not None:
        models.parts["heads"] = part = load_heads(heads, torch_dtype, device)
        _check_sizes(part, heads, models.target, target, ("dim", "line_width"))
    if table is not None:
        models.nearest_codes = load_nearest_codes(table, device)
    return models


def _check_sizes(
    model: StoredModel, path: Path | str, target: Target, target_path: Path | str, names: Sequence[str]
) -> None:
    """Raise a ValueError if a size of a drafting model differs from its target's."""
    for name in names:
        expected = getattr(target.config, name)
        found = getattr(model.config, name)
        if expected != found:
            raise ValueError(
                f"{path}: {name} should be {expected} as in {target_path}, found {found}; train it again for this "
                "target"
            )


def load_heads(path: Path | str, dtype: torch.dtype, device: torch.device | str) -> StoredModel:
    """Read the heads in a file that `save_model` wrote, and prepare them for decoding.

    A state head is always float32, whatever `dtype` is.
    """
    # A file names no module to import: it may come from anybody.
    classes: list[type[StoredModel]] = [load_class(name) for row in DRAFTS.values() for name in row.trained.values()]
    return load_model(path, classes, dtype, device).prepare_for_decoding()
