"""A local server that acts as a web server of plain files and as the Hugging Face hub.

It can be told to fail as real servers do: with error statuses, cut connections and stalls.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Fault(NamedTuple):
    """A fault of one GET request. The faults of a file hit its requests in the given order, one each.

    Attributes:
        status: HTTP status that replaces the answer.
        cut_after: number of bytes of the body after which the connection is closed.
        stall_after: number of bytes of the body after which nothing more is sent.
    """

    status: int | None = None
    cut_after: int | None = None
    stall_after: int | None = None


class Repository(NamedTuple):
    """A repository at one commit.

    Attributes:
        files: path -> bytes.
        commit: the only commit.
        gated: whether access is refused, as for a licence that was not accepted.
    """

    files: dict[str, bytes]
    commit: str = COMMIT
    gated: bool = False


class Served(NamedTuple):
    """A request that the server has received.

    Attributes:
        method: "GET" or "HEAD".
        path: path of the URL.
        byte_range: the Range header, or None.
        authorization: the Authorization header, or None.
    """

    method: str
    path: str
    byte_range: str | None
    authorization: str | None


class HubServer:
    """Local web server and mock hub. It serves until `close` is called.

    The URL paths of plain files begin with "/files/".

    Attributes:
        files: URL path -> bytes of plain files.
        repositories: name -> repository.
        faults: URL path -> faults still to come.
        ranges: whether Range requests are honoured.
        served: all requests so far.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.repositories: dict[str, Repository] = {}
        self.faults: dict[str, deque[Fault]] = {}
        self.ranges = True
        self.served: list[Served] = []
        self.closing = threading.Event()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.http.server_port}"

    @property
    def cdn(self) -> str:
        """The URL of the same server under another host name, which plays the content network of the hub.

        A client must not send its token there.
        """
        return f"http://localhost:{self.http.server_port}"

    def add(self, name: str, content: bytes, *faults: Fault) -> str:
        """Add a plain file with its faults, and return its URL."""
        self.files[f"/files/{name}"] = content
        self.faults[f"/files/{name}"] = deque(faults)
        return f"{self.endpoint}/files/{name}"

    def add_repository(self, repo: str, files: dict[str, bytes], **options) -> str:
        """Add a repository, and return its commit. `options` are fields of `Repository`."""
        self.repositories[repo] = Repository(files, **options)
        return self.repositories[repo].commit

    def close(self) -> None:
        """Stop the server."""
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.served.append(Served(self.command, path, self.headers["Range"], self.headers["Authorization"]))
        if path in self.hub.files:
            self._send_file(self.hub.files[path], path)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(*match.groups())
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            if found := self._repository(match[1], match[2]):
                names = [{"rfilename": name} for name in found.files]
                about = {"id": match[1], "sha": found.commit, "siblings": names}
                self._send_file(json.dumps(about).encode(), headers={"Content-Type": "application/json"})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            if found := self._repository(*match.groups()):
                entries = [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for name, content in found.files.items()
                ]
                self._send_file(json.dumps(entries).encode(), headers={"Content-Type": "application/json"})
        elif match := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            contents = (content for one in self.hub.repositories.values() for content in one.files.values())
            self._send_file(next(one for one in contents if hashlib.sha256(one).hexdigest() == match[1]), path)
        else:
            self._send_head(404)

    do_HEAD = do_GET

    def _repository(self, repo: str, revision: str | None, file: str | None = None) -> Repository | None:
        """Return a repository.

        If the repository, its revision or the file is missing, send the hub's error and return None.
        """
        found = self.hub.repositories.get(repo)
        if found is None:
            status, code = 401, "RepoNotFound"
        elif found.gated:
            status, code = 403, "GatedRepo"
        elif revision not in (None, "main", found.commit):
            status, code = 404, "RevisionNotFound"
        elif file is not None and file not in found.files:
            status, code = 404, "EntryNotFound"
        else:
            return found
        return self._send_head(status, {"X-Error-Code": code})

    def _resolve(self, repo: str, revision: str, file: str) -> None:
        """Send a file of a repository.

        Large files (*.safetensors, *.pt, *.bin) are sent by a redirect to the CDN, small ones directly.
        """
        found = self._repository(repo, revision, file)
        if found is None:
            return
        content, headers = found.files[file], {"X-Repo-Commit": found.commit}
        if file.endswith((".safetensors", ".pt", ".bin")):
            sha256 = hashlib.sha256(content).hexdigest()
            headers |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
            self._send_head(302, {**headers, "Location": f"{self.hub.cdn}/cdn/{sha256}"})
        else:
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            self._send_file(content, headers={**headers, "ETag": f'"{blob}"'})

    def _send_file(self, content: bytes, path: str = "", headers: dict[str, str] | None = None) -> None:
        faults = self.hub.faults.get(path)
        fault = faults.popleft() if faults and self.command == "GET" else Fault()
        if fault.status is not None:
            return self._send_head(fault.status)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "") if self.hub.ranges else None
        first = int(asked[1]) if asked else 0
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', **(headers or {})}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self._send_head(206 if first else 200, headers, len(content) - first)
        if self.command == "HEAD":
            return None
        end = min((one for one in (fault.cut_after, fault.stall_after) if one is not None), default=len(content))
        try:
            self.wfile.write(content[first : first + end])
            if fault.stall_after is not None:
                self.hub.closing.wait(30)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has seen enough
        self.close_connection = self.close_connection or first + end < len(content)
        return None

    def _send_head(self, status: int, headers: dict[str, str] | None = None, length: int = 0) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
