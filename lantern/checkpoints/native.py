"""Our own checkpoint layout: one safetensors file with the weights, the model's config and what kind of model it is.

Layouts of other projects (LlamaGen, the LANTERN authors' drafters) are converted into this one by
`lantern.checkpoints.layouts`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lantern.checkpoints.files import check_finite
from lantern.io import load_tensors, save_tensors


def save_checkpoint(path: Path, model: torch.nn.Module, kind: str, metadata: dict[str, Any] | None = None) -> None:
    """Writes a model's weights and its config dataclass into one file, atomically.

    Args:
        path: target file, by habit `model.safetensors`.
        model: module whose `config` attribute is a dataclass of plain values.
        kind: what the file holds, for example "target_model"; checked on loading.
        metadata: further JSON values to keep beside the weights (training record, accuracies).
    """
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_tensors(path, state, {**(metadata or {}), "kind": kind, "config": asdict(model.config)})


def load_checkpoint(path: Path, kind: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Reads a checkpoint written by `save_checkpoint`.

    Args:
        path: the file.
        kind: the kind of model that the caller expects.

    Returns:
        (weights by name, metadata; metadata["config"] holds the config's fields).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, holds another kind of model, or weights that are not finite.
    """
    state, metadata = load_tensors(path)
    check_finite(path, state)
    found = metadata.get("kind", "no kind at all: not a Lantern checkpoint")
    if found != kind:
        raise ValueError(f"{path} should hold a {kind}, found {found}; delete it and run its rule again")
    return state, metadata


def load_weights(model: torch.nn.Module, state: dict[str, torch.Tensor], path: Path) -> torch.nn.Module:
    """Copies weights into a model after comparing names and shapes; puts it into evaluation mode.

    Raises:
        ValueError: a missing or foreign key, or a shape that differs; names the file, the key, what was expected and
        found.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, shape in expected.items():
        if name not in state:
            raise ValueError(f"{path} lacks the tensor {name} of shape {shape}; it belongs to another model")
        if tuple(state[name].shape) != shape:
            raise ValueError(f"{path}: tensor {name} should have shape {shape}, found {tuple(state[name].shape)}")
    foreign = sorted(set(state) - set(expected))
    if foreign:
        raise ValueError(
            f"{path} holds the foreign tensor {foreign[0]} ({len(foreign)} such); it belongs to another model"
        )
    model.load_state_dict(state)
    return model.eval()


def cast_weights(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Casts parameters and real buffers in place; the rotary table is complex and stays, which `Module.to` would not
    let it.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return model
