"""Our own checkpoint layout: one safetensors file with the weights, the model's config and what kind of model it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from lantern.io import CHECKSUM_KEY, METADATA_KEY, check_finite, load_tensors, save_tensors
from lantern.models.stored import StoredModel

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Model = TypeVar("Model", bound=nn.Module)
Stored = TypeVar("Stored", bound=StoredModel)
T = TypeVar("T")

_OTHER = "it belongs to another model or to other sizes than expected"


def save_model(path: Path | str, model: StoredModel, metadata: Mapping[str, object] | None = None) -> None:
    """Writes a model's weights, its `config`, its class's `kind` and further JSON values into one file, atomically."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_tensors(path, state, {**(metadata or {}), "kind": model.kind, "config": asdict(model.config)})


def load_model(
    path: Path | str, cls: type[Stored], dtype: torch.dtype | None = torch.float32, device: torch.device | str = "cpu"
) -> Stored:
    """Reads a model of class `cls` that `save_model` wrote, in evaluation mode, tensor by tensor: memory holds it once,
    in its final number format, `dtype` but for `cls.wide`; None for the file's.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, holds another kind of model, weights that are not finite, or tensors that do
            not fit its config.
    """
    state, metadata = load_tensors(path)
    check_finite(path, state)
    found = metadata.get("kind", "no kind at all: not a Lantern checkpoint")
    if found != cls.kind:
        raise ValueError(f"{path} should hold a {cls.kind}, found {found}; name another file")
    formats = {name: dtype or tensor.dtype for name, tensor in state.items()}
    return load_weights(empty_model(cls, cls.config_class(**metadata["config"]), formats, device), state, path)


def _drop_storage(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
    """Return a parameter without storage, in place of one that a module registers."""
    return None if parameter is None else nn.Parameter(parameter.to("meta"))


class _NoInitialisation(TorchFunctionMode):
    """Leaves out the functions of torch.nn.init: on parameters without storage they do nothing, but import PyTorch's
    compiler first: 1.3 s and 150 MB.
    """

    def __torch_function__(
        self,
        function: Callable[..., T],
        types: Sequence[type],
        args: tuple = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> T | None:
        if getattr(function, "__module__", "") == "torch.nn.init":
            return None
        return function(*args, **(kwargs or {}))


def empty_model(
    cls: type[Stored],
    config: DataclassInstance,
    dtype: torch.dtype | Mapping[str, torch.dtype],
    device: torch.device | str = "cpu",
) -> Stored:
    """A model whose parameters are still to be written, of one number format or of one by name (float32 where a name is
    missing); those whose names begin with one of `cls.wide` are float32.
    """
    # At first without storage and random numbers, which are gigabytes and seconds of a large model.
    without_storage = register_module_parameter_registration_hook(
        _drop_storage  # pyright: ignore[reportArgumentType]  torch's annotation lacks the hook's result
    )
    try:
        with _NoInitialisation():
            model = cls(config)
    finally:
        without_storage.remove()
    for name, parameter in list(model.named_parameters()):
        wanted = dtype if isinstance(dtype, torch.dtype) else dtype.get(name, torch.float32)
        wanted = torch.float32 if name.startswith(cls.wide) else wanted
        module, _, last = name.rpartition(".")
        empty = torch.empty(parameter.shape, dtype=wanted, device=device)
        setattr(model.get_submodule(module), last, nn.Parameter(empty))
    return model.to(device)


def read_metadata(path: Path | str) -> dict[str, Any] | None:
    """Metadata of a file in our own layout, without reading its tensors; None of any other file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get(METADATA_KEY, "null"))
    except (SafetensorError, OSError, ValueError):
        return None
    return metadata if isinstance(metadata, dict) else None


def read_report(path: Path | str) -> dict[str, Any]:
    """What `save_model` was given to keep beside the weights; empty where the file is of another layout."""
    own = ("kind", "config", CHECKSUM_KEY)
    return {name: value for name, value in (read_metadata(path) or {}).items() if name not in own}


def load_weights(model: Model, state: Mapping[str, torch.Tensor], path: Path | str) -> Model:
    """A model with the weights of a file, in evaluation mode; errors are those of `copy_tensors`."""
    copy_tensors(state, model.state_dict(), path)
    return model.eval()


def copy_tensors(state: Mapping[str, torch.Tensor], places: Mapping[str, torch.Tensor], path: Path | str) -> None:
    """Copies a file's tensors by name to their places in a model, tensors or parts of them, once all of them fit.

    Raises:
        ValueError: a tensor of another shape, a missing or a foreign one, or one that holds no floating-point numbers.
    """
    shapes = {name: tuple(place.shape) for name, place in places.items()}
    missing, foreign = [name for name in places if name not in state], [name for name in state if name not in places]
    for name in [name for name in places if name in state]:
        if (found := tuple(state[name].shape)) != shapes[name]:
            raise ValueError(f"{path}: tensor {name} should have shape {shapes[name]}, found {found}; {_OTHER}")
        if places[name].is_floating_point() and not state[name].is_floating_point():
            raise ValueError(
                f"{path}: tensor {name} should hold floating-point numbers, found {state[name].dtype}; "
                "quantised weights cannot be read"
            )
    parts = [f"lacks the tensor {missing[0]} of shape {shapes[missing[0]]} ({len(missing)} such)"] if missing else []
    parts += [f"holds the foreign tensor {foreign[0]} ({len(foreign)} such)"] if foreign else []
    if parts:
        counts = f"expected {len(places)} tensors, found {len(state)}"
        raise ValueError(f"{path} {' and '.join(parts)}; {counts}; {_OTHER}")
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(state[name])
