"""PyTorch's pickles of weights, read so that nothing in them runs, and compared with their checksums."""

from __future__ import annotations

import argparse
import pickle
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

# What PyTorch's restricted unpickler says of anything that it would have to call; the name, where it gives one.
_FOREIGN_CODE = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)|call reduce|Can only (?:build|create)")
# What training may keep beside the weights: read as nothing at all, so that not even a constructor of theirs runs.
INERT_NAMES = (
    "numpy.dtype",
    "numpy.ndarray",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    *(f"{module}.{kind}Path" for module in ("pathlib", "pathlib._local") for kind in ("Posix", "Windows")),
    *(f"{module}.Pure{kind}Path" for module in ("pathlib", "pathlib._local") for kind in ("Posix", "Windows")),
    "datetime.datetime",
    "datetime.timedelta",
)


class Inert:
    """Stands for a value that nothing here needs: takes any arguments and any state, and keeps none."""

    def __new__(cls, *arguments: Any) -> Inert:
        """Takes anything, as whatever it stands for did."""
        return super().__new__(cls)

    def __init__(self, *arguments: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def load_pickle(path: Path) -> Any:
    """Reads what `torch.save` wrote, in either of its formats.

    Args:
        path: the file.

    Returns:
        Its content; of tensors, those of a zip archive are mapped. Values of INERT_NAMES are `Inert`.

    Raises:
        ValueError: a truncated or damaged file, or one that wants to run code, as every TorchScript archive may.
    """
    is_zip = zipfile.is_zipfile(path)  # PyTorch's format since 1.6, which needs no second copy in memory
    if is_zip:
        _check_members(path)
    # LlamaGen's training keeps its command line, an argparse.Namespace of plain values.
    harmless = [argparse.Namespace, *((Inert, name) for name in INERT_NAMES)]
    try:
        with torch.serialization.safe_globals(harmless):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)  # noqa: TID251
    except pickle.UnpicklingError as error:
        if match := _FOREIGN_CODE.search(str(error)):
            raise ValueError(
                f"{path} is a pickle that wants to run {match[1] or 'code'}, expected nothing but tensors and plain "
                "values; it was not run: do not trust this file"
            ) from error
        raise _truncated(path, error) from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError, IndexError, AttributeError, TypeError) as error:
        raise _truncated(path, error) from error


def _check_members(path: Path) -> None:
    """Compares each member of a zip archive with its checksum, which PyTorch does not where it maps the file.

    A TorchScript archive, known by its table of constants, is refused: its modules' code runs while it is loaded, and
    that code may write files.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            is_program = any(name.endswith("/constants.pkl") for name in archive.namelist())
            for member in [] if is_program else archive.infolist():
                if not member.CRC:
                    continue  # PyTorch writes 0 where it was told to compute none
                with archive.open(member) as content:
                    while content.read(1 << 22):
                        pass
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}); fetch it again") from error
    if is_program:
        raise ValueError(
            f"{path} is a TorchScript archive, a program that runs while it is loaded, expected nothing but tensors; "
            "give the same weights as safetensors (of OpenAI's CLIP: the resource clip_vit_b_32)"
        )


def _truncated(path: Path, error: Exception) -> ValueError:
    size = path.stat().st_size
    reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
    return ValueError(f"{path} ({size} bytes) is truncated or is not a PyTorch file ({reason}); fetch it again")
