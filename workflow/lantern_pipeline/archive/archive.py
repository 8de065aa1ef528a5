"""One zip file of a finished experiment, with the sum of every file: written here, and unpacked without trust.

Members are stored as they are, in the order of their names and with one date, so that the same results make the same
archive on every machine. The last, SHA256SUMS, has a line for every other one, as `sha256sum --check` reads it.
"""

from __future__ import annotations

import csv
import hashlib
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from lantern.io import atomic_path, read_json
from lantern_pipeline.archive.provenance import FILE_NAME, FILE_PARTS, KIND, Provenance
from lantern_pipeline.fetch.manifest import SUMS, describe_file

# Of results/<experiment>/ stay out: training data, logs, readers' answers, what is made again, what was set aside.
_LEFT_OUT = re.compile(r"(codes|captions|samples|logs|study|weights|reference)/.*|.*\.damaged")
MAX_MEMBERS = 100_000
MAX_NAME = 300  # characters
_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")
_LINE = re.compile(rf"([0-9a-f]{{64}})  ({_NAME.pattern})")
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can hold


def pack_experiment(folder: Path | str, output: Path | str) -> tuple[int, str]:
    """Packs results/<experiment>, as its provenance has it, into a zip file: (packed files, SHA-256 of their sums)."""
    folder, output = Path(folder), Path(output)
    if not (folder / FILE_NAME).is_file():
        raise FileNotFoundError(f"there is no {folder / FILE_NAME}: run `make reproduce` to the end first")
    if output.exists() and not _is_archive(output):
        raise ValueError(f"{output} exists and is no archive of `lantern pack`; choose another --output or remove it")
    found = read_json(folder / FILE_NAME)
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ValueError(f"{folder / FILE_NAME} is no provenance of a run: run `make reproduce`, which makes it again")
    provenance = Provenance(**found)
    expected = {f"results/{folder.name}/{name}": sha256 for name, sha256 in _sums_of(provenance).items()}
    files, lines = _files_to_pack(folder, provenance["config"]), []
    if lost := sorted(name for name in expected if not (folder.parent.parent / name).is_file()):
        raise ValueError(f"{lost[0]} is named in {folder / FILE_NAME} but missing; run `make reproduce` again")
    with atomic_path(output) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, source in sorted(files.items()):
            with open(source, "rb") as file, archive.open(_new_member(name, source.stat().st_size), "w") as member:
                sha256 = _copy_hashed(file, member)
            if sha256 != expected.get(name, sha256):
                raise ValueError(
                    f"{source} has changed since {folder / FILE_NAME} was written; run `make reproduce`, which makes "
                    "it again"
                )
            lines.append(f"{sha256}  {name}\n")
        sums = "".join(lines).encode()
        archive.writestr(_new_member(SUMS, len(sums)), sums)
    return len(lines), hashlib.sha256(sums).hexdigest()


def unpack(path: Path | str, folder: Path) -> tuple[int, str]:
    """Unpacks an archive into an empty folder, nothing believed before it has been looked at: (files, SHA-256 of their
    sums). What is no archive of `pack_experiment`, or holds a damaged, missing or foreign file, is a ValueError.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(Path(path), archive.infolist())
            for name in archive.namelist():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as member, open(folder / name, "wb") as file:
                    found[name] = _copy_hashed(member, file)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise ValueError(
            f"{path} is damaged, truncated or no archive of `lantern pack` ({error}); have it sent again"
        ) from error
    if SUMS not in found:
        raise ValueError(f"{path} holds no {SUMS}: it is no archive of `lantern pack`, or of an earlier version's")
    expected, of_sums = _read_sums(folder / SUMS, path), found.pop(SUMS)
    damaged = [name for name in found if name in expected and found[name] != expected[name]]
    kinds = {"damaged": damaged, "missing": expected.keys() - found.keys(), "foreign": found.keys() - expected.keys()}
    said = [
        f"{kind}: {min(names)}" + f" and {len(names) - 1} more" * (len(names) > 1)
        for kind, names in kinds.items()
        if names
    ]
    if said:
        raise ValueError(f"{path} is not what was packed ({'; '.join(said)}); have it sent again")
    return len(found), of_sums


def find_experiment(folder: Path, archive: Path | str) -> tuple[Path, Provenance]:
    """results/<experiment> of an unpacked archive, and its provenance, whose sums are compared with the files."""
    found = sorted(folder.glob(f"results/*/{FILE_NAME}"))
    if len(found) != 1:
        raise ValueError(f"{archive} must hold one results/<experiment>/{FILE_NAME}, found {len(found)}")
    try:
        provenance = read_json(found[0])
        sums, code = _sums_of(provenance), provenance["code"]
        left_out = _converted_models(provenance["config"])
        is_ours = (
            provenance["kind"] == KIND
            and all(map(_NAME.fullmatch, sums))
            and isinstance(code["fingerprints"], dict)
            and re.fullmatch(r"[\w.+-]{1,40}", code["version"]) is not None
            and (code["commit"] is None or re.fullmatch(r"[0-9a-f]{40,64}", code["commit"]) is not None)
        )
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError):
        is_ours = False
    if not is_ours:
        raise ValueError(f"{archive}: {FILE_NAME} is no provenance of Lantern; pack the experiment again")
    for name in ["summary.csv", *sums]:
        file = found[0].parent / name
        if not file.is_file() and not re.fullmatch(left_out, name):
            raise ValueError(f"{archive} lacks {name}, a file of {FILE_NAME}; have it packed again")
        if file.is_file() and describe_file(file)["sha256"] != sums.get(name):
            raise ValueError(f"{archive}: {name} is not the file of {FILE_NAME}; have it packed again")
    refuse_own_classes(provenance, FILE_NAME)
    for name in (name for name in provenance["tables"] if name.endswith(".csv")):
        refuse_own_classes(_read_rows(found[0].parent / name, name), name)
    return found[0].parent, provenance


def files_outside(folder: Path, provenance: Provenance) -> list[str]:
    """Return the files of an unpacked archive that its provenance does not name, relative to results/."""
    named = {f"{folder.name}/{name}" for name in _sums_of(provenance)}
    found = (path.relative_to(folder.parent).as_posix() for path in folder.parent.rglob("*") if path.is_file())
    return sorted(set(found) - named - {f"{folder.name}/{FILE_NAME}"})


def refuse_own_classes(found: object, where: str) -> None:
    """Raise a ValueError if JSON values name a class of a user's own: an archive must not choose what is imported."""
    values: list[tuple[str, object]] = [("", found)]
    while values:
        key, value = values.pop()
        if isinstance(value, dict):
            values += value.items()
        elif isinstance(value, list):
            values += ((key, inner) for inner in value)
        elif key in ("drafts", "acceptance") and ":" in str(value):
            raise ValueError(
                f"{where}: {key} must be one of Lantern's own in an archive, got {value!r:.100}; a user's class, which "
                "would be imported, cannot be verified"
            )


