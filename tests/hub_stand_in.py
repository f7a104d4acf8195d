"""A small model hub on loopback: the part of the HTTP API with which its client library downloads."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/revision/main)?")
_FILE = re.compile(rf"/(?P<repo>[^/]+/[^/]+)/resolve/(?:main|{COMMIT})/(?P<file>.+)")


@dataclass
class Repo:
    """Files by path. Requests without the `token` get 401; all requests of a `gated` repository get 403."""

    files: dict[str, bytes]
    token: str | None = None
    gated: bool = False
    claimed_size: int | None = None  # a false size of every file in replies to HEAD
    etag: str | None = None  # a false hash of every file


@dataclass
class Hub:
    repos: dict[str, Repo]
    endpoint: str = ""
    requests: list[str] = field(default_factory=list)  # method and path, in order of arrival
    status: int | None = None  # forced status of every reply
    sent: int = 0  # bytes of the last requested file
    stall_after: int | None = None
    """Bytes of the next file before a stall, which lasts until `released`; then the connection is cut."""
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """Variables of a process that stores its models in this folder and uses this hub."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return {**inherited, "HF_HOME": str(home), "HF_ENDPOINT": self.endpoint, **more}

    def downloads(self) -> list[str]:
        """Files whose content was requested, in order."""
        matches = [_FILE.fullmatch(line.removeprefix("GET ")) for line in self.requests]
        return [match["file"] for match in matches if match]


@contextmanager
def running(repos: dict[str, Repo]) -> Iterator[Hub]:
    hub = Hub(repos)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            hub.released.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's terminal free of access logs."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        match = _API.fullmatch(path) or _FILE.fullmatch(path)
        repo = self.hub.repos.get(match["repo"]) if match else None
        if self.hub.status is not None:
            self._refuse(self.hub.status, "")
        elif match is None or repo is None:
            self._refuse(404, "RepoNotFound")
        elif repo.gated:
            self._refuse(403, "GatedRepo")
        elif repo.token is not None and self.headers["Authorization"] != f"Bearer {repo.token}":
            self._refuse(401, "")
        elif match.re is _API:
            self._listing(match["repo"], repo)
        elif match["file"] not in repo.files:
            self._refuse(404, "EntryNotFound")
        else:
            self._file(repo, repo.files[match["file"]])

    do_HEAD = do_GET

    def _listing(self, name: str, repo: Repo) -> None:
        siblings = [{"rfilename": file} for file in repo.files]
        body = json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()
        self._send(200, {"Content-Type": "application/json"}, body, len(body))

    def _file(self, repo: Repo, content: bytes) -> None:
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        size = len(content) - start
        if self.command == "HEAD" and repo.claimed_size is not None:
            size = repo.claimed_size
        etag = repo.etag or hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._send(206 if start else 200, headers, content[start:], size)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code} if code else {}, b"", 0)

    def _send(self, status: int, headers: dict[str, str], body: bytes, size: int) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command == "GET" and _FILE.fullmatch(self.path):
            self._write_file(body)
        elif self.command == "GET":
            self.wfile.write(body)

    def _write_file(self, body: bytes) -> None:
        stall_after, self.hub.stall_after = self.hub.stall_after, None
        self.hub.sent = len(body)
        self.wfile.write(body[:stall_after])
        if stall_after is not None:
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.released.wait()
            self.close_connection = True
