"""Fetches resources: from the hub or by https, resumable, checked by hash, whole or not at all.

huggingface_hub does the transfers of both kinds: it resumes by Range requests, tries again after a fault and checks the
size. Its own download functions throw a partial file away when the process ends, which for 9 GB is not what one wants;
so what it appends to here is `<file>.part` beside the place of the file, and that is kept.

Why not the Snakemake http storage plugin: it fetches in one GET without resuming, hash, retries or time limit, and asks
the server for each file while the workflow is read, so that not even a dry run works without network. What it would
save, the transfer of plain files, is a call of `http_get`, which the hub's files need anyway.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get

from lantern.io import write_json
from lantern_pipeline.downloads.entries import Resource, hub_endpoint
from lantern_pipeline.downloads.locating import RemoteFile, locate_by_url, locate_on_hub, newest_commit
from lantern_pipeline.downloads.manifest import describe_file, describe_path, make_manifest
from lantern_pipeline.downloads.network import check_reach, may_pass, network_allowed, one_sentence

RETRY_WAITS_S = (1, 4, 15)  # seconds before another try of a transfer, where the last one brought no byte
RECORD = ".record.json"

log = logging.getLogger(__name__)


def fetch_resource(resource: Resource) -> dict[str, Any]:
    """Makes a resource be there: the user's own copy, files that lie in place already, or a download.

    Hashes of fetched files are recorded in resources/<name>/.record.json and hold from then on; so does the commit of a
    repository, which for an entry without one is the newest at the time of the first fetch.

    Args:
        resource: the entry.

    Returns:
        The manifest, see `lantern_pipeline.downloads.manifest.make_manifest`.

    Raises:
        ConnectionError: no network, or it broke down; says how to put the file there by hand.
        FileNotFoundError: the user's copy or the file on the server does not exist.
        PermissionError: the repository wants the user to log in or to accept its terms.
        OSError: the disk is too small.
        ValueError: a file has the wrong content, or the files in place are of another commit than the config's.
    """
    if resource.path is not None:
        return _use_own_copy(resource)
    recorded, commit = _read_record(resource)
    resource = replace(resource, revision=resource.revision or commit)
    expected = {file: sha256 or recorded.get(file, {}).get("sha256") for file, sha256 in resource.files.items()}
    present = [file for file in resource.files if (resource.folder / file).is_file()]
    described = {file: _check_present(resource, file, expected[file]) for file in present}
    missing = [file for file in resource.files if file not in described]
    if missing:
        with network_allowed():
            resource = _pin_commit(resource, missing[0])
            remotes = _locate_all(resource, missing, expected)
            _check_disk(resource, remotes)
            _write_record(resource, {**recorded, **described})  # the commit holds even where the transfer breaks off
            for file, remote in remotes.items():
                described[file] = _fetch_file(resource, file, remote, expected[file] or remote.sha256)
                _write_record(resource, {**recorded, **described})
    _write_record(resource, described)
    only = next(iter(resource.files)) if len(resource.files) == 1 else ""
    source = resource.url or f"{resource.repo} at {resource.revision or 'an unknown commit'} on the hub"
    return make_manifest(resource.name, resource.folder / only, source, described)


def _use_own_copy(resource: Resource) -> dict[str, Any]:
    """Hashes what the user has, where it is; a hash in the config must fit."""
    key = f"config key resources.{resource.name}"
    described = describe_path(resource.path)
    # A user's copy of the only file may have another name.
    names = {next(iter(resource.files)): next(iter(described))} if len(resource.files) == len(described) == 1 else {}
    for file, expected in resource.files.items():
        found = described.get(names.get(file, file))
        if expected is not None and found is not None and found["sha256"] != expected:
            raise ValueError(
                f"{key}.files.{file}: {resource.path} has another content: expected sha256 {expected}, "
                f"found {found['sha256']}; set it to null if your copy is meant"
            )
    return make_manifest(resource.name, resource.path, "the user's own copy", described)


def _check_present(resource: Resource, file: str, expected: str | None) -> dict[str, Any]:
    """Hashes a file that lies in its place: fetched before, or put there by hand."""
    path = resource.folder / file
    described = describe_file(path)
    _check_hash(resource, path, path, described["sha256"], expected)
    log.info("%s is there already, sha256 %s", path, described["sha256"])
    return described


def _check_hash(resource: Resource, path: Path, where: Path, found: str, expected: str | None) -> None:
    """Moves a file of the wrong content aside; `where` is its present name, `path` the one that it should have."""
    if expected is None or found == expected:
        return
    aside = path.with_name(f"{path.name}.wrong")
    os.replace(where, aside)
    file = path.relative_to(resource.folder).as_posix()
    said_by = f"config key resources.{resource.name}.files" if resource.files[file] else "the first fetch or the hub"
    raise ValueError(
        f"resource {resource.name}: {path} has the wrong content: expected sha256 {expected} (from {said_by}), "
        f"found {found}; it was moved to {aside}; run again to fetch it anew"
    )


def _locate_all(resource: Resource, files: list[str], expected: Mapping[str, str | None]) -> dict[str, RemoteFile]:
    """Asks the server for size and hash of each file, before the first byte is fetched."""
    remotes = {}
    for file in files:
        with one_sentence(resource, file):
            check_reach(resource.address(file))
            remotes[file] = locate_by_url(resource.url) if resource.url else locate_on_hub(resource, file)
        promised = remotes[file].sha256
        if promised and expected[file] and promised != expected[file]:
            raise ValueError(
                f"resource {resource.name}: {resource.address(file)} is another file: expected sha256 "
                f"{expected[file]}, the hub has {promised}; correct config key resources.{resource.name}"
            )
    return remotes


def _pin_commit(resource: Resource, file: str) -> Resource:
    """Gives an entry of the hub without a commit the newest one; `file` is the first that is wanted."""
    if resource.repo is None or resource.revision is not None:
        return resource
    with one_sentence(resource, file):
        check_reach(hub_endpoint())
        newest = newest_commit(resource.repo)
    log.warning(
        "config key resources.%s.revision is null: the newest commit of %s, %s, is fetched and kept from now on; "
        "write it into the config, so that everyone gets the same files",
        resource.name,
        resource.repo,
        newest,
    )
    return replace(resource, revision=newest)


def _check_disk(resource: Resource, remotes: Mapping[str, RemoteFile]) -> None:
    resource.folder.mkdir(parents=True, exist_ok=True)
    wanted = sum(max(0, (remote.size or 0) - _size(_part(resource.folder / file))) for file, remote in remotes.items())
    free = shutil.disk_usage(resource.folder).free
    if wanted > free:
        raise OSError(
            f"resource {resource.name}: {', '.join(remotes)} needs {_gb(wanted)} more below {resource.folder}, where "
            f"{_gb(free)} are free; make room, or set config key resources.{resource.name}.path to a copy elsewhere"
        )


def _fetch_file(resource: Resource, file: str, remote: RemoteFile, expected: str | None) -> dict[str, Any]:
    """Downloads to <file>.part, goes on where an earlier run stopped, checks, renames."""
    path = resource.folder / file
    part, version_file = _part(path), path.with_name(f"{path.name}.part.json")
    part.parent.mkdir(parents=True, exist_ok=True)
    version = {"url": remote.url, "size": remote.size, "version": remote.version}
    if not (remote.version and version_file.is_file() and json.loads(version_file.read_text()) == version):
        part.unlink(missing_ok=True)  # of another version, or of nobody knows which
    if remote.size is not None and _size(part) > remote.size:
        part.unlink()
    write_json(version_file, version)
    log.info("fetching %s to %s, from byte %d of %s", remote.url, path, _size(part), remote.size)
    with one_sentence(resource, file):
        _download(remote, part)
    described = describe_file(part)
    version_file.unlink()
    _check_hash(resource, path, part, described["sha256"], expected)
    os.replace(part, path)
    log.info("fetched %s, sha256 %s", path, described["sha256"])
    return described


def _download(remote: RemoteFile, part: Path) -> None:
    """Appends to `part` until it is whole; gives up where several tries in a row have brought nothing."""
    failures = 0
    while True:
        before = _size(part)
        options = {"headers": remote.headers, "expected_size": remote.size, "displayed_filename": part.stem}
        try:
            with open(part, "ab") as file:
                http_get(remote.url, file, resume_size=before, **options)
                file.flush()
                os.fsync(file.fileno())
            return
        except (HfHubHTTPError, httpx2.NetworkError, OSError) as error:
            failures = failures + 1 if _size(part) <= before else 1
            if failures > len(RETRY_WAITS_S) or not may_pass(error):
                raise
            log.warning("%s: %s; trying again", remote.url, error)
            time.sleep(RETRY_WAITS_S[failures - 1])


def _read_record(resource: Resource) -> tuple[dict[str, dict[str, Any]], str | None]:
    """Returns what an earlier run recorded: file -> description, and the commit, where it is known.

    Raises:
        ValueError: the files in place are of another origin, such as another commit.
    """
    path = resource.folder / RECORD
    if not path.is_file():
        return {}, None
    record = json.loads(path.read_text(encoding="utf-8"))
    origins = (record["origin"], resource.origin)
    # Files put there by hand are of a commit that nobody has looked up: no reason to fetch them again. Nor need a
    # config name the commit that the first fetch found.
    parts = [part for part in resource.origin if part != "revision" or all(origin[part] for origin in origins)]
    differs = any(record["origin"][part] != resource.origin[part] for part in parts)
    if differs and record["files"]:
        was, now = (" ".join(value for value in origin.values() if value) for origin in origins)
        raise ValueError(
            f"{resource.folder} holds files of {was}, but config key resources.{resource.name} says {now}; "
            f"delete the folder, or give the entry another name"
        )
    return record["files"], None if differs else record["origin"]["revision"]


def _write_record(resource: Resource, described: Mapping[str, Mapping[str, Any]]) -> None:
    write_json(resource.folder / RECORD, {"origin": resource.origin, "files": dict(described)})


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
