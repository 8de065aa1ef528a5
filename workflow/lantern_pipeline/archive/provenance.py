"""Provenance of results: the config, code, packages, machines, seeds and files that they were made with.

It is published with the results, so it has no user name, host name, password or absolute path. A *digest* is the
checksum and size of a file.

Snakemake imports this module while it plans the jobs, so only functions import torch and pandas.
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
from lantern.registry import ACCEPTANCE, DRAFTS, RESIDUALS
from lantern_pipeline.fetch.manifest import FileDescription, describe_path, read_manifest
from lantern_pipeline.job.fingerprint import class_file, code_fingerprint, packages_in
from lantern_pipeline.job.machine import Machine, describe_machine, name_machine

KIND = "lantern_provenance"
FILE_NAME = "provenance.json"
ROOT = Path(__file__).resolve().parents[3]
# Sections of `Provenance` with the files that the run made.
FILE_PARTS: Final = ("models", "prompts", "records", "tables", "figures")
# Config section -> keys that decide how jobs run and change no result. "" stands for keys outside all sections.
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
    """Lantern's installed code. Without a git repository, `commit` and `is_modified` are None."""

    version: str
    commit: str | None
    is_modified: bool | None
    # Script, such as work.py, or path of a file of methods -> hash of its code and of the modules that it imports.
    fingerprints: dict[str, str]


class Environment(TypedDict):
    """Software of the process that wrote the file. A package that is not installed has version None."""

    python: str
    system: str
    packages: dict[str, str | None]


class Digest(TypedDict):
    """Checksum of one file, in hexadecimal, and its size."""

    sha256: str
    bytes: int


class Provenance(TypedDict):
    """Contents of provenance.json.

    The sections from `models` to `figures` map a file's name, relative to the folder of the results, to its digest.
    """

    kind: str  # the constant KIND, by which `verify` recognises the file
    experiment: str
    code: Code
    environment: Environment
    machine: Machine  # the one that wrote the file; `decoding` has those that made the images
    decoding: list[dict[str, object]]
    seeds: dict[str, object]
    models: dict[str, Digest]
    prompts: dict[str, Digest]
    records: dict[str, Digest]
    tables: dict[str, Digest]
    figures: dict[str, Digest]
    resources: dict[str, dict[str, Digest]]  # resource -> file -> digest
    config: dict[str, Any]  # as `publishable_config` returns it


def publishable_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of a config without data of this machine and its user.

    A path outside the project keeps only its last part, and a URL loses its user name and password.
    """
    return {key: _publishable(value) for key, value in config.items()}


def results_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return the publishable part of a config that affects results: all keys but those in HOW_JOBS_RUN."""
    found = {key: value for key, value in publishable_config(config).items() if key not in HOW_JOBS_RUN[""]}
    for section, keys in HOW_JOBS_RUN.items():
        inner = found.get(section)
        if isinstance(inner, Mapping):
            found[section] = {key: value for key, value in inner.items() if key not in keys}
    return found


def describe_code(root: Path = ROOT) -> Code:
    """Describe the code of the clone `root`. No script is imported or run."""
    commit, is_modified = None, None
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is not None and Path(top).resolve() == root.resolve():  # else another project's repository contains `root`
        commit = _git(root, "rev-parse", "HEAD")
        # An edit of the documentation, the tests or the config is no change of the code.
        status = _git(root, "status", "--porcelain", "--", "Snakefile", "lantern*/*", "workflow")
        is_modified = None if status is None else bool(status)
    # The modules of figures are listed too, because script draw_figure.py imports them by name.
    folders = (root / "workflow" / folder for folder in ("scripts", "lantern_pipeline/figures"))
    scripts = sorted(file for folder in folders for file in folder.glob("[!_]*.py"))  # without __init__.py
    packages = packages_in(root, root / "workflow")
    classes = {path for row in DRAFTS.values() for path in (row.path, row.branched, row.loop, *row.trained.values())}
    classes |= {row.path for row in (*ACCEPTANCE.values(), *RESIDUALS.values())}
    methods = [file for path in sorted(filter(None, classes)) if (file := class_file(path, packages))]
    files = {file.name: file for file in scripts} | {file.relative_to(root).as_posix(): file for file in methods}
    return {
        "version": __version__,
        "commit": commit,
        "is_modified": is_modified,
        "fingerprints": {name: code_fingerprint(file, packages) for name, file in files.items()},
    }


