"""What `make` asks before a run or a report: may this folder be worked in, are the tables what jobs wrote?

Snakemake makes what is missing, but does not look into files. Tensor files carry a checksum that their readers compare;
the report is made by Snakemake, which reads no checksum.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from lantern.io import DamagedFileError, read_json
from lantern_pipeline.archive.provenance import FILE_NAME, KIND
from lantern_pipeline.data.tables import check_sum, summed_tables
from lantern_pipeline.runtime.locks import LOCK_FILE, RunLock


def check_folder(folder: Path = Path()) -> None:
    """Raises a ValueError where a run goes on in a folder, or was killed there, or nothing can be written."""
    RunLock(folder / LOCK_FILE).check([])
    if any((folder / ".snakemake" / "locks").glob("*")):
        raise ValueError("the last run in this folder was killed: `make resume` goes on where it stopped")
    for name in ("results", ".snakemake"):
        probe = folder / name / f".writable-{os.getpid()}"
        try:
            probe.parent.mkdir(exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ValueError(
                f"{name}/ cannot be written ({error.strerror}): make it writable, or run in a folder of your own"
            ) from error


def find_damage(results: Path) -> Iterator[DamagedFileError]:
    """Find the tables of results/<experiment> that were changed by hand, and a provenance that is cut or empty."""
    for table in summed_tables(results):
        try:
            check_sum(table)
        except DamagedFileError as error:
            yield error
    path = results / FILE_NAME
    try:
        if path.exists() and (not isinstance(found := read_json(path), dict) or found.get("kind") != KIND):
            yield DamagedFileError(path, "is no provenance of a run")
    except DamagedFileError as error:
        yield error


def repair(results: Path) -> None:
    """Set damaged files of results/<experiment> aside, so that the run makes them again; name each on stderr."""
    check_folder()
    for error in find_damage(results):
        error.path.replace(error.path.with_name(f"{error.path.name}.damaged"))
        print(f"{error.path} {error.damage}: set aside as {error.path.name}.damaged, made again", file=sys.stderr)


def check_tables(results: Path) -> None:
    """Raise a ValueError if the report would show a table that no job wrote."""
    for error in find_damage(results):
        raise ValueError(f"{error.path} {error.damage}: run `make reproduce`, which makes it again") from error


if __name__ == "__main__":
    try:
        (check_tables if sys.argv[1] == "--check" else repair)(Path(sys.argv[-1]))
    except ValueError as error:
        sys.exit(str(error))
