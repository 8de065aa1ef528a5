"""The weights of published extractors: where they lie, their hash, and their tensors, read without running code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from lantern.checkpoints.files import find_weights, read_weights
from lantern_pipeline.downloads.manifest import resource_path, resource_sha256


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
    """Reads a file of weights: safetensors, or a pickle of tensors.

    Args:
        given: the manifest of a resource, or the path of a file or folder.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated or damaged, holds something else than tensors, or needs code to be read.
    """
    path = find_weights(resource_path(given))
    return PublishedWeights(path, resource_sha256(given), read_weights(path).tensors)
