"""Reading of the heads of a target, which are shift heads or a state head."""

from __future__ import annotations

from pathlib import Path

import torch

from lantern.checkpoints.native import load_model, read_metadata
from lantern.models.heads import ShiftHeads
from lantern.models.state_head import StateHead


def load_heads(path: Path | str, dtype: torch.dtype, device: torch.device | str) -> ShiftHeads | StateHead:
    """Read shift heads or a state head, whichever a file holds, and prepare them for decoding.

    Args:
        path: file that `save_model` wrote.
        dtype: dtype of the weights of shift heads. A state head is always float32.
        device: device of the model.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged or holds another model.
    """
    kind = (read_metadata(path) or {}).get("kind")
    model = StateHead if kind == StateHead.kind else ShiftHeads
    return load_model(path, model, dtype, device).prepare_for_decoding()
