"""Provenance of results: the config, code, packages, machines, random seeds and files that they were made with.

The provenance is published in a file with the results, so it contains no user name, host name or absolute path.
Snakemake imports this module while it plans the jobs, so only functions import torch.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final, TypedDict
from urllib.parse import urlsplit, urlunsplit

from lantern import __version__
from lantern_pipeline.fetch.manifest import FileDescription, describe_path, read_manifest
from lantern_pipeline.runtime.fingerprint import code_fingerprint
from lantern_pipeline.runtime.machine import Machine, describe_machine, name_machine

KIND = "lantern_provenance"
FILE_NAME = "provenance.json"
ROOT = Path(__file__).resolve().parents[3]
# Sections with the files that the run made: name relative to results/<experiment>/ -> checksum and size.
FILE_PARTS: Final = ("models", "prompts", "records", "tables", "figures")
# Config section -> keys that decide how jobs run and change no result. "" has the keys outside all sections.
HOW_JOBS_RUN = {
    "": {"device"},
    "data": {"num_shards"},
    "text": {"num_shards"},
    "generation": {"stepping", "batch_size", "num_shards"},
    "metrics": {"batch_size"},
}
# Packages on which a number or an image may depend.
PACKAGES = (
    *("ftfy", "matplotlib", "numpy", "open_clip_torch", "pandas", "pillow", "safetensors", "scipy"),
    *("snakemake", "tokenizers", "torch", "torch-fidelity", "torchvision", "transformers"),
)


class Code(TypedDict):
    """Description of the installed code of Lantern. `describe_code` makes it.

    Attributes:
        version: version of Lantern.
        commit: git commit; None without a git repository.
        is_modified: whether files differ from the commit; None without a git repository.
        fingerprints: script name -> hash of all code that the script runs.
    """

    version: str
    commit: str | None
    is_modified: bool | None
    fingerprints: dict[str, str]


class Environment(TypedDict):
    """Python, the operating system and the packages of this machine. `describe_environment` makes it.

    Attributes:
        python: name and version of Python.
        system: name of the operating system.
        packages: package -> version, None if it is not installed.
    """

    python: str
    system: str
    packages: dict[str, str | None]


class Digest(TypedDict):
    """Checksum of a file, and its size in bytes."""

    sha256: str
    bytes: int


class Provenance(TypedDict):
    """Contents of provenance.json, the description of how the results of a run were made.

    Attributes:
        kind: the constant KIND, which marks a JSON file as a provenance.
        experiment: name of the run.
        code: version, commit and hashes of Lantern's code.
        environment: Python, operating system, and versions of packages.
        machine: the machine that wrote the file.
        decoding: the distinct devices and settings with which images were generated.
        seeds: name -> random seed.
        models, prompts, records, tables, figures: file name relative to the folder of the results -> checksum and
            size. Records are files with the codes of generated images.
        resources: name of a resource, such as published weights -> file name -> checksum and size. The run used these
            files but did not make them.
        config: the config, without machine-specific data such as absolute paths.
    """

    kind: str
    experiment: str
    code: Code
    environment: Environment
    machine: Machine
    decoding: list[dict[str, object]]
    seeds: dict[str, object]
    models: dict[str, Digest]
    prompts: dict[str, Digest]
    records: dict[str, Digest]
    tables: dict[str, Digest]
    figures: dict[str, Digest]
    resources: dict[str, dict[str, Digest]]
    config: dict[str, Any]


def publishable_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of a config that can be published, without machine-specific data.

    If a path is outside the project, only its last part is kept. User names and passwords are removed from URLs.
    """
    return {key: _publishable(value) for key, value in config.items()}


def results_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return the part of a config that affects results, without machine-specific data.

    Keys that only decide how jobs run, such as batch sizes, are left out.
    """
    found = {key: value for key, value in publishable_config(config).items() if key not in HOW_JOBS_RUN[""]}
    for section, keys in HOW_JOBS_RUN.items():
        inner = found.get(section)
        if isinstance(inner, Mapping):
            found[section] = {key: value for key, value in inner.items() if key not in keys}
    return found


def describe_code(root: Path = ROOT) -> Code:
    """Return the version of Lantern, the git commit, and a hash of the code that each script runs.

    Args:
        root: the project's folder.
    """
    commit, is_modified = None, None
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is not None and Path(top).resolve() == root.resolve():  # else another project's repository contains `root`
        commit = _git(root, "rev-parse", "HEAD")
        status = _git(root, "status", "--porcelain", "--", "Snakefile", "lantern", "workflow")
        is_modified = None if status is None else bool(status)
    # The modules of figures are listed too, because script draw_figure.py imports them by name.
    folders = (root / "workflow" / folder for folder in ("scripts", "lantern_pipeline/figures"))
    scripts = [file for folder in folders for file in folder.glob("[!_]*.py")]
    return {
        "version": __version__,
        "commit": commit,
        "is_modified": is_modified,
        "fingerprints": {
            script.name: code_fingerprint(script, (root / "lantern", root / "workflow" / "lantern_pipeline"))
            for script in sorted(scripts)
        },
    }


def describe_maker() -> str:
    """Return one line that names Lantern's version, its commit and this machine, for files that state their origin."""
    code = describe_code()
    commit = f"commit {(code['commit'] or 'unknown')[:7]}" + ", modified" * bool(code["is_modified"])
    return f"Lantern {code['version']}, {commit}, on {name_machine(describe_machine())}"


