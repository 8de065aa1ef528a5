"""Reading and writing of CSV tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from lantern.io import DamagedFileError, atomic_path, check_last_line


def read_table(path: Path | str, text_columns: Sequence[str] = ()) -> pd.DataFrame:
    """Reads a CSV table; `text_columns` and prompt ids stay text though they look like numbers or, as "NA", missing."""
    check_last_line(path)
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
    """Writes a CSV table without its index, floats with six significant digits, atomically."""
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")


def method_columns(method: Mapping[str, object]) -> dict[str, object]:
    """Turns a method's parts (`MethodSpec.to_dict`) into columns of a table: its `name` is the column `method`."""
    return {("method" if name == "name" else name): value for name, value in method.items()}