def describe_maker() -> str:
    """Return one line that names Lantern's version, its commit and this machine, for files that state their origin."""
    code = describe_code()
    # "unknown" has 7 letters, as many as a short commit
    commit = f"commit {(code['commit'] or 'unknown')[:7]}" + ", modified" * bool(code["is_modified"])
    return f"Lantern {code['version']}, {commit}, on {name_machine(describe_machine())}"


def compare_code(provenance: Provenance, script: str) -> str:
    """Return a sentence that states whether a workflow script runs the code that made some results.

    It names the files of methods that differ, whether or not the results have images of these methods.
    """
    code, ours = provenance["code"], describe_code()["fingerprints"]
    theirs = code["fingerprints"]
    commit = f"version {code['version']}, commit {code['commit'] or 'unknown'}"
    if script not in ours:
        return f"this installation has no {script} to compare with the code of the results ({commit})"
    if ours[script] != theirs.get(script):
        return f"{script} does not run the code of the results ({commit}): check out that commit to compare"
    # A name with "/" is a file of methods. A method that came later has made none of the results.
    others = [name for name in ours if "/" in name and ours[name] != theirs.get(name, ours[name])]
    but = f", but other code for methods in {', '.join(others)}: check out that commit to compare" if others else ""
    return f"{script} runs the code of the results ({commit}){but}"


def describe_environment() -> Environment:
    """Describe this process's software. Versions come from metadata, so no package is imported."""
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError, AttributeError):  # only Linux has the file os-release
        system = platform.system()
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": system,
        "packages": {name: _installed_version(name) for name in PACKAGES},
    }


def hash_files(paths: Iterable[Path | str], folder: Path | str) -> dict[str, Digest]:
    """Return the digests of some files by their name relative to `folder`, in the order of the names."""
    return {
        # `describe_path` of a single file has one entry, whose key is the last part of the path
        name: _digest_and_size(describe_path(Path(folder, name))[Path(name).name])
        for name in sorted(Path(path).relative_to(folder).as_posix() for path in paths)
    }


def describe_resources(inputs: Sequence[Path | str]) -> dict[str, dict[str, Digest]]:
    """Return the digests of files that a run uses but does not make: resource -> file -> digest.

    Args:
        inputs: paths of manifests, or of files and folders that have none and count as one resource each.
    """
    found = {}
    for path in sorted({Path(given) for given in inputs}):
        manifest = read_manifest(path)
        name, files = (path.name, describe_path(path)) if manifest is None else (manifest["name"], manifest["files"])
        found[name] = {file: _digest_and_size(files[file]) for file in sorted(files)}
    return dict(sorted(found.items()))


def describe_decoding(records: Iterable[Path | str]) -> list[dict[str, object]]:
    """Return the distinct devices and settings with which the images of some records were generated."""
    from lantern.records import load_records

    keys = ("device", "gpu", "dtype", "num_threads", "torch")
    found = {tuple(load_records(Path(path)).metadata.get(key) for key in keys) for path in records}
    # compared as text, since some values are None
    return [dict(zip(keys, values, strict=True)) for values in sorted(found, key=str)]


def render_page(provenance: Provenance) -> str:
    """Return the main facts of a provenance as HTML that needs no other file."""
    from lantern_pipeline.tables.markdown import html_page

    code, environment, machine = provenance["code"], provenance["environment"], provenance["machine"]
    commit = code["commit"] or "unknown (no git repository)"
    packages = environment["packages"]
    gpus = ", ".join(gpu["name"] for gpu in machine["gpus"])
    num_files = sum(len(provenance[part]) for part in FILE_PARTS)
    # What explains most differences between two sets of results. The digests are in provenance.json only.
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
    # A URL. Its scheme has two letters or more, because one letter is a drive of Windows.
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", text):
        parts = urlsplit(text)
        if parts.scheme == "file":
            return PurePosixPath(parts.path).name
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))  # without "user:password@"
    if text.startswith(("/", "~", "../", "\\\\")) or PureWindowsPath(text).drive:
        return PureWindowsPath(text).name or "."  # both kinds of slashes separate; "/" has no name
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
