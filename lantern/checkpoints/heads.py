"""Reading of heads of any class that a drafter declares. The kind in the file decides between them."""

from __future__ import annotations

from pathlib import Path

import torch

from lantern.import_paths import load_class
from lantern.method_tables import DRAFTS
from lantern.models.stored import StoredModel, load_model, read_metadata


def load_heads(path: Path | str, dtype: torch.dtype, device: torch.device | str) -> StoredModel:
    """Read the heads in a file that `save_model` wrote, and prepare them for decoding.

    A state head is always float32, whatever `dtype` is.
    """
    kind = (read_metadata(path) or {}).get("kind")
    # A file names no module to import: it may come from anybody.
    classes: list[type[StoredModel]] = [load_class(name) for row in DRAFTS.values() for name in row.trained.values()]
    found = next((cls for cls in classes if cls.kind == kind), classes[-1])  # whose kind `load_model` checks
    return load_model(path, found, dtype, device).prepare_for_decoding()
