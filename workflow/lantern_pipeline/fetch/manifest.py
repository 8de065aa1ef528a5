"""Manifests: JSON files with the location and the SHA-256 of files that a run uses but does not make.

Rule `fetch_resource` writes a manifest after a download, and rules that use the files have it as their input. The files
themselves are not outputs of a rule. Snakemake deletes outputs before it runs a rule again, so gigabytes would be lost.

An argument `given` is the path of a manifest, or of a file or folder that has none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from lantern.models.stored import StoredModel

KIND = "lantern_resource"
SUMS = "SHA256SUMS"  # file next to weights, in the format of the command sha256sum


class FileDescription(TypedDict):
    """Description of a file, whose content counts as unchanged while `size`, in bytes, and `mtime_ns` are the same."""

    sha256: str
    size: int
    mtime_ns: int


class Manifest(TypedDict):
    """Contents of a manifest. `kind` is KIND.

    Attributes:
        path: the file if there is only one, else the folder of `files`.
        source: origin of the files in words.
        sha256: SHA-256 of the only file, or of the list of all checksums. It identifies the weights in results.
        files: name relative to the folder -> description.
    """

    kind: str
    name: str
    path: str
    source: str
    sha256: str
    files: dict[str, FileDescription]


def describe_file(path: Path) -> FileDescription:
    """Return the description of a file, for which all of it is read."""
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    size, mtime_ns = _stamp(path)
    return {"sha256": sha256, "size": size, "mtime_ns": mtime_ns}


def make_manifest(name: str, place: Path, source: str, files: Mapping[str, FileDescription]) -> Manifest:
    """Return the manifest of the resource `name`. `place` becomes its `path`."""
    return {
        # First, because `read_manifest` looks for it at the beginning of a file.
        "kind": KIND,
        "name": name,
        "path": place.as_posix(),
        "source": source,
        "sha256": _hash_of_all(files),
        "files": {file: files[file] for file in sorted(files)},
    }


def resource_path(given: Path | str) -> Path:
    """Return the path of the file or folder itself, after a check that its content has not changed."""
    manifest = read_manifest(given)
    if manifest is None:
        # Weights in the repository have no manifest, but a list of checksums beside them.
        _check_sums(Path(given))
        return Path(given)
    place = Path(manifest["path"])
    for file, expected in manifest["files"].items():
        path = place / file if place.is_dir() else place
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; delete {given} and run again to fetch it")
        # Hashing gigabytes takes long.
        if _stamp(path) == (expected["size"], expected["mtime_ns"]):
            continue
        found = describe_file(path)["sha256"]
        if found != expected["sha256"]:
            raise ValueError(
                f"{path} has changed since it was fetched: expected sha256 {expected['sha256']}, found {found}; "
                f"delete {given} and run again"
            )
    return place


def resource_sha256(given: Path | str) -> str:
    """Return `Manifest.sha256`, which is computed from the files if there is no manifest."""
    manifest = read_manifest(given)
    return manifest["sha256"] if manifest is not None else _hash_of_all(describe_path(Path(given)))


def describe_conversion(given: Path | str, model: StoredModel) -> dict[str, object]:
    """Return the contents of report.json for a model that was converted from a file of weights."""
    # Imported here: they import torch, which most users of this module do not need.
    from lantern.models.stored import read_report
    from lantern_models.checkpoints.weight_files import find_weights

    path = resource_path(given)
    report = {
        **read_report(find_weights(path)),  # the training report, if the file is in Lantern's layout
        "checkpoint": path.name,
        "sha256": resource_sha256(given),
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    norm_eps = getattr(model.config, "norm_eps", None)
    return report if norm_eps is None else {**report, "norm_eps": norm_eps}


def describe_path(path: Path) -> dict[str, FileDescription]:
    """Return `Manifest.files` of a file, or of a folder except hidden files, such as the record of the fetcher."""
    if path.is_file():
        return {path.name: describe_file(path)}
    files = {file: describe_file(path / file) for file in _files_below(path)}
    if not files:
        raise FileNotFoundError(f"{path} is {'an empty folder' if path.is_dir() else 'neither a file nor a folder'}")
    return files


def read_manifest(given: Path | str) -> Manifest | None:
    """Return None if the path is not that of a manifest, but for example a file of weights."""
    path = Path(given)
    if path.suffix != ".json" or not path.is_file():
        return None
    # Another JSON file may be large, so only its beginning is read.
    with open(path, "rb") as file:
        if KIND.encode() not in file.read(64):
            return None
    return json.loads(path.read_text(encoding="utf-8"))


def _check_sums(path: Path) -> None:
    sums = path.with_name(SUMS)
    if not path.is_file() or not sums.is_file():
        return
    # A line is the 64 digits of a checksum, two spaces and a name, hence 66.
    expected = {line[66:]: line[:64] for line in sums.read_text(encoding="utf-8").splitlines()}
    found = describe_file(path)["sha256"]
    # A file that is not in the list is accepted.
    if found != expected.get(path.name, found):
        raise ValueError(
            f"{path} is damaged: expected sha256 {expected[path.name]} as {sums} states, found {found}; restore it "
            f"with `git checkout {path.parent}`"
        )


def _files_below(folder: Path) -> Iterable[str]:
    files = (path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else ()
    names = (path.relative_to(folder) for path in files)
    return sorted(name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts))


def _hash_of_all(files: Mapping[str, FileDescription]) -> str:
    if len(files) == 1:
        return next(iter(files.values()))["sha256"]
    # The text that the command sha256sum prints for these files.
    lines = "".join(f"{files[file]['sha256']}  {file}\n" for file in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
