"""What `make reproduce` asks before it starts Snakemake: may this folder be worked in, and are its results whole?

Snakemake looks at what is asked for, not at what lies between: a finished run whose shard or table is missing or was
changed has "nothing to be done". The files that provenance names are compared with the disk here; what is damaged or
edited is set aside, and all that is missing is asked for by name, so that it is made again with what follows from it.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lantern.io import DamagedFileError, load_tensors, read_json
from lantern_pipeline.archive.provenance import FILE_NAME, FILE_PARTS, describe_code, hash_files, publishable_config
from lantern_pipeline.config.validate import load_yaml, validate_config
from lantern_pipeline.data.tables import check_sum, sum_file
from lantern_pipeline.runtime.locks import LOCK_FILE, RunLock

CATALOGUE = Path(__file__).resolve().parents[2] / "resources.yaml"


def check_folder(folder: Path = Path()) -> None:
    """Raises a ValueError where a run goes on in a folder, or was killed there, or results/ cannot be written."""
    RunLock(folder / LOCK_FILE).check([])
    if any((folder / ".snakemake" / "locks").glob("*")):
        raise ValueError("the last run in this folder was killed: `make resume` goes on where it stopped")
    probe = folder / "results" / f".writable-{os.getpid()}"
    try:
        probe.parent.mkdir(exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"results/ cannot be written ({error.strerror}): make it writable, or run in a folder of your own"
        ) from error


def find_damage(results: Path, config: dict[str, Any]) -> Iterator[tuple[Path, str]]:
    """Files that a finished run's provenance names and that are missing or not what was made, with what is wrong.

    A run that was made with another config or other code is left alone: Snakemake itself makes anew what they change.
    """
    path = results / FILE_NAME
    if not path.is_file():
        return
    provenance = read_json(path)
    is_same_code = provenance["code"]["fingerprints"] == describe_code()["fingerprints"]
    if not is_same_code or provenance["config"] != publishable_config(config):
        return
    since = path.stat().st_mtime_ns
    for name, entry in sorted({name: entry for part in FILE_PARTS for name, entry in provenance[part].items()}.items()):
        file = results / name
        if not file.is_file():
            yield file, "is missing"
        elif damage := _damage_of(file, entry, results, since):
            yield file, damage


def _damage_of(file: Path, entry: dict[str, Any], results: Path, since: int) -> str:
    """What is wrong with a file, "" for nothing; one that a later run may have made is believed if its own sum is."""
    status = file.stat()
    if status.st_mtime_ns <= since and status.st_size == entry["bytes"]:
        return ""
    if hash_files([file], results)[file.relative_to(results).as_posix()]["sha256"] == entry["sha256"]:
        return ""
    try:
        if file.suffix == ".safetensors":
            load_tensors(file)
        elif sum_file(file).exists():
            check_sum(file)
        else:
            return "was changed"
    except DamagedFileError as error:
        return error.damage
    return ""


def _lay_over(config: dict[str, Any], overlay: dict[str, Any]) -> None:
    """Changes a config as Snakemake does: section by section, key by key."""
    for key, value in overlay.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            _lay_over(config[key], value)
        else:
            config[key] = value


def repair(arguments: Sequence[str]) -> list[str]:
    """Checks the folder and the run that Snakemake's arguments name; returns the files to ask for, damaged ones set
    aside; says in one line on stderr what is made again.
    """
    check_folder()
    config: dict[str, Any] = load_yaml(CATALOGUE)
    files = [word.removeprefix("--configfile=") for word in arguments]
    for file in ("config.yaml", *(file for file in files if file.endswith((".yaml", ".yml")))):
        _lay_over(config, load_yaml(file))
    validate_config(config)
    results = Path("results", config["experiment"])
    found = list(find_damage(results, config))
    is_dry = {"-n", "--dry-run", "--dryrun"} & set(arguments)
    for file, damage in found:
        if damage != "is missing" and not is_dry:
            file.replace(file.with_name(f"{file.name}.damaged"))
    if found:
        shown = "; ".join(f"{file.relative_to(results)} {damage}" for file, damage in found[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        print(f"{results}: {shown}{more}: made again, with what follows", file=sys.stderr)
    return [str(file) for file, _ in found]


if __name__ == "__main__":
    try:
        print(shlex.join(repair(sys.argv[1:])))
    except ValueError as error:
        sys.exit(str(error))
