"""The network's side of fetching: leave to use it, a quick look whether there is one, errors as one sentence."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lantern_pipeline.downloads.entries import Resource, how_to_find_commit, hub_endpoint

REACH_S = 3  # seconds in which a server must accept a connection


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


def check_reach(url: str) -> None:
    """Connects to a server, or to the proxy on the way to it, and hangs up.

    All addresses of a name are tried at once, so that one that swallows packets does not use up the time of the others.
    Looking a name up cannot be given a time limit; so that is left to a thread.

    Args:
        url: address of a file.

    Raises:
        ConnectionError: it did not work within `REACH_S` seconds; says why.
    """
    parts = urlsplit(url)
    proxies = {} if proxy_bypass(parts.hostname) else getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    hop = urlsplit(proxy if proxy and "//" in proxy else f"http://{proxy}" if proxy else url)
    port = hop.port or {"https": 443, "http": 80}.get(hop.scheme, 1080)
    answers: SimpleQueue[str] = SimpleQueue()
    Thread(target=_connect_to_any, args=(hop.hostname, port, answers), daemon=True).start()
    try:
        failure = answers.get(timeout=REACH_S)
    except Empty:
        failure = f"no answer within {REACH_S} s"
    if failure:
        raise ConnectionError(f"{hop.hostname} is out of reach ({failure})")


def _connect_to_any(host: str, port: int, answers: SimpleQueue[str]) -> None:
    """Puts an empty text into `answers` once an address of the host accepts a connection; where none does, why."""
    try:
        addresses = {found[4][0] for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        return answers.put(error.strerror or str(error))
    failures: list[str] = []

    def connect(address: str) -> None:
        try:
            socket.create_connection((address, port), timeout=REACH_S).close()
            answers.put("")
        except OSError as error:
            failures.append(error.strerror or str(error))
            if len(failures) == len(addresses):
                answers.put(failures[-1])

    for address in addresses:
        Thread(target=connect, args=(address,), daemon=True).start()
    return None


def may_pass(error: Exception) -> bool:
    """Tells whether the next try may do better: a busy server or a broken connection, not a full disk or a 404.

    Args:
        error: of a request or a transfer.

    Returns:
        True where it is worth while to try again at once.
    """
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    if isinstance(error, httpx2.TransportError):
        return isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError)
    return isinstance(error, OSError) and error.errno is None  # huggingface_hub's complaint about the size


@contextmanager
def one_sentence(resource: Resource, file: str) -> Iterator[None]:
    """Turns what goes wrong in the block into one sentence with the file, where it comes from and what to do.

    Raises:
        ConnectionError: there is no network, the transfer broke off, or the server is in trouble.
        FileNotFoundError: the server has no such file, commit or repository.
        PermissionError: the server wants to know who asks.
        OSError: the disk is full, or the folder cannot be written to.
    """
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
