"""Check of the results of a run against the digests in their provenance.

The results may come from another person. Files outside their folder are therefore never read or written, and no code
in them is run.
"""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from lantern.io import read_json
from lantern_pipeline.archive.provenance import FILE_NAME, FILE_PARTS, KIND, Provenance
from lantern_pipeline.fetch.manifest import describe_file
from lantern_pipeline.schema.methods import own_classes

# A part of a path begins with a letter, a digit or "_", which excludes "..", "/" at the start, and hidden files.
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")


def open_results(path: Path | str, workplace: Path) -> Path:
    """Return the folder of a run's results. If `path` is a zip file, it is unpacked into `workplace` first.

    Raises:
        FileNotFoundError: there is no such folder or file.
        ValueError: it has no provenance.json, or the zip file is damaged or too large for the disk.
    """
    folder = Path(path)
    if folder.is_file():
        folder = _unpack(folder, workplace)
    elif not folder.is_dir():
        raise FileNotFoundError(f"there is no folder or zip file {path}")
    if not (folder / FILE_NAME).is_file():
        raise ValueError(f"{path} holds no {FILE_NAME}: name results/<experiment> of a finished run")
    return folder


def read_provenance(folder: Path) -> Provenance:
    """Read provenance.json. Raise a ValueError if its form is wrong, or if it names a file outside the folder."""
    try:
        provenance = read_json(folder / FILE_NAME)
        code = provenance["code"]
        # Called for its errors: `check_files` relies on these keys of the config.
        _foreign_models(provenance["config"])
        is_ours = (
            provenance["kind"] == KIND
            and all(map(_NAME.fullmatch, sums_of(provenance)))
            and isinstance(code["fingerprints"], dict)
            # `compare_code` puts both into a sentence for the terminal, so they may hold no control characters.
            and re.fullmatch(r"[\w.+-]{1,40}", code["version"]) is not None
            and (code["commit"] is None or re.fullmatch(r"[0-9a-f]{40,64}", code["commit"]) is not None)
        )
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError):  # also JSON that is nested too deeply
        is_ours = False
    if not is_ours:
        raise ValueError(f"{FILE_NAME} is no provenance of Lantern: delete it, then run the workflow again")
    return provenance


def check_files(folder: Path, provenance: Provenance) -> int:
    """Compare the results with their digests, and return the number of files that the provenance lists.

    Raises:
        ValueError: a file was changed or is missing, or the provenance does not list summary.csv.
    """
    sums, foreign = sums_of(provenance), _foreign_models(provenance["config"])
    if "summary.csv" not in sums:
        raise ValueError(f"{FILE_NAME} does not name summary.csv: delete it, then run the workflow again")
    missing, changed = [], []
    for name, sha256 in sums.items():
        if not (folder / name).is_file():
            # The licence of published weights may forbid that a converted model is sent with the results.
            if not re.fullmatch(foreign, name):
                missing.append(name)
        elif describe_file(folder / name)["sha256"] != sha256:
            changed.append(name)
    found = [f"{kind}: {shorten(names)}" for kind, names in (("changed", changed), ("missing", missing)) if names]
    if found:
        raise ValueError(
            f"the results are not those of {FILE_NAME} ({'; '.join(found)}); delete these files, then run the workflow "
            "again, or have the results sent again"
        )
    return len(sums)


def files_outside(folder: Path, provenance: Provenance) -> list[str]:
    """Return the sorted names of files that the provenance does not list, such as the pages of the report."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return sorted(found - sums_of(provenance).keys() - {FILE_NAME})


def sums_of(provenance: Provenance) -> dict[str, str]:
    """Return the SHA-256 of each file that a provenance lists, by its name relative to the folder of the results."""
    return {name: entry["sha256"] for part in FILE_PARTS for name, entry in provenance[part].items()}


def shorten(names: list[str]) -> str:
    """Return the first three names as text, and the number of further names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def refuse_own_classes(found: object, where: str) -> None:
    """Raise a ValueError if JSON values from the file `where` name a custom class, as "module:Class"."""
    for key, value in own_classes(found):
        raise ValueError(
            f"{where}: {key} must be one of Lantern's own, got {value!r:.100}; images of a user's class, which would "
            "be imported, are not generated again: verify with --images 0"
        )


def _unpack(path: Path, workplace: Path) -> Path:
    try:
        with zipfile.ZipFile(path) as archive:
            # The zip file may hold the folder of the results, or its contents without the folder.
            found = [name for name in archive.namelist() if PurePosixPath(name).name == FILE_NAME]
            if len(found) != 1 or not _NAME.fullmatch(found[0]):
                raise ValueError(f"{path} must hold one {FILE_NAME}, found {len(found)}: zip one results/<experiment>")
            # `zipfile` reads no more of a member than its stated size, so the sum is a bound.
            size, free = sum(member.file_size for member in archive.infolist()), shutil.disk_usage(workplace).free
            if size > free:
                raise ValueError(f"{path} unpacks to {size} bytes, of which {free} are free in {workplace}: set TMPDIR")
            for member in archive.infolist():
                # `extract` removes drives, leading slashes and ".." from a name.
                archive.extract(member, workplace)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        # An encrypted member is a RuntimeError, an unknown compression a NotImplementedError.
        raise ValueError(f"{path} is damaged or is no plain zip file ({error}); have it sent again") from error
    return (workplace / found[0]).parent


def _foreign_models(config: Mapping[str, Any]) -> str:
    """Return a regular expression for the names of the models that a run converted from published weights."""
    checkpoints = {section: config[section]["checkpoint"] for section in ("tokenizer", "target", "drafter")}
    # Weights below models/ are Lantern's own, which may be distributed.
    foreign = [section for section, path in checkpoints.items() if path and not Path(path).is_relative_to("models")]
    # The path of the tokenizer has no training seed. "(?!)" matches no name.
    return rf"({'|'.join(foreign)})/(s\d+/)?model\.safetensors" if foreign else "(?!)"
