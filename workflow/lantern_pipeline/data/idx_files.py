"""Reading of IDX files, the format of MNIST: a header with the shape, then the bytes of the array."""

from __future__ import annotations

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np

from lantern.io import DamagedFileError

_UINT8 = 8  # code of the type in the header
_MAX_BYTES = 1 << 31


def read_idx(path: Path, num_dims: int) -> np.ndarray:
    """Read the array of a gzip-compressed IDX file, uint8 and read-only.

    Raises:
        DamagedFileError: the file is not an IDX file of bytes with `num_dims` dimensions, or is longer or shorter than
            its header states.
    """
    try:
        with gzip.open(path) as file:
            header = file.read(4 + 4 * num_dims)
            # The header is 0, 0, the type, the number of dimensions, then each length as a big-endian int32.
            if len(header) < 4 + 4 * num_dims or header[:4] != bytes((0, 0, _UINT8, num_dims)):
                raise DamagedFileError(path, f"is no IDX file of bytes with {num_dims} dimensions")
            shape = [int.from_bytes(header[4 + 4 * i : 8 + 4 * i], "big") for i in range(num_dims)]
            wanted = prod(shape)
            # A gzip file of a few kilobytes may unpack into gigabytes.
            if wanted > _MAX_BYTES:
                raise DamagedFileError(path, f"states {wanted} bytes, more than {_MAX_BYTES}")
            # One byte more than wanted, to find a file that is too long.
            content = file.read(wanted + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DamagedFileError(path, f"is no gzip file that can be read ({error})") from error
    if len(content) != wanted:
        raise DamagedFileError(path, f"should hold {wanted} bytes after its header, and has fewer or more")
    return np.frombuffer(content, np.uint8).reshape(shape)
