"""Reading what `lantern_pipeline.archive.packing` packs, without trust:
names, kinds, sizes and hashes are checked.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lantern_pipeline.archive.provenance import FILE_NAME, FILE_PARTS, KIND

MANIFEST = "MANIFEST.sha256"
CONFIG = "config.json"
MAX_MEMBERS = 100_000
MAX_TEXT_BYTES = 64 * 2**20  # of the manifest, the config and the provenance
MAX_NAME = 300  # characters
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_NAME.pattern})")
PIECE = 2**20  # bytes read at once


def copy_hashed(source: IO[bytes], copy: IO[bytes]) -> str:
    """Copies a file in pieces, so that a large one is never in memory, and returns its SHA-256."""
    digest = hashlib.sha256()
    while piece := source.read(PIECE):
        digest.update(piece)
        copy.write(piece)
    return digest.hexdigest()


@dataclass(frozen=True)
class HashReport:
    """What comparing an archive with its manifest found: `num_files` are whole; names of the others, in order."""

    num_files: int
    damaged: list[str]
    missing: list[str]
    foreign: list[str]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is damaged, missing or foreign."""
        return not (self.damaged or self.missing or self.foreign)


class Archive:
    """An archive opened for reading; use it in a `with` block.

    Nothing of it is believed before it has been looked at. Names are relative and of letters, digits, ".", "_" and "-";
    members are plain files, stored uncompressed, so that together they are no larger than the archive. `manifest` is
    name -> SHA-256 of every other file; whoever has `manifest_sha256` from the author knows who made the archive.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file {path}")
        try:
            self._zip = zipfile.ZipFile(self.path)
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
            raise ValueError(f"{path} is truncated or is no archive of `lantern pack` ({error})") from error
        try:
            _check_members(self.path, self._zip.infolist())
            self._sizes = {member.filename: member.file_size for member in self._zip.infolist()}
            text = self._read_text(MANIFEST)
            self.manifest = self._parse_manifest(text)
            self.manifest_sha256 = hashlib.sha256(text.encode()).hexdigest()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    @property
    def names(self) -> list[str]:
        """Names of all members, in order."""
        return sorted(self._sizes)

    def check_hashes(self) -> HashReport:
        """Reads every file and compares it with the manifest."""
        present = self._sizes.keys() - {MANIFEST}
        damaged = [name for name in sorted(present & self.manifest.keys()) if not self._is_whole(name)]
        return HashReport(
            num_files=len(present & self.manifest.keys()) - len(damaged),
            damaged=damaged,
            missing=sorted(self.manifest.keys() - present),
            foreign=sorted(present - self.manifest.keys()),
        )

    def read_json(self, name: str) -> Any:
        """Reads a JSON file of at most MAX_TEXT_BYTES bytes."""
        try:
            return json.loads(self._read_text(name))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{self.path}: {name} is not valid JSON ({error})") from error

    def extract(self, name: str, folder: Path) -> Path:
        """Writes one file below a folder, under its own name, and returns its path."""
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._open(name) as member, open(path, "wb") as file:
            sha256 = copy_hashed(member, file)
        if sha256 != self.manifest.get(name):
            raise ValueError(f"{self.path}: {name} is damaged; have the archive sent again")
        return path

    def _open(self, name: str) -> IO[bytes]:
        if name not in self._sizes:
            raise ValueError(f"{self.path} lacks the file {name}; pack the experiment again")
        try:
            return self._zip.open(name)
        except zipfile.BadZipFile as error:
            raise ValueError(f"{self.path}: {name} is damaged ({error}); have the archive sent again") from error

    def _is_whole(self, name: str) -> bool:
        try:
            with self._open(name) as member:
                return hashlib.file_digest(member, "sha256").hexdigest() == self.manifest[name]
        except (zipfile.BadZipFile, ValueError, OSError, EOFError):  # the zip file's own checks
            return False

    def _read_text(self, name: str) -> str:
        if self._sizes.get(name, 0) > MAX_TEXT_BYTES:
            raise ValueError(f"{self.path}: {name} may have {MAX_TEXT_BYTES} bytes, found {self._sizes[name]}")
        try:
            with self._open(name) as member:
                return member.read().decode()
        except (zipfile.BadZipFile, UnicodeDecodeError, EOFError) as error:
            raise ValueError(f"{self.path}: {name} is damaged ({error}); have the archive sent again") from error

    def _parse_manifest(self, text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), 1):
            match = _LINE.fullmatch(line)
            if match is None or match[2] in found:
                raise ValueError(
                    f"{self.path}: line {number} of {MANIFEST} must be a new SHA-256, two spaces and a name, got "
                    f"{line!r:.100}"
                )
            found[match[2]] = match[1]
        return found


def read_provenance(archive: Archive) -> tuple[str, dict[str, Any]]:
    """Folder of the experiment in the archive, and its provenance, compared with the manifest and the config."""
    found = [name for name in archive.names if re.fullmatch(rf"results/{_PART}/{re.escape(FILE_NAME)}", name)]
    if len(found) != 1:
        raise ValueError(f"{archive.path} must hold one results/<experiment>/{FILE_NAME}, found {len(found)}")
    folder, provenance = found[0].rpartition("/")[0], archive.read_json(found[0])
    if not _is_provenance(provenance):
        raise ValueError(f"{archive.path}: {found[0]} is no provenance of Lantern; pack the experiment again")
    for part in FILE_PARTS:
        for name, entry in provenance[part].items():
            packed = archive.manifest.get(f"{folder}/{name}", entry["sha256"])
            if packed != entry["sha256"]:
                raise ValueError(
                    f"{archive.path}: {folder}/{name} is not the file of {FILE_NAME}: expected sha256 "
                    f"{entry['sha256']}, found {packed}"
                )
    if archive.read_json(CONFIG) != provenance["config"]:
        raise ValueError(f"{archive.path}: {CONFIG} is not the config of {found[0]}; pack the experiment again")
    return folder, provenance


def _is_provenance(value: Any) -> bool:
    """Whether a value has the parts that are used here, so that none is looked for in vain."""
    try:
        code, files = value["code"], [entry for part in FILE_PARTS for entry in value[part].values()]
        hashes = [entry["sha256"] for entry in files]
        return (
            value["kind"] == KIND
            and isinstance(value["config"], dict)
            and isinstance(code["fingerprints"], dict)
            and all(isinstance(sha256, str) for sha256 in hashes)
            and re.fullmatch(r"[\w.+-]{1,40}", code["version"]) is not None
            and (code["commit"] is None or re.fullmatch(r"[0-9a-f]{40,64}", code["commit"]) is not None)
        )
    except (KeyError, TypeError, AttributeError):
        return False


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    if len(members) > MAX_MEMBERS:
        raise ValueError(f"{path} may hold {MAX_MEMBERS} files, found {len(members)}")
    seen: set[str] = set()
    for member in members:
        name = member.orig_filename  # as written: zipfile cuts it at a null character
        check_name(name, path)
        if name.lower() in seen:  # one file on some systems
            raise ValueError(f"{path} holds {name} twice")
        seen.add(name.lower())
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG) or member.is_dir():
            raise ValueError(f"{path}: {name} must be a plain file, not a link, a folder or a device")
        if (
            member.flag_bits & 1
            or member.compress_type != zipfile.ZIP_STORED
            or member.compress_size != member.file_size
        ):
            raise ValueError(f"{path}: {name} must be stored plainly, not compressed or encrypted")
    total, size = sum(member.file_size for member in members), path.stat().st_size
    if total > size:
        raise ValueError(f"{path}: its files claim {total} bytes in an archive of {size}")


def check_name(name: str, path: Path | None = None) -> None:
    """Raises ValueError for a name that could leave a folder, or that some system cannot have."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        where = f"{path}: " if path else ""
        raise ValueError(
            f"{where}a file's name must be relative and of letters, digits, '.', '_' and '-', at most {MAX_NAME}, got "
            f"{name!r:.100}"
        )
