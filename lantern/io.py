"""Reading and writing of every file between two stages. Whatever is written appears whole or not at all."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from lantern.prompts import Prompt

METADATA_KEY = "lantern"


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Gives a temporary path to write to; on success it takes the place of `path`, on any error it is removed.

    The temporary file lies in the same folder (so that the rename is atomic), its name starts with "." and it keeps the
    suffix, which decides the format for some writers. Parent folders are created. What a killed writer of the same
    file left behind is removed: a file has one writer at a time.

    Args:
        path: the file that shall appear.

    Yields:
        The path to write to.

    Raises:
        OSError: the write failed, for example because the disk is full; names `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    pattern = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}{re.escape(path.suffix)}")
    for leftover in [file for file in path.parent.iterdir() if pattern.fullmatch(file.name)]:
        leftover.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.filename not in (None, str(temporary), temporary):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise OSError(
            getattr(error, "errno", None) or 5, f"could not write {path}: {reason}; nothing was left behind"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path | str, text: str) -> None:
    """Writes a UTF-8 text file, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_tensors(path: Path | str, tensors: dict[str, torch.Tensor], metadata: dict[str, Any] | None = None) -> None:
    """Writes tensors and their metadata into one safetensors file, atomically.

    Args:
        path: target file, `*.safetensors`.
        tensors: by name; any shapes; moved to the CPU and made contiguous.
        metadata: JSON values, kept as one string in the file's header.

    Raises:
        ValueError: the metadata is not JSON (NaN included).
    """
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {METADATA_KEY: _to_json(path, metadata or {})}
    with atomic_path(path) as temporary:
        save_file(ready, temporary, metadata=header)


def load_tensors(path: Path | str, device: str = "cpu") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Reads what `save_tensors` wrote.

    Args:
        path: the file.
        device: where the tensors go.

    Returns:
        (tensors by name, metadata; empty where the file has none of ours).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated or is not safetensors.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(2, f"there is no file {path}; run the rule that writes it")
    try:
        with safe_open(path, framework="pt", device=device) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            header = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(
            f"{path} is truncated or is not a safetensors file ({error}); delete it and run its rule again"
        ) from error
    return tensors, json.loads(header.get(METADATA_KEY, "{}"))


def read_json(path: Path | str) -> Any:
    """Reads a JSON file.

    Raises:
        ValueError: the file is not JSON; names it.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); delete it and run its rule again") from error


def write_json(path: Path | str, value: Any) -> None:
    """Writes a JSON file in insertion order, atomically.

    Raises:
        ValueError: the value holds NaN or something that JSON cannot hold.
    """
    write_text(path, _to_json(path, value, indent=1) + "\n")


def read_table(path: Path | str, text_columns: Sequence[str] = ()) -> pd.DataFrame:
    """Reads a CSV table.

    Args:
        path: the file.
        text_columns: columns that stay text although they look like numbers or, as "NA" does, like a missing value;
            prompt ids always do.

    Raises:
        ValueError: the file is empty or is not a table; names it.
    """
    try:
        frame = pd.read_csv(path)
        texts = [name for name in (*text_columns, "prompt_id") if name in frame]
        if texts:  # read apart: pandas has no way to keep "NA" in some columns and empty cells missing in the others
            frame[texts] = pd.read_csv(path, usecols=texts, dtype=str, keep_default_na=False)[texts]
        return frame
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise ValueError(f"{path} is not a CSV table ({error}); delete it and run its rule again") from error


def write_table(path: Path | str, frame: pd.DataFrame) -> None:
    """Writes a CSV table without its index, floats with six significant digits, atomically."""
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")


def read_prompts(path: Path | str) -> list[Prompt]:
    """Reads a prompt file of any known format; see `lantern.prompts.load_prompts`."""
    from lantern.prompts import load_prompts

    return load_prompts(Path(path))


def write_prompts(path: Path | str, prompts: Sequence[Prompt]) -> None:
    """Writes prompts as JSON lines (id, text, scene), atomically."""
    write_text(path, "".join(json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts))


def _to_json(path: Path | str, value: Any, indent: int | None = None) -> str:
    try:
        return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"what should go into {path} is not JSON: {error}") from error
