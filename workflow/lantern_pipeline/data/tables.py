"""Reading and writing of CSV tables.

Beside a table lies a hidden file with its SHA-256, so that whoever reads it knows it for what a job wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from lantern.io import DamagedFileError, atomic_path, check_last_line, write_text


def read_table(path: Path | str, text_columns: Sequence[str] = ()) -> pd.DataFrame:
    """Reads a CSV table; `text_columns` and prompt ids stay text though they look like numbers or, as "NA", missing."""
    check_last_line(path)
    check_sum(path)
    try:
        frame = pd.read_csv(path)
        texts = [name for name in (*text_columns, "prompt_id") if name in frame]
        if texts:  # read apart: pandas has no way to keep "NA" in some columns and empty cells missing in the others
            frame[texts] = pd.read_csv(path, usecols=texts, dtype=str, keep_default_na=False)[texts]
        return frame
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DamagedFileError(path, f"is not a CSV table ({error})") from error


def read_tables(paths: Sequence[Path | str]) -> pd.DataFrame:
    """Reads tables of the same columns into one."""
    return pd.concat([read_table(path) for path in paths], ignore_index=True)


def write_table(path: Path | str, frame: pd.DataFrame) -> None:
    """Writes a CSV table without its index, floats with six significant digits, atomically, and its sum beside it."""
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")
        write_text(sum_file(path), hashlib.sha256(Path(temporary).read_bytes()).hexdigest())


def sum_file(path: Path | str) -> Path:
    """Where a table's SHA-256 stands."""
    return Path(path).with_name(f".{Path(path).name}.sha256")


def summed_tables(folder: Path) -> Iterator[Path]:
    """Find the tables in a folder, and in those below it, that have a sum."""
    for file in sorted(folder.rglob(".*.sha256")):
        table = file.with_name(file.name[1:].removesuffix(".sha256"))
        if table.exists():
            yield table


def check_sum(path: Path | str) -> None:
    """Makes sure that a table is what a job wrote; one without a sum is a user's own.

    Raises:
        DamagedFileError: it was changed since.
    """
    expected = sum_file(path)
    if not expected.exists():
        return
    if hashlib.sha256(Path(path).read_bytes()).hexdigest() != expected.read_text(encoding="utf-8").strip():
        raise DamagedFileError(Path(path), "was changed after the job that wrote it")


def method_columns(method: Mapping[str, object]) -> dict[str, object]:
    """Turns a method's parts (`MethodSpec.to_dict`) into columns of a table: its `name` is the column `method`."""
    return {("method" if name == "name" else name): value for name, value in method.items()}
