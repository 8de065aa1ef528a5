"""Fetches resources: from the hub or by https, resumable, checked by hash, whole or not at all.

huggingface_hub does the transfers of both kinds: it resumes by Range requests, tries again after a fault and checks the
size. Its own download functions throw a partial file away when the process ends, which for 9 GB is not what one wants;
so what it appends to here is `<file>.part` beside the place of the file, and that is kept.

Why not the Snakemake http storage plugin: it fetches in one GET without resuming, hash, retries or time limit, and asks
the server for each file while the workflow is read, so that not even a dry run works without network.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

from lantern.io import write_json
from lantern_pipeline.downloads.entries import Resource, how_to_find_commit, hub_endpoint
from lantern_pipeline.downloads.manifest import describe_file, describe_path, make_manifest

# Whoever has no network shall learn so within 10 seconds; patience is for a transfer that has begun.
REACH_S = 3  # seconds in which each address of a server must accept a connection
ANSWER_S = 6  # seconds that a server may take to begin its answer
ASK_WAITS_S = (1, 2, 4)  # seconds before a question is put again to a server that is busy or has hung up
RETRY_WAITS_S = (1, 4, 15)  # seconds before another try of a transfer, where the last one brought no byte
RECORD = ".record.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, before it is fetched.

    Attributes:
        url: address that gives its bytes.
        size: bytes; None where the server does not say.
        sha256: what the hub says that the content's hash is; None where nobody says.
        version: mark of the content (ETag or date), so that two versions are never mixed; None where there is none.
        headers: of the requests for it.
    """

    url: str
    size: int | None = None
    sha256: str | None = None
    version: str | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)


def fetch_resource(resource: Resource) -> dict[str, Any]:
    """Makes a resource be there (the user's own copy, files that lie in place already, or a download); its manifest.

    Hashes of fetched files are recorded in resources/<name>/.record.json and hold from then on; so does the commit of a
    repository, which for an entry without one is the newest at the time of the first fetch.
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


@contextmanager
def network_allowed() -> Iterator[None]:
    """Lets this process ask the hub while the block runs; HF_HUB_OFFLINE=1 is set for every job."""
    variable, offline = os.environ.pop("HF_HUB_OFFLINE", None), constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = False
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        if variable is not None:
            os.environ["HF_HUB_OFFLINE"] = variable


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


def _pin_commit(resource: Resource, file: str) -> Resource:
    """Gives an entry of the hub without a commit the newest one; `file` is the first that is wanted."""
    if resource.repo is None or resource.revision is not None:
        return resource
    with _one_sentence(resource, file):
        newest = _ask(lambda: HfApi(endpoint=hub_endpoint()).repo_info(resource.repo, timeout=_patience()).sha)
    log.warning(
        "config key resources.%s.revision is null: the newest commit of %s, %s, is fetched and kept from now on; "
        "write it into the config, so that everyone gets the same files",
        resource.name,
        resource.repo,
        newest,
    )
    return replace(resource, revision=newest)


def _locate_all(resource: Resource, files: list[str], expected: Mapping[str, str | None]) -> dict[str, RemoteFile]:
    """Asks the server for size and hash of each file, before the first byte is fetched."""
    remotes = {}
    for file in files:
        with _one_sentence(resource, file):
            remotes[file] = _locate_by_url(resource.url) if resource.url else _locate_on_hub(resource, file)
        promised = remotes[file].sha256
        if promised and expected[file] and promised != expected[file]:
            raise ValueError(
                f"resource {resource.name}: {resource.address(file)} is another file: expected sha256 "
                f"{expected[file]}, the hub has {promised}; correct config key resources.{resource.name}"
            )
    return remotes


def _locate_on_hub(resource: Resource, file: str) -> RemoteFile:
    url = hf_hub_url(resource.repo, file, revision=resource.revision, endpoint=hub_endpoint())
    found = _ask(lambda: get_hf_file_metadata(url, timeout=_patience(), endpoint=hub_endpoint()))
    if found.commit_hash != resource.revision:
        raise ValueError(f"{url} answers with commit {found.commit_hash}; is HF_ENDPOINT a hub?")
    etag = found.etag or ""
    sha256 = etag if len(etag) == 64 else None  # large files; the small ones have git's hash
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    return RemoteFile(url, found.size, sha256, found.etag, headers)


def _locate_by_url(url: str) -> RemoteFile:
    """Begins a GET and reads only the answer's head: some servers refuse HEAD requests."""
    headers = {"Accept-Encoding": "identity"}
    options = {"headers": headers, "timeout": _patience(), "follow_redirects": True}

    def begin() -> Mapping[str, str]:
        with http_stream_backoff("GET", url, max_retries=0, retry_on_exceptions=(), **options) as answer:
            hf_raise_for_status(answer)
            return answer.headers

    found = _ask(begin)
    size = None if "Content-Encoding" in found else found.get("Content-Length")
    version = found.get("ETag") or found.get("Last-Modified")
    return RemoteFile(url, int(size) if size else None, None, version, headers)


