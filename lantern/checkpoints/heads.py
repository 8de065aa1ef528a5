"""Reading of heads of either class. The kind in the file decides between them."""

from __future__ import annotations

from pathlib import Path

import torch

from lantern.checkpoints.native import load_model, read_metadata
from lantern.models.heads import ShiftHeads
from lantern.models.state_head import StateHead


def load_heads(path: Path | str, dtype: torch.dtype, device: torch.device | str) -> ShiftHeads | StateHead:
    """Read the heads in a file that `save_model` wrote, and prepare them for decoding.

    A state head is always float32, whatever `dtype` is.
    """
    kind = (read_metadata(path) or {}).get("kind")
    model = StateHead if kind == StateHead.kind else ShiftHeads  # whose kind `load_model` checks
    return load_model(path, model, dtype, device).prepare_for_decoding()
