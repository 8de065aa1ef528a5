"""Reading the weight files that others publish: PyTorch pickles and safetensors, in one file or in several.

Nothing in a file is ever executed: pickles load with `weights_only=True`. Whatever is wrong with a file is one
sentence with its name.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lantern.checkpoints.pickles import Inert, load_pickle
from lantern.io import check_finite

TOP_LEVEL_KEYS = ("model", "module", "state_dict")  # plain or DDP training, DeepSpeed, everything else
# Safe formats first; the LANTERN authors' own code prefers the pickle, which holds the same numbers.
_STEMS = ("model.safetensors", "pytorch_model.bin")
_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".ckpt"}
_POSITION_TABLE = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|freqs_cis)")

log = logging.getLogger(__name__)


@dataclass
class WeightFile:
    """What a published file or folder holds.

    Attributes:
        path: the file; the index where weights lie in several files.
        tensors: by published name.
        settings: content of `config.json` beside the weights; None where there is none.
        args: command line of the training, where a checkpoint keeps it.
    """

    path: Path
    tensors: dict[str, torch.Tensor]
    settings: dict[str, Any] | None = None
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def settings_path(self) -> Path:
        """Where `config.json` is, or should be."""
        return self.path.parent / "config.json"

    def require_settings(self) -> dict[str, Any]:
        """Content of `config.json`.

        Raises:
            FileNotFoundError: there is none.
        """
        if self.settings is None:
            raise FileNotFoundError(
                2,
                f"there is no file {self.settings_path}: {self.path.name} needs the config.json of its repository "
                "beside it, which says the sizes and the norms' eps",
            )
        return self.settings

    def setting(self, key: str, kind: type = int) -> Any:
        """A value of `config.json`.

        Args:
            key: its name.
            kind: int, float or str; numbers must be positive.

        Raises:
            FileNotFoundError: there is no `config.json`.
            ValueError: the key is missing or holds something else.
        """
        settings = self.require_settings()
        if key not in settings:
            raise ValueError(f"{self.settings_path} lacks the key {key}; fetch it from the checkpoint's repository")
        value = settings[key]
        is_right = isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
        if not is_right or (kind is not str and value <= 0):
            wanted = "text" if kind is str else "a number above 0" if kind is float else "a whole number above 0"
            raise ValueError(f"{self.settings_path}: {key} should be {wanted}, found {value!r}")
        return kind(value)


def read_weights(path: Path) -> WeightFile:
    """Reads a file, or the weights in a folder.

    Args:
        path: a pickle (`.pt`, `.pth`, `.bin`), a safetensors file, the index of a sharded one, or a folder with one of
            these.

    Returns:
        The weights, without the prefix "module." that DistributedDataParallel gives all names, and without tables of
        positions, which a model computes.

    Raises:
        FileNotFoundError: there is no such file or folder, it holds no weights, or a shard is missing.
        ValueError: several weight files, a truncated or damaged file, code in a pickle, something else than weights in
            it, or numbers that are not finite.
    """
    file = find_weights(path)
    result = WeightFile(file, {})
    if file.name.endswith(".index.json"):
        tensors = _read_shards(file)
    else:
        tensors, result.args = _read_file(file)
    result.tensors = _tidy_names(file, tensors)
    check_finite(file, result.tensors)
    if result.settings_path.is_file():
        result.settings = _read_settings(result.settings_path)
    return result


def find_weights(path: Path) -> Path:
    """The weight file of a folder, or the path itself where it is a file; see `read_weights`."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise FileNotFoundError(2, f"there is no file or folder {path}; fetch the checkpoint or correct its path")
    for stem in _STEMS:
        for name in (stem, f"{stem}.index.json"):
            if (path / name).is_file():
                return path / name
    found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    if len(found) == 1:
        return found[0]
    names = ", ".join(file.name for file in found or sorted(path.iterdir())) or "nothing"
    if not found:
        wanted = "model.safetensors, pytorch_model.bin, one of their .index.json, or a .pt file"
        raise FileNotFoundError(2, f"{path} should hold {wanted}, found {names}")
    raise ValueError(f"{path} should hold one weight file, found {names}; name the file instead of the folder")


