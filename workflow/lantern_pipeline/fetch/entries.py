"""Entries of the config section `resources`: what each names, whether it is well formed, what a rule takes as input.

Imported while Snakemake reads the workflow: no torch, no network library here.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from lantern_pipeline.settings.run_config import ResourceEntry

ROOT = Path("resources")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Resource:
    """One file, or a few files that belong together, as config.yaml's `resources` describes them."""

    name: str
    path: Path | None = None  # a file or a folder that the user has, used where it is; None fetches
    url: str | None = None  # of the one file; None where it comes from the hub
    repo: str | None = None  # on the hub, "owner/name"
    revision: str | None = None  # its commit; None takes the newest at the first fetch, which holds from then on
    files: Mapping[str, str | None] = field(default_factory=dict)  # name -> SHA-256, None where it is not known

    @property
    def folder(self) -> Path:
        """Folder of the fetched files."""
        return ROOT / self.name

    @property
    def manifest(self) -> Path:
        """File with the location and the checksums of the resource, which is the input of rules."""
        return ROOT / f"{self.name}.json"

    @property
    def inputs(self) -> list[str]:
        """Input of rule `fetch_resource`: the user's copy, so that a change re-runs the rule, or an empty list."""
        return [self.path.as_posix()] if self.path is not None else []

    def address(self, file: str) -> str:
        """Return the URL of a file."""
        return self.url or f"{hub_endpoint()}/{self.repo}/resolve/{self.revision or 'main'}/{file}"


def hub_endpoint() -> str:
    """Address of the hub; the variable HF_ENDPOINT, which huggingface_hub reads too, names another one."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def parse_entries(entries: Mapping[str, ResourceEntry]) -> dict[str, Resource]:
    """Read the entries of config section `resources`, by name."""
    return {name: parse_entry(name, entry) for name, entry in entries.items()}


def parse_entry(name: str, entry: ResourceEntry) -> Resource:
    """Read an entry.

    Raises:
        ValueError: names the first thing that is wrong.
    """
    key = f"config key resources.{name}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"{key}: a name may hold only letters, digits, '_' and '-'")
    path, url, repo, revision, files = entry.path, entry.url, entry.repo, entry.revision, entry.files
    if path is None and (url is None) == (repo is None):
        given = "url and repo" if url else "none of them"
        raise ValueError(f"{key} must have a path (a copy that you have), a url or a repo, got {given}")
    for file, sha256 in files.items():
        check_file(key, file, sha256)
    if url is not None:
        _check_url(key, url, revision, files)
    if repo is not None:
        _check_repo(key, repo, revision, files)
    if path is not None and not Path(path).exists():
        raise ValueError(f"{key}.path: there is no file or folder {path}")
    return Resource(name, None if path is None else Path(path), url, repo, revision, files)


def check_file(key: str, file: str, sha256: object) -> None:
    """Check the name and the checksum of a file.

    Raises:
        ValueError: the name leads out of its folder, or the checksum is no SHA-256.
    """
    parts = PurePosixPath(file).parts
    is_inside = bool(parts) and not file.startswith("/") and ".." not in parts and not parts[-1].startswith(".")
    if not is_inside or "\\" in file or not file.isprintable():
        raise ValueError(
            f"{key}.files: a file's name must be relative, without '..' or control characters and no dot file, "
            f"got {file!r}"
        )
    if sha256 is not None and not (isinstance(sha256, str) and re.fullmatch(r"[0-9a-f]{64}", sha256)):
        raise ValueError(
            f"{key}.files.{file} must be the file's SHA-256, 64 digits or small letters a to f, or null, got {sha256!r}"
        )


def _check_url(key: str, url: str, revision: str | None, files: Mapping[str, object]) -> None:
    parts = urlsplit(url)
    # Only a server on this very machine may be asked without encryption.
    is_allowed = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
    if not parts.hostname or not is_allowed:
        raise ValueError(f"{key}.url must start with https://, got {url!r}")
    if len(files) != 1:
        raise ValueError(f"{key}.files must name the one file that the url gives, got {len(files)} names")
    if revision is not None:
        raise ValueError(f"{key}.revision belongs to a repo, not to a url; leave it out")


def _check_repo(key: str, repo: str, revision: str | None, files: Mapping[str, object]) -> None:
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", repo):
        raise ValueError(f"{key}.repo must be owner/name of a repository on the hub, got {repo!r}")
    if not files:
        raise ValueError(f"{key}.files must name the files of {repo} that are wanted, got none")
    if revision is not None and not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(
            f"{key}.revision must be a commit of 40 digits, since a branch may change, got {revision!r}; "
            f"{how_to_find_commit(repo)}"
        )


def how_to_find_commit(repo: str) -> str:
    """Return the end of an error message: how to look up the newest commit of a repository on the hub."""
    return f"`git ls-remote {hub_endpoint()}/{repo} HEAD` prints the newest one"


def check_reference(key: str, value: str | None, resources: Mapping[str, Resource]) -> None:
    """Check that a config value is None, the name of an entry, an existing path, or a path below results/.

    Raises:
        ValueError: it is none of these; names the nearest entry.
    """
    if value is None or value in resources or Path(value).exists() or value.startswith("results/"):
        return
    near = difflib.get_close_matches(value, list(resources), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known entries are {', '.join(resources) or 'none'}"
    raise ValueError(f"config key {key} names no entry of resources and no file or folder, got {value!r}; {hint}")


def resource_of(value: str, resources: Mapping[str, Resource]) -> str:
    """Return what a rule takes as input for a config value such as target.checkpoint: an entry's manifest, or a path.

    `manifest.resource_path` leads a job from there to the file.
    """
    return resources[value].manifest.as_posix() if value in resources else value