def _read_rows(path: Path, name: str) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is no CSV table ({error}); have it packed again") from error


def _copy_hashed(source: IO[bytes], copy: IO[bytes]) -> str:
    """Copies a file in pieces, so that a large one is never in memory, and returns its SHA-256."""
    digest = hashlib.sha256()
    while piece := source.read(2**20):
        digest.update(piece)
        copy.write(piece)
    return digest.hexdigest()


def _sums_of(provenance: Provenance) -> dict[str, str]:
    return {name: entry["sha256"] for part in FILE_PARTS for name, entry in provenance[part].items()}


def _is_archive(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as earlier:
        return SUMS in earlier.namelist()


def _files_to_pack(folder: Path, config: Mapping[str, Any]) -> dict[str, Path]:
    """Name in the archive -> file, those of variants included; models converted from foreign weights stay out."""
    models, files = _converted_models(config), {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        inner = re.sub(r"^variants/[^/]+/", "", name)
        is_hidden = any(part.startswith(".") for part in name.split("/"))
        if path.is_file() and not is_hidden and not _LEFT_OUT.fullmatch(inner) and not re.fullmatch(models, inner):
            files[f"results/{folder.name}/{name}"] = path
    for name in files:
        _check_name(name)
    return files


def _converted_models(config: Mapping[str, Any]) -> str:
    """Return a pattern of the models that were converted from foreign weights: archives leave them out."""
    checkpoints = {section: config[section]["checkpoint"] for section in ("tokenizer", "target", "drafter")}
    foreign = [section for section, path in checkpoints.items() if path and not Path(path).is_relative_to("models")]
    return rf"({'|'.join(foreign)})/(s\d+/)?model\.safetensors" if foreign else "(?!)"


def _new_member(name: str, size: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _DATE)
    member.create_system, member.external_attr, member.file_size = 3, (stat.S_IFREG | 0o644) << 16, size
    return member


def _read_sums(file: Path, path: Path | str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in found:
            raise ValueError(
                f"{path}: line {number} of {SUMS} must be a new SHA-256, two spaces and a name, got {line!r:.100}"
            )
        found[match[2]] = match[1]
    return found


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    if len(members) > MAX_MEMBERS:
        raise ValueError(f"{path} may hold {MAX_MEMBERS} files, found {len(members)}")
    seen: set[str] = set()
    for member in members:
        name = member.orig_filename  # as written: zipfile cuts it at a null character
        _check_name(name, f"{path}: ")
        if name.lower() in seen:  # one file on some systems
            raise ValueError(f"{path} holds {name} twice")
        seen.add(name.lower())
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG) or member.is_dir():
            raise ValueError(f"{path}: {name} must be a plain file, not a link, a folder or a device")
        is_stored = member.compress_type == zipfile.ZIP_STORED and member.compress_size == member.file_size
        if not is_stored or member.flag_bits & 1:
            raise ValueError(f"{path}: {name} must be stored plainly, not compressed or encrypted")
    total, size = sum(member.file_size for member in members), path.stat().st_size
    if total > size:
        raise ValueError(f"{path}: its files claim {total} bytes in an archive of {size}")


def _check_name(name: str, where: str = "") -> None:
    """Raises ValueError for a name that could leave a folder, or that some system cannot have."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise ValueError(
            f"{where}a file's name must be relative and of letters, digits, '.', '_' and '-', at most {MAX_NAME}, got "
            f"{name!r:.100}"
        )
