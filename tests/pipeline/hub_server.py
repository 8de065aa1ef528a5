"""A local server that plays both a web server of plain files and the hub, with the faults of real ones."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Fault:
    """What goes wrong with one GET; each fault holds for one request, in the order given."""

    status: int | None = None  # answer with this status instead
    cut_after: int | None = None  # close the connection after so many bytes of the body
    stall_after: int | None = None  # send nothing more after so many bytes of the body


@dataclass
class Repository:
    """A repository at one commit."""

    files: dict[str, bytes]
    commit: str = COMMIT
    gated: bool = False


@dataclass
class Served:
    """A request."""

    method: str
    path: str
    byte_range: str | None
    authorization: str | None


@dataclass
class HubServer:
    """Serves until `close`. Paths of plain files begin with "/files/"."""

    files: dict[str, bytes] = field(default_factory=dict)
    repositories: dict[str, Repository] = field(default_factory=dict)
    faults: dict[str, deque[Fault]] = field(default_factory=dict)
    ranges: bool = True  # whether Range requests are honoured
    served: list[Served] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}"

    @property
    def cdn(self) -> str:
        """The same server under another name: a token must not be sent there."""
        return f"http://localhost:{self.http.server_port}"

    def add(self, name: str, content: bytes, *faults: Fault) -> str:
        """Adds a plain file; returns its url."""
        self.files[f"/files/{name}"] = content
        self.faults[f"/files/{name}"] = deque(faults)
        return f"{self.endpoint}/files/{name}"

    def add_repository(self, repo: str, files: dict[str, bytes], **options) -> str:
        """Adds a repository; returns its commit."""
        self.repositories[repo] = Repository(files, **options)
        return self.repositories[repo].commit

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.served.append(Served(self.command, path, self.headers["Range"], self.headers["Authorization"]))
        if path in self.hub.files:
            return self._send_file(path, self.hub.files[path])
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(*match.groups())
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            return self._describe(match[1])
        if match := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            contents = (content for one in self.hub.repositories.values() for content in one.files.values())
            content = next(one for one in contents if hashlib.sha256(one).hexdigest() == match[1])
            return self._send_file(path, content)
        return self._refuse(404)

    def _repository(self, repo: str, revision: str | None, file: str | None = None) -> Repository | None:
        """Finds a repository, or answers as the hub does where there is none."""
        found = self.hub.repositories.get(repo)
        if found is None:
            self._refuse(401, "RepoNotFound")
        elif found.gated:
            self._refuse(403, "GatedRepo")
        elif revision not in (None, "main", found.commit):
            self._refuse(404, "RevisionNotFound")
        elif file is not None and file not in found.files:
            self._refuse(404, "EntryNotFound")
        else:
            return found
        return None

    def _resolve(self, repo: str, revision: str, file: str) -> None:
        """Large files (*.safetensors, *.pt, *.bin) come by a redirect to the CDN, small ones directly."""
        found = self._repository(repo, revision, file)
        if found is None:
            return
        content = found.files[file]
        sha256 = hashlib.sha256(content).hexdigest()
        if not file.endswith((".safetensors", ".pt", ".bin")):
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            return self._send_file(self.path, content, {"X-Repo-Commit": found.commit, "ETag": f'"{blob}"'})
        self.send_response(302)
        linked = {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
        where = {"Location": f"{self.hub.cdn}/cdn/{sha256}", "X-Repo-Commit": found.commit}
        self._send_headers({**where, **linked, "Content-Length": "0"})

    def _describe(self, repo: str) -> None:
        found = self._repository(repo, None)
        if found is not None:
            content = json.dumps({"id": repo, "sha": found.commit, "siblings": []}).encode()
            self._send_file("", content, {"Content-Type": "application/json"})

    def _send_file(self, path: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        faults = self.hub.faults.get(path)
        fault = faults.popleft() if faults and self.command == "GET" else Fault()
        if fault.status is not None:
            return self._refuse(fault.status)
        first = 0
        if self.hub.ranges and (match := re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")):
            first = int(match[1])
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', **(headers or {})}
        self._send_headers({**headers, "Content-Length": str(len(content) - first)})
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

    def _refuse(self, status: int, code: str | None = None) -> None:
        self.send_response(status)
        self._send_headers({**({"X-Error-Code": code} if code else {}), "Content-Length": "0"})

    def _send_headers(self, headers: dict[str, str]) -> None:
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
