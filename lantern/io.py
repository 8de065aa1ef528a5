"""Reading and writing of tensors, JSON and text, and checks that numbers are finite.

A file is written completely or not at all. Tensors are in safetensors files. Lantern's have one metadata entry,
METADATA_KEY, with JSON values and a checksum of both. Files of other programs have no checksum, and are read all the
same.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    import torch  # imported only by functions that need it, so that reading tables starts fast

METADATA_KEY = "lantern"
CHECKSUM_KEY = "content_sha256"  # inside the metadata entry, since safetensors writes several entries in any order
_VALUES_AT_ONCE = 2**24  # number of values that are summed at once, since PyTorch converts them to float32 first


class DamagedFileError(ValueError):
    """Error about a file whose contents differ from those that were written into it.

    The message is the path, the damage, such as "is truncated", and a remedy.
    """

    def __init__(self, path: Path | str, damage: str) -> None:
        super().__init__(f"{path} {damage}; fetch it again or make it again")
        self.path = Path(path)
        self.damage = damage


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Provide a temporary path, which replaces `path` when the `with` block ends without an error.

    It is in the folder of `path`, so that the replacement is atomic: other programs find either the old file or the
    complete new one. Parent folders are created. A file may have only one writer at a time.

    Raises:
        OSError: the write failed, for example because the disk is full. The message names `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    pattern = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}{re.escape(path.suffix)}")
    # As a file has one writer, other temporary files of it were left by a killed one.
    for leftover in [file for file in path.parent.iterdir() if pattern.fullmatch(file.name)]:
        leftover.unlink(missing_ok=True)
    # With the suffix of `path`, from which some writers choose the format.
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        # Without fsync, a crash of the machine could leave the new name with no contents.
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        # An error about another file, which the caller opened within the block.
        if isinstance(error, OSError) and error.filename not in (None, str(temporary), temporary):
            raise
        number, reason = _cause_of(error)
        raise OSError(number, f"could not write {path}: {reason}; no incomplete file was left") from error
    finally:
        temporary.unlink(missing_ok=True)


def _cause_of(error: OSError | SafetensorError) -> tuple[int, str]:
    """Return errno and the text of a system error. safetensors has the number only in its message, if at all."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno, error.strerror or str(error)
    found = re.search(r"\(os error (\d+)\)", str(error))
    return (int(found[1]), os.strerror(int(found[1]))) if found else (errno.EIO, str(error))


def write_text(path: Path | str, text: str) -> None:
    """Write a text as UTF-8."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_tensors(
    path: Path | str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, object] | None = None
) -> None:
    """Write tensors by name, and metadata that are JSON values, into one file."""
    from safetensors.torch import save_file

    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = metadata or {}
    metadata = {**metadata, CHECKSUM_KEY: _checksum(ready, _to_json(path, metadata))}
    header = {METADATA_KEY: _to_json(path, metadata)}
    with atomic_path(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode  # from the umask; safetensors would make the file readable by its owner only
        save_file(ready, temporary, metadata=header)
        temporary.chmod(mode)


def load_tensors(path: Path | str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors, by name, and the metadata of a file, after a check of its checksum, if it has one.

    The check takes two seconds for 3 GB.

    Raises:
        FileNotFoundError: the file does not exist.
        DamagedFileError: the file is truncated, is not a safetensors file, or differs from its checksum.
    """
    path = Path(path)
    if not path.is_file():
        # 2 is errno.ENOENT.
        raise FileNotFoundError(2, f"there is no file {path}; correct the path, or make the file first")
    tensors, metadata = open_tensors(path)
    return tensors, metadata or {}


def open_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any] | None]:
    """Map the tensors of a safetensors file into memory, and return what `load_tensors` does.

    The metadata are None if another program wrote the file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            text = (file.metadata() or {}).get(METADATA_KEY)
    except SafetensorError as error:
        raise DamagedFileError(path, f"is truncated or is not a safetensors file ({error})") from error
    if text is None:
        return tensors, None
    try:
        metadata = json.loads(text)
    except json.JSONDecodeError as error:
        raise DamagedFileError(path, f"is damaged: its metadata are not JSON ({error})") from error
    expected = metadata.pop(CHECKSUM_KEY, None)  # which does not cover itself
    if expected is not None and expected != (found := _checksum(tensors, _to_json(path, metadata))):
        raise DamagedFileError(path, f"is damaged: its SHA-256 should be {expected}, found {found}")
    return tensors, metadata


def _checksum(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    import torch

    digest = hashlib.sha256(text.encode())
    # Sorted, since safetensors stores tensors in an order of its own.
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # As bytes, since numpy has no bfloat16. A view as bytes needs an axis, which a scalar lacks.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_finite_weights(path: Path | str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise a ValueError that names the first tensor of a file with nan or infinity, and the number of such values."""
    import torch

    for name, tensor in tensors.items():
        parts = tensor.reshape(-1).split(_VALUES_AT_ONCE) if tensor.is_floating_point() else ()
        # nan and infinity make the sum nan or infinite. Finite numbers may do so, too, hence the count below.
        if all(part.sum(dtype=torch.float32).isfinite() for part in parts):
            continue  # the sum takes one pass over the tensor, the count below several
        if num_bad := int((~tensor.isfinite()).sum()):
            raise ValueError(
                f"{path}: tensor {name} should hold finite numbers, found {num_bad} of {tensor.numel()} that are nan "
                "or infinite; fetch it again, or take another checkpoint"
            )


def check_finite_outputs(values: torch.Tensor, names: Sequence[str], what: str, stage: str) -> None:
    """Raise a FloatingPointError if an output of a stage is nan or infinite. A GPU is synchronised.

    Args:
        values: (n, ...).
        names: name of each output, such as "prompt 3". The message names the first that is not finite.
        what: what the outputs are, in the plural.
        stage: the part of the model that computed them.
    """
    is_bad = ~values.isfinite().flatten(1).all(1)  # (n,)
    if is_bad.any():
        # `argmax`, which takes no bool, finds the first one.
        raise FloatingPointError(
            f"{what} of {names[int(is_bad.int().argmax())]} are not finite, from {stage} ({int(is_bad.sum())} of "
            f"{len(names)} are not); check its weights, or use float32"
        )


def read_json(path: Path | str) -> Any:
    """Read a JSON file.

    Raises:
        DamagedFileError: the file is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not text
        raise DamagedFileError(path, f"is not valid JSON ({error})") from error


def write_json(path: Path | str, value: object) -> None:
    """Write a JSON file. Keys keep their order. NaN raises a ValueError."""
    write_text(path, _to_json(path, value, indent=1) + "\n")


def check_last_line(path: Path | str) -> None:
    """Check that the last line of a text file is complete: text files have no checksum to show that one is truncated.

    Raises:
        DamagedFileError: the last line does not end with a line break.
    """
    with open(path, "rb") as file:
        if size := file.seek(0, os.SEEK_END):  # an empty file is complete
            file.seek(size - 1)
            if file.read(1) != b"\n":
                raise DamagedFileError(path, "is truncated: its last line has no end")


def _to_json(path: Path | str, value: object, indent: int | None = None) -> str:
    try:
        return json.dumps(value, allow_nan=False, indent=indent, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the value to write into {path} is not JSON: {error}") from error
