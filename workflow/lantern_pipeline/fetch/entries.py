"""Entries of config section `resources`: named files that a run uses but does not make, such as published weights.

Other config keys refer to an entry by its name. The files of an entry are on this machine (`path`), or they are
downloaded from a URL or from a repository of the Hugging Face hub.

Snakemake imports this module while it plans the jobs, so it imports neither torch nor a network library.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from lantern_pipeline.schema.run_config import ResourceEntry

ROOT = Path("resources")  # in the folder of the run, the working directory of Snakemake
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Resource:
    """Checked entry. An entry without `path` has either `url` or `repo`.

    Attributes:
        path: the user's own copy, a file or folder that is used in place; None if the files are downloaded.
        url: URL of the only file; None if the files come from the hub.
        revision: commit of the repository. None takes the newest commit at the first download and keeps it.
        files: file name -> SHA-256, or None if it is not known.
    """

    name: str
    path: Path | None = None
    url: str | None = None
    repo: str | None = None
    revision: str | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of the downloaded files, with the subfolders of the repository."""
        return ROOT / self.name

    @property
    def manifest(self) -> Path:
        """Path of the manifest, the output of rule `fetch_resource`."""
        return ROOT / f"{self.name}.json"

    @property
    def inputs(self) -> list[str]:
        """Input of that rule: the user's own copy, so that the rule runs again if it changes."""
        return [self.path.as_posix()] if self.path is not None else []

    def download_url(self, file: str) -> str:
        """Return the URL of one of `files`, for an entry with `url` or `repo`."""
        return self.url or f"{hub_endpoint()}/{self.repo}/resolve/{self.revision or 'main'}/{file}"


def hub_endpoint() -> str:
    """Return the URL of the hub. The environment variable HF_ENDPOINT replaces it, as in huggingface_hub."""
    # `or`, not a default: an empty variable counts as unset.
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def parse_entries(entries: Mapping[str, ResourceEntry]) -> dict[str, Resource]:
    """Check all entries, as `parse_entry` does, and return them by name."""
    return {name: parse_entry(name, entry) for name, entry in entries.items()}


def parse_entry(name: str, entry: ResourceEntry) -> Resource:
    """Check one entry. A ValueError names the config key that is wrong."""
    key = f"config key resources.{name}"
    # The name becomes a folder, and a part of the manifest's name.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(f"{key}: a name may hold only letters, digits, '_' and '-'")
    path, url, repo, revision, files = entry.path, entry.url, entry.repo, entry.revision, entry.files
    # A path takes precedence over url and repo, which may stay: a user's own copy needs one more key, no other change.
    if path is None and (url is None) == (repo is None):  # both or neither
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
    """Raise a ValueError if a file's name or its checksum has a wrong form. `key` is the entry's config key."""
    # No file may lie outside of the entry's folder: names may also come from a downloaded index. Dot files are the
    # fetcher's own, such as .record.json.
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
    # Only a server on this machine may be used without encryption.
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
    """Return advice for an error message that asks for a commit."""
    return f"`git ls-remote {hub_endpoint()}/{repo} HEAD` prints the newest one"


def check_reference(key: str, value: str | None, resources: Mapping[str, Resource]) -> None:
    """Raise a ValueError unless a config value is None, an entry of `resources`, an existing path or below results/."""
    # A file below results/ need not exist yet, because a run makes it.
    if value is None or value in resources or Path(value).exists() or value.startswith("results/"):
        return
    near = difflib.get_close_matches(value, list(resources), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known entries are {', '.join(resources) or 'none'}"
    raise ValueError(
        f"config key {key} names no entry of resources and no file or folder in {Path.cwd()}, got {value!r}; {hint}"
    )


def resource_of(value: str, resources: Mapping[str, Resource]) -> str:
    """Return the input of a rule for a config value that names an entry (its manifest) or a path (the path itself).

    The job gets the path of the file from `manifest.resource_path`.
    """
    return resources[value].manifest.as_posix() if value in resources else value
