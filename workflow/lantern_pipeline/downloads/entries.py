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
from typing import Any
from urllib.parse import urlsplit

ROOT = Path("resources")
LOOPBACK = ("127.0.0.1", "localhost", "::1")

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_REPOSITORY = re.compile(r"\w[\w.-]*/\w[\w.-]*")


@dataclass(frozen=True)
class Resource:
    """One file, or a few files that belong together.

    Attributes:
        name: name of the entry; the files lie in resources/<name>/, their manifest is resources/<name>.json.
        path: a file or a folder that the user has, used where it is; None fetches.
        url: address of the one file; None where it comes from the hub.
        repo: repository of a model on the hub, "owner/name".
        revision: its commit, 40 hexadecimal digits; None takes the newest at the first fetch, which holds from then on.
        files: file name -> SHA-256 (64 hexadecimal digits), or None where it is not known beforehand.
    """

    name: str
    path: Path | None = None
    url: str | None = None
    repo: str | None = None
    revision: str | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Folder of the fetched files."""
        return ROOT / self.name

    @property
    def manifest(self) -> Path:
        """File that says where the resource lies and what is in it; what rules take as input."""
        return ROOT / f"{self.name}.json"

    @property
    def inputs(self) -> list[str]:
        """What rule `fetch_resource` takes as input: the user's copy, so that a change of it is noticed, or nothing."""
        return [self.path.as_posix()] if self.path is not None else []

    @property
    def origin(self) -> dict[str, str | None]:
        """What decides the content of a fetched file; a change of it means other files."""
        return {"url": self.url, "repo": self.repo, "revision": self.revision}

    def address(self, file: str) -> str:
        """Where a file can be downloaded, by hand as well."""
        if self.url is not None:
            return self.url
        return f"{hub_endpoint()}/{self.repo}/resolve/{self.revision or 'main'}/{file}"


def hub_endpoint() -> str:
    """Address of the hub; the variable HF_ENDPOINT, which huggingface_hub reads too, names another one."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def parse_entry(name: str, entry: Mapping[str, Any]) -> Resource:
    """Reads an entry, whose keys may be missing or None; a ValueError names the first thing that is wrong."""
    key = f"config key resources.{name}"
    if not _NAME.fullmatch(name):
        raise ValueError(f"{key}: a name may hold only letters, digits, '_' and '-'")
    values = {part: entry.get(part) for part in ("path", "url", "repo", "revision")}
    files = dict(entry.get("files") or {})
    if values["path"] is None and (values["url"] is None) == (values["repo"] is None):
        raise ValueError(f"{key} must have a path (a copy that you have), a url or a repo, got {_given(values)}")
    _check_files(key, files)
    _check_origin(key, values, files)
    path = values.pop("path")
    if path is not None and not Path(path).exists():
        raise ValueError(f"{key}.path: there is no file or folder {path}")
    return Resource(name=name, path=Path(path) if path is not None else None, files=files, **values)


def parse_entries(entries: Mapping[str, Mapping[str, Any] | None] | None) -> dict[str, Resource]:
    """Checks the whole config section `resources`; an entry that an overlay has set to null is left out."""
    return {name: parse_entry(name, entry) for name, entry in (entries or {}).items() if entry is not None}


def check_reference(key: str, value: str | None, resources: Mapping[str, Resource]) -> None:
    """Checks a config value, such as target.checkpoint, that names an entry, an existing file or folder, a file below
    results/, which another rule may make, or None.
    """
    if value is None or value in resources or Path(value).exists() or value.startswith("results/"):
        return
    near = difflib.get_close_matches(value, list(resources), n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else f"known entries are {', '.join(resources) or 'none'}"
    raise ValueError(f"config key {key} names no entry of resources and no file or folder, got {value!r}; {hint}")


def resource_of(value: str | None, resources: Mapping[str, Resource]) -> str | list[str]:
    """What a rule takes as input for a config value such as target.checkpoint: an entry's manifest, a path, or nothing.

    A job gets from that input to the file or folder itself by `lantern_pipeline.downloads.manifest.resource_path`.
    """
    if value is None:
        return []
    return resources[value].manifest.as_posix() if value in resources else value


def _check_files(key: str, files: Mapping[str, Any]) -> None:
    for file, sha256 in files.items():
        parts = PurePosixPath(file).parts
        is_inside = bool(parts) and not file.startswith("/") and ".." not in parts and not parts[-1].startswith(".")
        if not is_inside or "\\" in file or not file.isprintable():
            raise ValueError(
                f"{key}.files: a file's name must be relative, without '..' or control characters and no dot file, "
                f"got {file!r}"
            )
        if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
            raise ValueError(
                f"{key}.files.{file} must be the file's SHA-256, 64 digits or small letters a to f, or null, "
                f"got {sha256!r}"
            )


def _check_origin(key: str, values: Mapping[str, str | None], files: Mapping[str, Any]) -> None:
    url, repo, revision = values["url"], values["repo"], values["revision"]
    if url is not None:
        parts = urlsplit(url)
        # Only a server on this very machine may be asked without encryption.
        is_allowed = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)
        if not parts.hostname or not is_allowed:
            raise ValueError(f"{key}.url must start with https://, got {url!r}")
        if len(files) != 1:
            raise ValueError(f"{key}.files must name the one file that the url gives, got {len(files)} names")
        if revision is not None:
            raise ValueError(f"{key}.revision belongs to a repo, not to a url; leave it out")
    if repo is not None:
        if not _REPOSITORY.fullmatch(repo):
            raise ValueError(f"{key}.repo must be owner/name of a repository on the hub, got {repo!r}")
        if not files:
            raise ValueError(f"{key}.files must name the files of {repo} that are wanted, got none")
        if revision is not None and not _COMMIT.fullmatch(revision):
            raise ValueError(
                f"{key}.revision must be a commit of 40 digits, since a branch may change, got {revision!r}; "
                f"{how_to_find_commit(repo)}"
            )


def how_to_find_commit(repo: str) -> str:
    """End of a sentence: how to look up the commit at which a repository of the hub stands now."""
    return f"`git ls-remote {hub_endpoint()}/{repo} HEAD` prints the newest one"


def _given(values: Mapping[str, str | None]) -> str:
    return " and ".join(part for part, value in values.items() if value is not None) or "none of them"
