"""First contact with the server of a file: where it is, how large, of which content; no byte of it is fetched here.

A server that is silent is given up at the first question, so that whoever has no network learns so within 10 seconds;
patience is for a transfer that has begun.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

from lantern_pipeline.downloads.entries import Resource, hub_endpoint
from lantern_pipeline.downloads.network import REACH_S, check_reach, may_pass

ANSWER_S = 6  # seconds that a server may take to begin its answer; with REACH_S below 10
ASK_WAITS_S = (1, 2, 4)  # seconds before a question is put again to a server that is busy or has hung up

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


def newest_commit(repo: str) -> str:
    """Asks the hub for the newest commit of a repository, 40 hexadecimal digits."""
    return _ask(lambda: HfApi(endpoint=hub_endpoint()).repo_info(repo, timeout=_patience()).sha)


def locate_on_hub(resource: Resource, file: str) -> RemoteFile:
    """Asks the hub for a file of an entry that has a commit.

    Raises:
        ConnectionError: the hub stays silent, or the server that large files lie on is out of reach.
        ValueError: the answer is not of this commit.
    """
    url = hf_hub_url(resource.repo, file, revision=resource.revision, endpoint=hub_endpoint())
    found = _ask(lambda: get_hf_file_metadata(url, timeout=_patience(), endpoint=hub_endpoint()))
    if found.commit_hash != resource.revision:
        raise ValueError(f"{url} answers with commit {found.commit_hash}; is HF_ENDPOINT a hub?")
    check_reach(found.location)  # where large files lie
    etag = found.etag or ""
    sha256 = etag if len(etag) == 64 else None  # large files; the small ones have git's hash
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    return RemoteFile(url, found.size, sha256, found.etag, headers)


def locate_by_url(url: str) -> RemoteFile:
    """Begins a GET and reads only the answer's head: some servers refuse HEAD requests.

    Raises:
        ConnectionError: the server stays silent.
    """
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
    """Puts a short question to a server, again where it is busy or hung up, but not where it stays silent.

    Raises:
        ConnectionError: no answer within ANSWER_S seconds.
    """
    waits = iter(ASK_WAITS_S)
    while True:
        try:
            return question()
        except httpx2.TimeoutException as error:
            host, limit = error.request.url.host, REACH_S if isinstance(error, httpx2.ConnectTimeout) else ANSWER_S
            raise ConnectionError(f"{host} accepts connections but gives no answer within {limit} s") from error
        except (HfHubHTTPError, httpx2.TransportError) as error:
            wait = next(waits, None)
            # The host is in reach: a connection that is not made now is a certificate's fault.
            if wait is None or isinstance(error, httpx2.ConnectError) or not may_pass(error):
                raise
            log.warning("%s; asking again", error)
            time.sleep(wait)


def _patience() -> httpx2.Timeout:
    """Seconds for each of a server's addresses to accept a connection, and for the answer to begin."""
    return httpx2.Timeout(ANSWER_S, connect=REACH_S)