def compare_with_config(path: Path, key: str, expected: Any, found: Any, config_key: str) -> None:
    """Compares what a file says of itself under `key` with what the config says under `config_key`.

    Raises:
        ValueError: they differ.
    """
    if expected != found:
        raise ValueError(
            f"{path}: {key} should be {expected} as config key {config_key} says, found {found}; "
            "choose the other checkpoint or change the config"
        )


def _tidy_names(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Takes off what wrappers put before all names, and leaves out what is no weight."""
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    tables = [name for name in tensors if _POSITION_TABLE.fullmatch(name)]
    if tables:
        log.info("%s: left out %d tables of positions, such as %s; they are computed", path, len(tables), tables[0])
    return {name: tensor for name, tensor in tensors.items() if name not in tables}


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not text
        raise ValueError(f"{path} is not valid JSON ({error}); fetch it again") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{path} should hold keys and values, found {type(settings).__name__}; fetch it again")
    return settings


def _read_shards(index: Path) -> dict[str, torch.Tensor]:
    places = _read_settings(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{index} should hold the key weight_map, tensor by file; fetch it again")
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(set(places.values())):
        shard = index.parent / Path(name).name  # never a file outside the folder
        if not shard.is_file():
            raise FileNotFoundError(2, f"there is no file {shard}, which {index.name} names; fetch it too")
        found, _ = _read_file(shard)
        wanted = [key for key, place in places.items() if place == name]
        for key in wanted:
            if key not in found:
                raise ValueError(f"{shard} lacks the tensor {key}, which {index.name} says it holds; fetch both again")
        tensors |= {key: found[key] for key in wanted}
    return tensors


def _read_file(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(tensors by name, arguments of the training)."""
    with open(path, "rb") as file:
        start = file.read(16)
    if start.startswith(b"PK") or start.startswith(b"\x80"):
        return _unwrap(path, load_pickle(path))
    if start[8:9] != b"{":  # a safetensors file: eight bytes for the header's length, then JSON
        hint = ", which looks like a web page or a pointer to a file" if start[:1] in b"<v" and start else ""
        raise ValueError(f"{path} should be a PyTorch or safetensors file, found {start!r}{hint}; fetch it again")
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, {}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or is not a safetensors file ({error}); fetch it again") from error


def _unwrap(path: Path, value: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Finds the weights in what a pickle holds: they are all of it, or lie under one of TOP_LEVEL_KEYS."""
    if not isinstance(value, dict):
        raise ValueError(f"{path} should hold tensors by name, found a {type(value).__name__}")
    if value and all(isinstance(part, torch.Tensor) for part in value.values()):
        return dict(value), {}
    for key in TOP_LEVEL_KEYS:
        if key not in value:
            continue
        inner = value[key]
        if not isinstance(inner, dict) or not inner:
            raise ValueError(f"{path}: top-level key {key} should hold tensors by name, found {inner!r:.60}")
        strange = [name for name, part in inner.items() if not isinstance(part, torch.Tensor)]
        if strange:
            raise ValueError(f"{path}: {key} should hold tensors by name, found something else under {strange[0]!r}")
        return dict(inner), _plain_args(value.get("args"))
    found = ", ".join(map(str, list(value)[:8])) or "nothing"
    raise ValueError(f"{path}: top-level key should be one of {', '.join(TOP_LEVEL_KEYS)}, found {found}")


def _plain_args(args: Any) -> dict[str, Any]:
    """The command line of a training, as far as its values are plain."""
    values = vars(args) if isinstance(args, argparse.Namespace) else args
    if not isinstance(values, dict):
        return {}
    return {key: value for key, value in values.items() if not isinstance(value, Inert)}