def _ask(question: Callable[[], Any]) -> Any:
    """Puts a short question to a server, again where it is busy or hung up, but not where it is silent or not there."""
    waits = iter(ASK_WAITS_S)
    while True:
        try:
            return question()
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise
        except httpx2.TimeoutException as error:
            host = error.request.url.host
            raise ConnectionError(f"{host} accepts connections but gives no answer within {ANSWER_S} s") from error
        except (HfHubHTTPError, httpx2.TransportError) as error:
            wait = next(waits, None)
            if wait is None or not _may_pass(error):
                raise
            log.warning("%s; asking again", error)
            time.sleep(wait)


def _patience() -> httpx2.Timeout:
    return httpx2.Timeout(ANSWER_S, connect=REACH_S)


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
    with _one_sentence(resource, file):
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
            if failures > len(RETRY_WAITS_S) or not _may_pass(error):
                raise
            log.warning("%s: %s; trying again", remote.url, error)
            time.sleep(RETRY_WAITS_S[failures - 1])


def _may_pass(error: Exception) -> bool:
    """Whether the next try may do better: a busy server or a broken connection, not a full disk or a 404."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    if isinstance(error, httpx2.TransportError):
        return isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError)
    return isinstance(error, OSError) and error.errno is None  # huggingface_hub's complaint about the size


@contextmanager
def _one_sentence(resource: Resource, file: str) -> Iterator[None]:
    """Turns what goes wrong in the block into one sentence with the file, where it comes from and what to do."""
    url = resource.address(file)
    who = f"resource {resource.name}: {file} cannot be fetched from {url}"
    by_hand = (
        f"download it by hand to {resource.folder / file}, or set config key resources.{resource.name}.path to a copy "
        "that you have"
    )
    goes_on = f"run again to go on where it stopped, or {by_hand}"
    try:
        yield
    except HfHubHTTPError as error:
        raise _explain_answer(error, resource, who, by_hand) from error
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise ConnectionError(f"{who}: {_out_of_reach(error)}; {by_hand}") from error
    except httpx2.TimeoutException as error:
        raise ConnectionError(f"{who}: {urlsplit(url).hostname} sends nothing any more; {goes_on}") from error
    except httpx2.HTTPError as error:
        raise ConnectionError(f"{who}: the connection broke off ({error}); {goes_on}") from error
    except ConnectionError as error:
        raise ConnectionError(f"{who}: {error}; {by_hand}") from error
    except OSError as error:
        if error.errno is None:  # huggingface_hub's complaint about the size
            raise ConnectionError(f"{who}: it was cut off in the middle; {goes_on}") from error
        raise OSError(f"{who}: {error.strerror}; see to the folder {resource.folder} and run again") from error


def _out_of_reach(error: httpx2.TransportError) -> str:
    """Which server accepts no connection, and why."""
    reason = str(error).rpartition("] ")[2]  # without the error's number
    if isinstance(error, httpx2.ConnectTimeout):
        reason = f"no answer within {error.request.extensions['timeout']['connect']} s"
    return f"{error.request.url.host} is out of reach ({reason})"


def _explain_answer(error: HfHubHTTPError, resource: Resource, who: str, by_hand: str) -> OSError:
    """Exception for an answer of status 4xx or 5xx."""
    status, repo, key = error.response.status_code, resource.repo, f"config key resources.{resource.name}"
    log_in = "log in with `hf auth login`"
    if isinstance(error, GatedRepoError):
        return PermissionError(f"{who}: accept its terms at {hub_endpoint()}/{repo} and {log_in}, or {by_hand}")
    if isinstance(error, RevisionNotFoundError):
        newest = how_to_find_commit(repo)
        return FileNotFoundError(f"{who}: {repo} has no commit {resource.revision}; correct {key}.revision, {newest}")
    if isinstance(error, RemoteEntryNotFoundError):
        return FileNotFoundError(f"{who}: {repo} has no such file at this commit; correct {key}.files")
    if isinstance(error, RepositoryNotFoundError):
        return FileNotFoundError(
            f"{who}: the hub has no {repo}, or shows it to members only; correct {key}.repo, or {log_in}"
        )
    if status in (401, 403):
        return PermissionError(f"{who}: the server refuses it (status {status}); {by_hand}")
    if status in (404, 410):
        return FileNotFoundError(f"{who}: there is no such file (status {status}); correct {key}, or {by_hand}")
    return ConnectionError(f"{who}: the server is in trouble (status {status}); run again later, or {by_hand}")


def _read_record(resource: Resource) -> tuple[dict[str, dict[str, Any]], str | None]:
    """What an earlier run recorded: file -> description, and the commit, where it is known."""
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
