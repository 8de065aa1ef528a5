"""Models in files of Lantern's layout: one safetensors file with the weights of a model, its config and its *kind*.

The kind names the model's class, such as "draft_model". A class's `wide` lists prefixes of weights that stay float32.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from lantern.io import CHECKSUM_KEY, METADATA_KEY, check_finite_weights, load_tensors, save_tensors

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Model = TypeVar("Model", bound=nn.Module)
Stored = TypeVar("Stored", bound="StoredModel")
T = TypeVar("T")

_OTHER = "it belongs to another model or to other sizes than expected"
# Parts of names that torch.compile, FSDP and activation checkpointing add, with each "module." of
# DistributedDataParallel before or after them: "module._orig_mod.norm.weight" becomes "norm.weight".
_WRAPPERS = re.compile(
    r"(?:(?<=\.)|^)(?:module\.)*(?:(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.(?:module\.)*)+"
)


class StoredModel(nn.Module):
    """A model whose sizes are its `config`, which is stored, too.

    `kind` states the class in the file. `wide` holds prefixes of names of weights that stay float32 in any dtype.
    A class may have a `label`, such as "a state head", and a `remedy` for messages about a missing model.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type]
    wide: ClassVar[tuple[str, ...]] = ()
    label: ClassVar[str]
    remedy: ClassVar[str]
    config: DataclassInstance

    def prepare_for_decoding(self) -> Self:
        """Change the weights in place so that decoding is faster. By default nothing is done."""
        return self


def save_model(path: Path | str, model: StoredModel, metadata: Mapping[str, object] | None = None) -> None:
    """Write a model into one file, which appears only when it is complete.

    `metadata` are JSON values to store besides the config, by name.
    """
    state = remove_wrappers(model.state_dict(), path)  # the model may be compiled
    save_tensors(path, state, {**(metadata or {}), "kind": model.kind, "config": asdict(model.config)})


def load_model(
    path: Path | str,
    cls: type[Stored] | Sequence[type[Stored]],
    dtype: torch.dtype | None = torch.float32,
    device: torch.device | str = "cpu",
) -> Stored:
    """Read a model that `save_model` wrote, in evaluation mode.

    Args:
        cls: the model's class, or classes of which the file's kind names one, the most likely one last.
        dtype: dtype of the weights. None keeps those of the file.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is damaged, holds a model of another class, has weights that are not finite, or has tensors
            that do not fit its config.
    """
    # Tensors are mapped into memory and copied one after the other, so that memory holds the model only once.
    state, metadata = load_tensors(path)
    state = remove_wrappers(state, path)
    check_finite_weights(path, state)
    return restore_model(path, state, metadata, cls, dtype, device)


def restore_model(
    path: Path | str,
    state: Mapping[str, torch.Tensor],
    metadata: Mapping[str, Any],
    cls: type[Stored] | Sequence[type[Stored]],
    dtype: torch.dtype | None = torch.float32,
    device: torch.device | str = "cpu",
) -> Stored:
    """Make a model from the content of its file, as `load_model` does."""
    classes = cls if isinstance(cls, Sequence) else (cls,)
    kind = metadata.get("kind", "no kind at all: not a Lantern checkpoint")
    found = next((known for known in classes if known.kind == kind), None)
    if found is None:
        raise ValueError(f"{path} should hold a {classes[-1].kind}, found {kind}; name another file")
    dtypes = {name: dtype or tensor.dtype for name, tensor in state.items()}
    return load_weights(empty_model(found, found.config_class(**metadata["config"]), dtypes, device), state, path)


def remove_wrappers(tensors: Mapping[str, torch.Tensor], path: Path | str) -> dict[str, torch.Tensor]:
    """Return tensors under the names that they have without wrappers. `path` is for the error message."""
    names = {name: _WRAPPERS.sub("", name) for name in tensors}
    # "module." alone may be a part of a model's own names. It is a wrapper's only if all names begin with it.
    while names and all(name.startswith("module.") for name in names.values()):
        names = {old: name.removeprefix("module.") for old, name in names.items()}
    found = {name: tensors[old] for old, name in names.items()}
    if len(found) < len(tensors):
        name, (first, second) = next(
            (name, same[:2]) for name in found if len(same := [old for old in names if names[old] == name]) > 1
        )
        raise ValueError(f"{path} holds the tensor {name} twice, as {first} and {second}; keep one of them")
    return found


