"""A small HTTP server on the loopback interface: it stores traces as it should, or does what a test scripts."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

PREFIX = "/api/v1/traces/"


@dataclass
class Seen:
    """One request; `body` is what arrived of it, `at` the monotonic second when its header was read."""

    method: str
    path: str
    labels: dict[str, str]
    headers: dict[str, str]
    at: float
    body: bytes = b""
    seconds: float = 0.0

    @property
    def sha256(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def is_whole(self) -> bool:
        return len(self.body) == int(self.headers.get("content-length", "0"))


@dataclass
class Answer:
    """What to answer instead of the right thing.

    drop_after: close the line after so many bytes of the body. pause_s: before anything is read. late_s: when all is
    stored. drip_s: after each byte of the answer's body.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    drop_after: int | None = None
    pause_s: float = 0.0
    late_s: float = 0.0
    drip_s: float = 0.0
    is_right: bool = False


class Scripted(ThreadingHTTPServer):
    """stored: by hash. seen: every request. script: what to answer the next PUTs; `head` the next HEADs."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int = 0) -> None:
        self.stored: dict[str, bytes] = {}
        self.seen: list[Seen] = []
        self.script: deque[Answer] = deque()
        self.head: deque[Answer] = deque()
        self.always: Callable[[Seen], Answer | None] = lambda seen: None
        self.token: str | None = None
        self.scheme = "http"
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    @property
    def puts(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == "PUT"]

    @property
    def whole_puts(self) -> list[Seen]:
        return [seen for seen in self.puts if seen.is_whole]

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that went away

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shut(self) -> None:
        """Stop, and drop every line."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _seen(self) -> Seen:
        parts = urlsplit(self.path)
        headers = {key.lower(): value for key, value in self.headers.items()}
        seen = Seen(self.command, parts.path, dict(parse_qsl(parts.query)), headers, time.monotonic())
        self.server.seen.append(seen)
        return seen

    def _answer(self, status: int, headers: dict[str, str], body: bytes, drip_s: float = 0.0) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        for piece in (bytes([byte]) for byte in body) if drip_s else (body,):
            self.wfile.write(piece)
            time.sleep(drip_s)

    def _may(self, seen: Seen) -> bool:
        token = self.server.token
        if token is None or seen.headers.get("authorization") == f"Bearer {token}":
            return True
        body = json.dumps({"title": "Unauthorized", "status": 401, "detail": "no such token"}).encode()
        self.close_connection = True
        self._answer(401, {"Content-Type": "application/problem+json"}, body)
        return False

    def do_HEAD(self) -> None:
        seen = self._seen()
        scripted = self.server.head.popleft() if self.server.head else self.server.always(seen)
        if scripted is not None and not scripted.is_right:
            time.sleep(scripted.pause_s)
            if scripted.drop_after is not None:
                self.close_connection = True
                return
            self._answer(scripted.status, scripted.headers, scripted.body)
        elif self._may(seen):
            is_there = seen.sha256 in self.server.stored
            self._answer(200 if is_there else 404, {"X-Traceanalyzer-State": "analysed"} if is_there else {}, b"")

    def do_PUT(self) -> None:
        seen = self._seen()
        answer = self.server.script.popleft() if self.server.script else self.server.always(seen)
        if answer is not None:
            time.sleep(answer.pause_s)
        if not self._may(seen):
            return
        size = int(self.headers["Content-Length"])
        most = size if answer is None or answer.drop_after is None else answer.drop_after
        while len(seen.body) < most and (piece := self.rfile.read1(min(1 << 16, most - len(seen.body)))):
            seen.body += piece
        seen.seconds = time.monotonic() - seen.at
        if answer is not None and answer.drop_after is not None:
            self.close_connection = True
            return
        if answer is not None and not answer.is_right:
            self._answer(answer.status, answer.headers, answer.body, answer.drip_s)
            return
        if seen.sha256 in self.server.stored and not size:  # other labels: the body of a known trace is not read
            self._answer(200, {}, json.dumps({"sha256": seen.sha256}).encode())
            return
        if not seen.is_whole or hashlib.sha256(seen.body).hexdigest() != seen.sha256:
            self._answer(400, {}, b'{"title": "wrong hash"}')
            return
        is_new = seen.sha256 not in self.server.stored
        self.server.stored[seen.sha256] = seen.body
        time.sleep(answer.late_s if answer is not None else 0.0)
        said = {"sha256": seen.sha256, "state": "queued", "bytes": size, "url": f"/t/{seen.sha256}"}
        self._answer(201 if is_new else 200, {"Content-Type": "application/json"}, json.dumps(said).encode())


@contextmanager
def serving(port: int = 0, certificate: tuple[Path, Path] | None = None) -> Iterator[Scripted]:
    """A running server; with a certificate and its key, over TLS."""
    server = Scripted(port)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.scheme = "https"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shut()
        thread.join(5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
