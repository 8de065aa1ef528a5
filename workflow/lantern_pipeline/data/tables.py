"""Reading and writing of CSV tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from lantern.io import DamagedFileError, atomic_path, check_last_line


def read_table(path: Path | str, text_columns: Sequence[str] = ()) -> pd.DataFrame:
    """Read a table. Its last line must be complete. Columns with a former name get their name of today.

    Args:
        text_columns: columns that stay text even if a value looks like a number, or like a missing value (such as
            "NA"). The column prompt_id is always text.

    Raises:
        DamagedFileError: the file is incomplete or not a CSV table.
    """
    check_last_line(path)
    try:
        frame = pd.read_csv(path).rename(columns=with_current_names)
        texts = [name for name in (*text_columns, "prompt_id") if name in frame]
        if texts:  # read again, since `keep_default_na` holds for all columns
            frame[texts] = pd.read_csv(path, usecols=texts, dtype=str, keep_default_na=False)[texts]
        return frame
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise DamagedFileError(path, f"is not a CSV table ({error})") from error


def with_current_names(text: str) -> str:
    """Replace the names that columns had before version 1.0 in a column's name or in a JSON text."""
    return text.replace("mean_accepted_length", "tokens_per_forward")


def read_tables(paths: Sequence[Path | str]) -> pd.DataFrame:
    """Read CSV tables that have the same columns, and concatenate them."""
    return pd.concat([read_table(path) for path in paths], ignore_index=True)


def write_table(path: Path | str, frame: pd.DataFrame) -> None:
    """Write a CSV table atomically, without the frame's row index. Floats have six significant digits."""
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")


def method_columns(method: Mapping[str, object]) -> dict[str, object]:
    """Return the columns that identify a method (a `MethodSpec.to_dict`) in a result table.

    Key `name` becomes column `method`. The other keys keep their names.
    """
    return {("method" if name == "name" else name): value for name, value in method.items()}
