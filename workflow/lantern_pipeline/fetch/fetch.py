"""Download of resources from the Hugging Face hub or a URL, which continues after an interruption.

The folder of a resource holds its files and .record.json. This *record* states the *origin* of the files (url, repo and
revision) and the *description* of each file (SHA-256, size and date). Later fetches must find the same content.

huggingface_hub does both kinds of transfer. Its own download functions never continue the partial file of an earlier
call, so an interrupted download of many GB would start again from zero. Hence this module calls a lower-level function,
which appends to `<file>.part`. The version of that content is in `<file>.part.json`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

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

from lantern.io import read_json, write_json
from lantern_pipeline.fetch.entries import Resource, check_file, how_to_find_commit, hub_endpoint
from lantern_pipeline.fetch.manifest import FileDescription, Manifest, describe_file, describe_path, make_manifest

# Without a network, the user gets an error within 10 seconds. A transfer that has begun may take longer.
REACH_S = 3  # seconds in which each address of a server must accept a connection
ANSWER_S = 6  # seconds that a server may take to begin its answer
WAITS_S = (1, 2, 4)  # seconds before each further request, if the server is busy or has ended the connection
RECORD = ".record.json"  # a dot file, which no entry can name
# The server must not compress a file: a byte offset in the partial file has to be one in the file itself.
UNPACKED = {"Accept-Encoding": "identity"}

log = logging.getLogger(__name__)
T = TypeVar("T")


class RemoteFile(NamedTuple):
    """File on a server, before it is downloaded.

    Attributes:
        size: size in bytes; None if the server does not state it.
        version: ETag or date of the content. An interrupted download is resumed only if the version is the same.
        sha256: hash of the content that the hub states; None if it states none.
    """

    url: str
    headers: dict[str, str]
    size: int | None
    version: str | None
    sha256: str | None = None


def fetch_resource(resource: Resource) -> Manifest:
    """Make sure that the files of a resource are on this machine and correct, and return their manifest.

    Only files that are not yet in the resource's folder are downloaded. A wrong hash raises a ValueError, a failed
    download an OSError that says what to do.
    """
    if resource.path is not None:
        return _use_own_copy(resource, resource.path)
    recorded, commit = _read_record(resource)
    # The commit and the hashes of the first download hold where the config states none.
    resource = replace(resource, revision=resource.revision or commit)
    known = {file: description["sha256"] for file, description in recorded.items()}
    expected = {file: sha256 or known.get(file) for file, sha256 in resource.files.items()}
    places = {file: resource.folder / file for file in resource.files}
    # Files that a user has put into the folder are used, if their hashes are right.
    described = {
        file: _check_content(resource, file, place, expected[file]) for file, place in places.items() if place.is_file()
    }
    missing = [file for file in resource.files if file not in described]
    if missing:
        with _network_allowed():
            resource = _pin_commit(resource, missing[0])  # the file is for the error message
            # All files are located before the first transfer: a wrong name shows up before hours of downloading.
            remotes = {file: _locate(resource, file, expected[file]) for file in missing}
            for file, remote in remotes.items():
                # Recorded before the transfer, so that the commit stays the same if the transfer is interrupted.
                _write_record(resource, {**recorded, **described})
                described[file] = _fetch_file(resource, file, remote, expected[file] or remote.sha256)
    # The index is there now. The next call also fetches the weight files that it names, and finds no further ones.
    if shards := _shards_beside(resource):
        return fetch_resource(replace(resource, files={**resource.files, **shards}))
    _write_record(resource, described)
    place = next(iter(places.values())) if len(places) == 1 else resource.folder
    source = resource.url or f"{resource.repo} at {resource.revision or 'an unknown commit'} on the hub"
    return make_manifest(resource.name, place, source, described)


def _shards_beside(resource: Resource) -> dict[str, None]:
    """Return the weight files that an index of sharded weights names and the config does not: name -> None (any hash).

    The index (*.index.json) has a `weight_map`: name of a tensor -> file in the folder of the index.
    """
    found = {}
    for index in [file for file in resource.files if file.endswith(".index.json")]:
        for name in read_json(resource.folder / index).get("weight_map", {}).values():
            file = (PurePosixPath(index).parent / name).as_posix()
            # The index is a downloaded file, and must not lead out of the folder.
            check_file(f"resource {resource.name}", file, None)
            found |= {} if file in resource.files else {file: None}
    return found


@contextmanager
def _network_allowed() -> Iterator[None]:
    """Allow requests to the hub in the `with` block, although every job sets HF_HUB_OFFLINE=1."""
    # huggingface_hub reads the environment variable only once, when it is imported.
    offline, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, False
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline


def _use_own_copy(resource: Resource, path: Path) -> Manifest:
    described = describe_path(path)
    is_alone = len(resource.files) == len(described) == 1  # the user's file may then have another name
    for file, expected in resource.files.items():
        found = next(iter(described.values())) if is_alone else described.get(file)
        sha256 = None if found is None else found["sha256"]
        # Without a hash, the copy may hold other files in place of this one.
        if expected not in (None, sha256):
            fault = "lacks this file" if found is None else "has another content"
            raise ValueError(
                f"config key resources.{resource.name}.files.{file}: {path} {fault}: expected sha256 {expected}, "
                f"found {sha256 or 'nothing'}; set it to null if your copy is meant"
            )
    return make_manifest(resource.name, path, "the user's own copy", described)


def _check_content(resource: Resource, file: str, where: Path, expected: str | None) -> FileDescription:
    """Hash a file at `where`, its final or partial path. If the hash is wrong, rename it and raise a ValueError."""
    described = describe_file(where)
    if expected in (None, described["sha256"]):
        log.info("%s, sha256 %s", where, described["sha256"])
        return described
    path = resource.folder / file
    aside = path.with_name(f"{path.name}.wrong")
    # Out of the way, or the next fetch would find the same file again.
    os.replace(where, aside)
    said_by = f"config key resources.{resource.name}.files" if resource.files[file] else "the first fetch or the hub"
    raise ValueError(
        f"resource {resource.name}: {path} has the wrong content: expected sha256 {expected} (from {said_by}), "
        f"found {described['sha256']}; it was moved to {aside}; run again to download a new copy"
    )


def _pin_commit(resource: Resource, file: str) -> Resource:
    """Set the `revision` of a repository, if it is None, to the newest commit: all files come from the same one."""
    repo = resource.repo
    if repo is None or resource.revision is not None:
        return resource
    with _one_sentence(resource, file):
        newest = _ask(lambda: HfApi(endpoint=hub_endpoint()).repo_info(repo, timeout=_patience()).sha)
    log.warning(
        "config key resources.%s.revision is null: the newest commit of %s, %s, is fetched and kept from now on; "
        "write it into the config, so that everyone gets the same files",
        *(resource.name, repo, newest),
    )
    return replace(resource, revision=newest)


def _locate(resource: Resource, file: str, expected: str | None) -> RemoteFile:
    with _one_sentence(resource, file):
        remote = _ask(lambda: _locate_by_url(resource.url) if resource.url else _locate_on_hub(resource, file))
    if remote.sha256 and expected and remote.sha256 != expected:
        raise ValueError(
            f"resource {resource.name}: {resource.download_url(file)} is another file: expected sha256 {expected}, "
            f"the hub has {remote.sha256}; correct config key resources.{resource.name}"
        )
    return remote


def _locate_on_hub(resource: Resource, file: str) -> RemoteFile:
    url = hf_hub_url(resource.repo or "", file, revision=resource.revision, endpoint=hub_endpoint())
    found = get_hf_file_metadata(url, timeout=_patience(), endpoint=hub_endpoint())
    # A web server that is no hub answers without a commit.
    if found.commit_hash != resource.revision:
        raise ValueError(f"{url} answers with commit {found.commit_hash}; is HF_ENDPOINT a hub?")
    # The ETag of a large file is its SHA-256 of 64 digits; the ETag of a small file is git's hash, of 40.
    sha256 = found.etag if found.etag and len(found.etag) == 64 else None
    return RemoteFile(url, {**build_hf_headers(), **UNPACKED}, found.size, found.etag, sha256)


def _locate_by_url(url: str) -> RemoteFile:
    options = {"headers": UNPACKED, "timeout": _patience(), "follow_redirects": True}
    # GET instead of HEAD, which some servers refuse. The body is not read. `_ask` repeats requests, hence no retries.
    with http_stream_backoff("GET", url, max_retries=0, retry_on_exceptions=(), **options) as answer:
        hf_raise_for_status(answer)
        found = answer.headers
    # The length of a compressed answer is not the size of the file.
    size = None if "Content-Encoding" in found else found.get("Content-Length")
    return RemoteFile(url, UNPACKED, int(size) if size else None, found.get("ETag") or found.get("Last-Modified"))


def _ask(question: Callable[[], T]) -> T:
    """Call a function that sends a request. Repeat the call up to three times if the server is busy or hangs up.

    A server that cannot be reached, or that is silent, is not asked again.
    """
    for wait in WAITS_S:
        try:
            return question()
        except (HfHubHTTPError, httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError) as error:
            # 429: too many requests; 5xx: a fault of the server. Any other answer would come again.
            if isinstance(error, HfHubHTTPError) and error.response.status_code not in (429, *range(500, 600)):
                raise
            log.warning("%s; asking again", error)
        time.sleep(wait)
    return question()


def _patience() -> Any:
    # huggingface_hub declares `timeout` as a float, but passes it on to httpx2, which also accepts this object. Hence
    # the return type Any.
    return httpx2.Timeout(ANSWER_S, connect=REACH_S)


def _fetch_file(resource: Resource, file: str, remote: RemoteFile, expected: str | None) -> FileDescription:
    """Append what is missing to `<file>.part`, check its hash, and rename it to `<file>`."""
    part = _part(resource, file)
    version_file = part.with_name(f"{part.name}.json")
    version = {"url": remote.url, "size": remote.size, "version": remote.version}
    is_known = remote.version and version_file.is_file() and read_json(version_file) == version
    if not is_known:
        part.unlink(missing_ok=True)  # it belongs to another version, or its version is unknown
    write_json(version_file, version)
    log.info("fetching %s to %s, from byte %d of %s", remote.url, part, _size(part), remote.size)

    def append() -> None:
        # Each attempt of `_ask` goes on where the partial file ends. The stem is the name without ".part".
        options = {"headers": remote.headers, "expected_size": remote.size, "displayed_filename": part.stem}
        with open(part, "ab") as opened:
            http_get(remote.url, opened, resume_size=_size(part), **options)
            opened.flush()
            # On the disk before the file is renamed, so that a crash leaves no incomplete file under the final name.
            os.fsync(opened.fileno())

    with _one_sentence(resource, file):
        _ask(append)
    version_file.unlink()
    described = _check_content(resource, file, part, expected)
    os.replace(part, resource.folder / file)
    return described


@contextmanager
def _one_sentence(resource: Resource, file: str) -> Iterator[None]:
    """Replace the error of a failed transfer by one sentence with file, URL, cause and remedy."""
    try:
        yield
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        kind, fault = _explain(error, resource, file)
        who = f"resource {resource.name}: {file} cannot be fetched from {resource.download_url(file)}"
        raise kind(f"{who}: {fault}") from error


def _explain(
    error: HfHubHTTPError | httpx2.HTTPError | OSError, resource: Resource, file: str
) -> tuple[type[OSError], str]:
    """Return the type of the exception to raise, and the rest of its message: cause and remedy."""
    key = f"config key resources.{resource.name}"
    by_hand = f"download it by hand to {resource.folder / file}, or set {key}.path to a copy that you have"
    goes_on = f"run again to resume it, or {by_hand}"
    match error:
        case HfHubHTTPError():
            return _explain_answer(error, resource, key, by_hand)
        case httpx2.ConnectTimeout():
            silence = f"no answer within {error.request.extensions['timeout']['connect']} s"
            return ConnectionError, f"{error.request.url.host} cannot be reached ({silence}); {by_hand}"
        case httpx2.ConnectError():
            reason = str(error).rpartition("] ")[2]  # without the number, as in "[Errno 111] Connection refused"
            return ConnectionError, f"{error.request.url.host} cannot be reached ({reason}); {by_hand}"
        # There is a partial file, so this server has answered before.
        case httpx2.TimeoutException() if _size(_part(resource, file)):
            return ConnectionError, f"{error.request.url.host} stopped sending; {goes_on}"
        case httpx2.TimeoutException():
            silence = f"accepts connections but gives no answer within {ANSWER_S} s"
            return ConnectionError, f"{error.request.url.host} {silence}; {by_hand}"
        case httpx2.HTTPError():
            return ConnectionError, f"the connection was interrupted ({error}); {goes_on}"
        case OSError(errno=None):  # huggingface_hub found that the size is wrong
            return ConnectionError, f"the transfer was interrupted; {goes_on}"
        case OSError():
            return OSError, f"{error.strerror}; check the folder {resource.folder} and run again"


def _explain_answer(error: HfHubHTTPError, resource: Resource, key: str, by_hand: str) -> tuple[type[OSError], str]:
    """Return the same for an answer of status 4xx or 5xx."""
    status, repo, log_in = error.response.status_code, resource.repo or "", "log in with `hf auth login`"
    match error:
        # Before RepositoryNotFoundError, of which it is a subclass.
        case GatedRepoError():
            return PermissionError, f"accept its terms at {hub_endpoint()}/{repo} and {log_in}, or {by_hand}"
        case RevisionNotFoundError():
            hint = f"correct {key}.revision, {how_to_find_commit(repo)}"
            return FileNotFoundError, f"{repo} has no commit {resource.revision}; {hint}"
        case RemoteEntryNotFoundError():
            return FileNotFoundError, f"{repo} has no such file at this commit; correct {key}.files"
        case RepositoryNotFoundError():
            hint = f"correct {key}.repo, or {log_in}"
            return FileNotFoundError, f"the hub has no {repo}, or shows it to members only; {hint}"
    if status in (401, 403):
        return PermissionError, f"the server refuses it (status {status}); {by_hand}"
    if status in (404, 410):
        return FileNotFoundError, f"there is no such file (status {status}); correct {key}, or {by_hand}"
    return ConnectionError, f"the server reports an error (status {status}); run again later, or {by_hand}"


def _read_record(resource: Resource) -> tuple[dict[str, FileDescription], str | None]:
    """Return the recorded descriptions by file name and the recorded commit, None if it is not known."""
    path = resource.folder / RECORD
    if not path.is_file():
        return {}, None
    record = read_json(path)
    was, now = record["origin"], _origin(resource)
    # The commit is compared only if both the record and the config have one. Files that a user put into the folder have
    # none, and the config need not name the commit that the first download found.
    differs = any(was[part] != now[part] for part in now if part != "revision" or (was[part] and now[part]))
    if differs and record["files"]:
        before, after = (" ".join(filter(None, origin.values())) for origin in (was, now))
        raise ValueError(
            f"{resource.folder} holds files of {before}, but config key resources.{resource.name} says {after}; "
            f"delete the folder, or give the entry another name"
        )
    # If the origin differs, nothing has been downloaded from the old one, and its commit means nothing for the new one.
    return record["files"], None if differs else was["revision"]


def _write_record(resource: Resource, described: Mapping[str, FileDescription]) -> None:
    write_json(resource.folder / RECORD, {"origin": _origin(resource), "files": dict(described)})


def _origin(resource: Resource) -> dict[str, str | None]:
    """Return the values of an entry that decide the content of its files."""
    return {part: getattr(resource, part) for part in ("url", "repo", "revision")}


def _part(resource: Resource, file: str) -> Path:
    path = resource.folder / file
    return path.with_name(f"{path.name}.part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
