"""The weights of published extractors: where they lie, their hash, and their tensors, read without running code."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lantern.models.weight_files import find_weights, read_weights
from lantern.resources.manifest import resource_path, resource_sha256

SCRIPT_EXTRAS = ("input_resolution", "context_length", "vocab_size")  # numbers that OpenAI's archives keep as tensors


@dataclass(frozen=True)
class PublishedWeights:
    """Weights as others publish them.

    Attributes:
        path: of the file.
        sha256: by which results name the weights.
        tensors: by name, on the CPU.
    """

    path: Path
    sha256: str
    tensors: dict[str, Tensor]


def load_published(given: Path | str) -> PublishedWeights:
    """Reads a file of weights: a pickle of tensors, safetensors, or one of OpenAI's TorchScript archives.

    Args:
        given: the manifest of a resource, or the path of a file or folder.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated or damaged, holds something else than tensors, or needs code to be read.
    """
    path = find_weights(resource_path(given))
    tensors = _read_script(path) if _is_script(path) else read_weights(path).tensors
    return PublishedWeights(path, resource_sha256(given), tensors)


def _is_script(path: Path) -> bool:
    """Tells TorchScript archives, which are zip files with a table of constants, from pickles of tensors."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _read_script(path: Path) -> dict[str, Tensor]:
    """The tensors of an archive whose code is loaded as TorchScript, not as Python, and never called."""
    try:
        state = torch.jit.load(path, map_location="cpu").state_dict()
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0][:120]
        raise ValueError(f"{path} is truncated or is no TorchScript archive ({reason}); fetch it again") from error
    return {name: tensor for name, tensor in state.items() if name not in SCRIPT_EXTRAS}
