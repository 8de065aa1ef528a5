"""Tests of reading IDX files: the array comes back, and every damage is named."""

import gzip

import numpy as np
import pytest

from helpers.tiny_fashion import write_idx
from lantern.io import DamagedFileError
from lantern_pipeline.data.idx_files import read_idx


def test_an_array_comes_back(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "array.gz", array)
    assert np.array_equal(read_idx(tmp_path / "array.gz", 3), array)


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b"no gzip", "is no gzip file that can be read"),
        (gzip.compress(bytes(40))[:-12], "is no gzip file that can be read"),
        (gzip.compress(b"\0\0"), "is no IDX file of bytes with 1 dimensions"),
        (gzip.compress(bytes((0, 0, 8, 2, 0, 0, 0, 1))), "is no IDX file of bytes with 1 dimensions"),
        (gzip.compress(bytes((0, 0, 8, 1, 0, 0, 0, 3, 1, 2))), "should hold 3 bytes after its header"),
        (gzip.compress(bytes((0, 0, 8, 1, 0, 0, 0, 1, 1, 2))), "should hold 1 bytes after its header"),
        (gzip.compress(bytes((0, 0, 8, 1, 255, 0, 0, 0))), "states 4278190080 bytes"),
    ],
    ids=range(7),
)
def test_damage_is_named(tmp_path, content, damage):
    (tmp_path / "file.gz").write_bytes(content)
    with pytest.raises(DamagedFileError, match=damage):
        read_idx(tmp_path / "file.gz", 1)
