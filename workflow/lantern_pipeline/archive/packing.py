"""Packs a finished experiment into one archive, with a hash for each file.

The archive is a zip file whose members are stored as they are, in the order of their names and with one fixed date, so
that the same results make the same archive on every machine. Its last member, MANIFEST.sha256, has a line for every
other one, in the form that `sha256sum --check` reads. The other members lie as in the run's folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import zipfile
from pathlib import Path
from typing import Any

from lantern.io import atomic_path, read_json
from lantern_pipeline.archive.archive import CONFIG, MANIFEST, check_name, copy_hashed
from lantern_pipeline.archive.provenance import FILE_NAME, FILE_PARTS

# What is packed of results/<experiment>/: not the training data, logs, and the answers of the perceptual study.
PACKED = (
    "*.csv",
    "claims.json",
    "front.html",
    "generality.html",
    FILE_NAME,
    "provenance.html",
    "results.html",
    "ablations/*.csv",
    "clip/*",
    "codebook/*.safetensors",
    "drafter/*/*",
    "figures/*",
    "generation/*/*/*/*/*.safetensors",
    "latency/*.csv",
    "latency/*.images.safetensors",
    "total_variation/*.csv",
    "prompts/*.jsonl",
    "quality/*.csv",
    "race.html",
    "attribute_classifier/*",
    "reference/metric_weights.json",
    "target/*/*",
    "text/*/*.safetensors",
    "tokenizer/*",
    "trees/*.csv",
    "trees/*.json*",
)
BESIDE = ("summary.csv", "paired.csv", "report.html")  # of results/, where they are the experiment's
# Models converted from weights outside this repository stay out: section -> their paths.
CONVERTED = {
    "tokenizer": r"tokenizer/model\.safetensors",
    "target": r"target/s\d+/model\.safetensors",
    "drafter": r"drafter/s\d+/model\.safetensors",
}
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can hold


def pack_experiment(folder: Path | str, output: Path | str) -> tuple[int, str]:
    """Packs the experiment in results/<experiment> into a zip file; (packed files, SHA-256 of the manifest).

    What is missing or differs from the provenance is refused, and so is an output that exists and is no archive.
    """
    folder = Path(folder)
    if not (folder / FILE_NAME).is_file():
        raise FileNotFoundError(f"there is no {folder / FILE_NAME}: run `make reproduce` to the end first")
    provenance = read_json(folder / FILE_NAME)
    expected = {name: entry["sha256"] for part in FILE_PARTS for name, entry in provenance[part].items()}
    files = _files_to_pack(folder, provenance["config"])
    prefix = f"results/{folder.name}/"
    if lost := sorted({prefix + name for name in expected if not (folder / name).is_file()}):
        raise ValueError(f"{lost[0]} is named in {folder / FILE_NAME} but missing; run `make reproduce` again")
    _check_output(Path(output))
    lines = []
    with atomic_path(output) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, source in sorted([(CONFIG, None), *files.items()]):
            if source is None:
                sha256 = _write_member(archive, name, json.dumps(provenance["config"], indent=1, ensure_ascii=False))
            else:
                sha256 = _copy_member(archive, name, source)
            wanted = expected.get(name.removeprefix(prefix), sha256)
            if sha256 != wanted:
                raise ValueError(
                    f"{source} has changed since {folder / FILE_NAME} was written: expected sha256 {wanted}, found "
                    f"{sha256}; delete it and run `make reproduce`, which makes it again (without deleting, the change "
                    "would be kept)"
                )
            lines.append(f"{sha256}  {name}\n")
        sha256 = _write_member(archive, MANIFEST, "".join(lines))
    return len(lines), sha256


def _check_output(output: Path) -> None:
    if not output.exists():
        return
    if output.is_file() and zipfile.is_zipfile(output):
        with zipfile.ZipFile(output) as earlier:
            if MANIFEST in earlier.namelist():
                return
    raise ValueError(f"{output} exists and is no archive of `lantern pack`; choose another --output or remove it")


def _files_to_pack(folder: Path, config: dict[str, Any]) -> dict[str, Path]:
    """Name in the archive -> file."""
    patterns = [*PACKED, *(f"variants/*/{pattern}" for pattern in PACKED)]
    found = {path.relative_to(folder).as_posix(): path for pattern in patterns for path in folder.glob(pattern)}
    given = {section: config[section]["checkpoint"] for section in CONVERTED}
    foreign = {section for section, path in given.items() if path and not Path(path).is_relative_to("models")}
    converted = [CONVERTED[section] for section in foreign]
    files = {}
    for name, path in found.items():
        is_hidden = any(part.startswith(".") for part in name.split("/"))
        if (
            path.is_file()
            and not is_hidden
            and not any(re.fullmatch(rf"(variants/[^/]+/)?{pattern}", name) for pattern in converted)
        ):
            files[f"results/{folder.name}/{name}"] = path
    beside = {name: folder.parent / name for name in BESIDE}
    if _same_content(beside["summary.csv"], folder / "summary.csv"):  # not another experiment's
        files |= {f"results/{name}": path for name, path in beside.items() if path.is_file()}
    for name in files:
        check_name(name)
    return files


def _same_content(first: Path, second: Path) -> bool:
    return first.is_file() and second.is_file() and first.read_bytes() == second.read_bytes()


def _new_member(name: str, size: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _DATE)
    member.create_system, member.external_attr, member.file_size = 3, (stat.S_IFREG | 0o644) << 16, size
    return member


def _write_member(archive: zipfile.ZipFile, name: str, text: str) -> str:
    content = text.encode()
    archive.writestr(_new_member(name, len(content)), content)
    return hashlib.sha256(content).hexdigest()


def _copy_member(archive: zipfile.ZipFile, name: str, source: Path) -> str:
    with open(source, "rb") as file, archive.open(_new_member(name, source.stat().st_size), "w") as member:
        return copy_hashed(file, member)