def compare_code(provenance: Provenance, script: str) -> str:
    """Return a sentence that states whether the installed code equals the code that made some results.

    Args:
        provenance: provenance of the results.
        script: name of the workflow script whose code, with all imported modules, is compared.
    """
    theirs, ours = provenance["code"], describe_code()
    commit = f"version {theirs['version']}, commit {theirs['commit'] or 'unknown'}"
    if script not in ours["fingerprints"]:
        return f"this installation has no {script} to compare with the code of the results ({commit})"
    if ours["fingerprints"][script] == theirs["fingerprints"].get(script):
        return f"{script} runs the code of the results ({commit})"
    return f"{script} does not run the code of the results ({commit}): check out that commit to compare"


def describe_environment() -> Environment:
    """Return the versions of Python, of the operating system and of the installed packages that may affect results."""
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError, AttributeError):
        system = platform.system()
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": system,
        "packages": {name: _installed_version(name) for name in PACKAGES},
    }


def hash_files(paths: Iterable[Path | str], folder: Path | str) -> dict[str, Digest]:
    """Return checksum and size of some files, keyed by their name relative to `folder` and sorted by name."""
    return {
        name: _digest_and_size(describe_path(Path(folder, name))[Path(name).name])
        for name in sorted(Path(path).relative_to(folder).as_posix() for path in paths)
    }


def describe_resources(inputs: Sequence[Path | str]) -> dict[str, dict[str, Digest]]:
    """Return checksum and size of files that a run uses but does not make.

    Args:
        inputs: paths of files, of folders, or of manifests: JSON files that name the downloaded files of a resource.

    Returns:
        Name of the resource, file or folder -> file name -> checksum and size.
    """
    found = {}
    for path in sorted({Path(given) for given in inputs}):
        manifest = read_manifest(path)
        name, files = (path.name, describe_path(path)) if manifest is None else (manifest["name"], manifest["files"])
        found[name] = {file: _digest_and_size(files[file]) for file in sorted(files)}
    return dict(sorted(found.items()))


def describe_decoding(records: Iterable[Path | str]) -> list[dict[str, object]]:
    """Return the distinct devices and settings with which images were generated.

    Args:
        records: files of generated images.

    Returns:
        One dict per combination of device, GPU, dtype, number of threads and torch version.
    """
    from lantern.records import load_records

    keys = ("device", "gpu", "dtype", "num_threads", "torch")
    found = {tuple(load_records(Path(path)).metadata.get(key) for key in keys) for path in records}
    return [dict(zip(keys, values, strict=True)) for values in sorted(found, key=str)]


def render_page(provenance: Provenance) -> str:
    """Return the provenance as a page of the report, in HTML that needs no other file."""
    from lantern_pipeline.tables.markdown import html_page

    code, environment, machine = provenance["code"], provenance["environment"], provenance["machine"]
    commit = code["commit"] or "unknown (no git repository)"
    packages = environment["packages"]
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"])
    num_files = sum(len(provenance[part]) for part in FILE_PARTS)
    facts = {
        "code": f"Lantern {code['version']}, commit {commit}" + (", modified" if code["is_modified"] else ""),
        "software": f"{environment['python']}, torch {packages['torch']}, numpy {packages['numpy']}, "
        f"{environment['system']}",
        "machine that wrote this": f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        + (f"{gpus}, driver {machine['driver']}" if gpus else "no GPU"),
        "images decoded on": "; ".join(
            f"{found['gpu'] or found['device']}, {found['dtype']}, torch {found['torch']}"
            for found in provenance["decoding"]
        ),
        "seeds": ", ".join(f"{name} {value}" for name, value in provenance["seeds"].items()),
        "checked by": f"SHA-256 of {num_files} files and of {len(provenance['resources'])} resources from elsewhere",
    }
    return html_page("Provenance of these results", *(f"{name}: {text}" for name, text in facts.items()))


def _publishable(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _publishable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_publishable(inner) for inner in value]
    if not isinstance(value, str | Path):
        return value
    text = str(value)
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", text):
        parts = urlsplit(text)
        if parts.scheme == "file":
            return PurePosixPath(parts.path).name
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if text.startswith(("/", "~", "../", "\\\\")) or PureWindowsPath(text).drive:
        return PureWindowsPath(text).name or "."  # splits at both kinds of slashes
    return text


def _digest_and_size(described: FileDescription) -> Digest:
    return {"sha256": described["sha256"], "bytes": described["size"]}


def _git(root: Path, *arguments: str) -> str | None:
    """Return the output of a git command, or None if git is not installed or `root` is in no repository."""
    try:
        result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return result.stdout.strip()


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