@contextmanager
def _without_storage() -> Iterator[None]:
    """Give new parameters no storage (device "meta") within a block. Large models are then made fast."""
    thread = threading.get_ident()

    def drop_storage(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        # PyTorch calls the hook in all threads. Other threads may make models of their own.
        if parameter is None or threading.get_ident() != thread:
            return None  # the parameter stays
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(
        drop_storage  # pyright: ignore[reportArgumentType]  torch's annotation lacks the hook's result
    )
    try:
        yield
    finally:
        hook.remove()


class _NoInitialisation(TorchFunctionMode):
    """Mode in which the functions in torch.nn.init do nothing."""

    @override
    def __torch_function__(
        self,
        function: Callable[..., T],
        types: Sequence[type],
        args: tuple = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> T | None:
        # On parameters without storage they have no effect, but they would import PyTorch's compiler, in 1.3 s.
        if getattr(function, "__module__", "") == "torch.nn.init":
            return None
        return function(*args, **(kwargs or {}))


def empty_model(
    cls: type[Stored],
    config: DataclassInstance,
    dtype: torch.dtype | Mapping[str, torch.dtype],
    device: torch.device | str = "cpu",
) -> Stored:
    """Make a model whose parameters are not initialised, since the caller fills them.

    `dtype` is that of all parameters, or maps names to dtypes. Names without a dtype, and `wide` ones, get float32.
    """
    # For a large model, storage and random numbers would take gigabytes and seconds.
    with _without_storage(), _NoInitialisation():
        model = cls(config)
    for name, parameter in list(model.named_parameters()):
        wanted = dtype if isinstance(dtype, torch.dtype) else dtype.get(name, torch.float32)
        wanted = torch.float32 if name.startswith(cls.wide) else wanted
        module, _, last = name.rpartition(".")
        empty = torch.empty(parameter.shape, dtype=wanted, device=device)
        setattr(model.get_submodule(module), last, nn.Parameter(empty, requires_grad=parameter.requires_grad))
    # The parameters are there already. This moves the buffers.
    return model.to(device)


def read_metadata(path: Path | str) -> dict[str, Any] | None:
    """Return the metadata of a file that `save_model` wrote, without its tensors. None for other files or no file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = json.loads((file.metadata() or {}).get(METADATA_KEY, "null"))
    except (SafetensorError, OSError, ValueError):
        return None
    return metadata if isinstance(metadata, dict) else None


def read_report(path: Path | str) -> dict[str, Any]:
    """Return the `metadata` that `save_model` got, or an empty dict for a file in another layout."""
    return report_of(read_metadata(path) or {})


def report_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata in a file without what Lantern adds to them."""
    return {name: value for name, value in metadata.items() if name not in ("kind", "config", CHECKSUM_KEY)}


def load_weights(model: Model, state: Mapping[str, torch.Tensor], path: Path | str) -> Model:
    """Copy the weights of a file into a model, in place, and return it in evaluation mode."""
    copy_tensors(state, model.state_dict(), path)
    return model.eval()


def copy_tensors(state: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor], path: Path | str) -> None:
    """Copy the tensors of a file into parameters of the same names, in place. None is copied unless all fit.

    Raises:
        ValueError: a tensor is missing, is unexpected, has another shape than its parameter, or holds no floating-point
            numbers.
    """
    # A batch norm counts its batches in training only. Some programs leave the counter out.
    parameters = {
        name: parameter
        for name, parameter in parameters.items()
        if name in state or not name.endswith(".num_batches_tracked")
    }
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    missing = [name for name in parameters if name not in state]
    unexpected = [name for name in state if name not in parameters]
    for name in [name for name in parameters if name in state]:
        if (found := tuple(state[name].shape)) != shapes[name]:
            raise ValueError(f"{path}: tensor {name} should have shape {shapes[name]}, found {found}; {_OTHER}")
        if parameters[name].is_floating_point() and not state[name].is_floating_point():
            raise ValueError(
                f"{path}: tensor {name} should hold floating-point numbers, found {state[name].dtype}; "
                "quantised weights cannot be read"
            )
    parts = [f"lacks the tensor {missing[0]} of shape {shapes[missing[0]]} ({len(missing)} such)"] if missing else []
    parts += [f"holds the unexpected tensor {unexpected[0]} ({len(unexpected)} such)"] if unexpected else []
    if parts:
        counts = f"expected {len(parameters)} tensors, found {len(state)}"
        raise ValueError(f"{path} {' and '.join(parts)}; {counts}; {_OTHER}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state[name])
