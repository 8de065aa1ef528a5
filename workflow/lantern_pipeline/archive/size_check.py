"""Checks what a checkpoint of unknown origin asks for before a model of that size is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from lantern.checkpoints.native import read_metadata

MAX_SIZE = 2**17  # of any number in a model's config


def check_model_size(path: Path, config_class: type, count: Callable[[Any], int], grid: int) -> None:
    """Checks, before a model is built, that the sizes in our checkpoint `path` are plain numbers, `grid` tokens a side,
    and ask for no more parameters (`count` of them) than the file holds.
    """
    metadata = read_metadata(path)
    if metadata is None:
        raise ValueError(f"{path} is truncated or is not a safetensors file of ours")
    sizes = metadata.get("config")
    names = {field.name for field in fields(config_class)}
    if not isinstance(sizes, dict) or set(sizes) - names or not all(_is_size(value) for value in sizes.values()):
        raise ValueError(f"{path}: the model's config must hold positive numbers for {', '.join(sorted(names))}")
    config = config_class(**sizes)
    if config.grid != grid:
        raise ValueError(f"{path}: grid should be {grid} as config key tokenizer.grid says, found {config.grid}")
    needed = 2 * count(config)  # bytes in the narrowest format
    if needed > path.stat().st_size:
        raise ValueError(f"{path}: its config asks for {needed} bytes of weights, the file has {path.stat().st_size}")


def _is_size(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, int | float) and 0 < value < MAX_SIZE)
