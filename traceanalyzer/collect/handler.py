"""Answers one request of the endpoint: who may ask, what is asked for, and the recording itself as an answer.

What could be wrong: a client that closes its sending half while it still reads is taken for one that is gone.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import os
import re
import select
import socket
import tarfile
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Any, BinaryIO, Mapping, Sequence
from urllib.parse import parse_qs, urlsplit

from .facts import Refused, Window
from .manifest import NAME
from .spool import Spool

READ_S = 10.0
"""For a request's head and body."""
SEND_S = 600.0
"""For an answer as a whole."""
LONGEST_WAIT_S = 600
_STALL_S = 15.0
"""For one piece of an answer, and for one piece of a request."""
_DECIDE_S = 5.0
_LOOK_S = 0.25
_MOST_STEPS = 100_000
_MOST_BODY = 4096
_MOST_DRAINED = 1 << 20
_MOST_LISTED = 200
_NO_ROOM = "it was deleted at once, to make room"
_PIECE = 1 << 16
_COUNT = re.compile(r"[0-9]{1,6}\Z")
_REFUSED = {"busy": 409, "min_gap": 429, "per_day": 429}
"""Other reasons to refuse a window are 503."""


class Ask:
    """One client's wish for a window, on its way to the main loop. steps: None is as configured."""

    def __init__(self, steps: int | None) -> None:
        """Nobody has answered yet."""
        self.steps = steps
        self._answer: Window | Refused | None = None
        self._decided = threading.Event()

    def answer(self, answer: Window | Refused) -> None:
        """To be called once by the main loop."""
        self._answer = answer
        self._decided.set()

    def decided(self, timeout_s: float) -> Window | Refused | None:
        """The answer, None where it does not come in time."""
        self._decided.wait(timeout_s)
        return self._answer


class Service:
    """What the endpoint offers to its handlers; `endpoint` fills it in.

    loopback: whether the address is TCP, so that a browser could reach it.
    """

    def __init__(self, spool: Spool, token: str, loopback: bool) -> None:
        """Nothing is asked yet."""
        self.spool = spool
        self.token = token
        self.loopback = loopback
        self.ends = threading.Event()
        self._asks: list[Ask] = []
        self._deadlines: dict[socket.socket, float] = {}
        self._lock = threading.Lock()

    def ask(self, steps: int | None) -> Ask:
        """Pass a wish on."""
        ask = Ask(steps)
        with self._lock:
            self._asks.append(ask)
        return ask

    def asks(self) -> list[Ask]:
        """The wishes that nobody has taken yet."""
        with self._lock:
            asks, self._asks = self._asks, []
        return asks

    def allow(self, connection: socket.socket, seconds: float | None) -> None:
        """How long a connection may live from now on; None: it is closed, forget it."""
        with self._lock:
            if seconds is None:
                self._deadlines.pop(connection, None)
            else:
                self._deadlines[connection] = time.monotonic() + seconds

    def cut_overdue(self) -> None:
        """End the connections whose time is over; their handlers notice."""
        now = time.monotonic()
        with self._lock:
            for connection, until in self._deadlines.items():
                if now > until:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    protocol_version = "HTTP/1.1"
    server_version = "traceanalyzer"
    sys_version = ""
    timeout = _STALL_S
    service: Service
    """Set in a subclass per endpoint."""

    def setup(self) -> None:
        """A new connection."""
        super().setup()
        self.service.allow(self.connection, READ_S)

    def finish(self) -> None:
        """The end of a connection."""
        try:
            super().finish()
        finally:
            self.service.allow(self.connection, None)

    def address_string(self) -> str:
        """Nothing: clients are on this host, and those of a unix socket have no address."""
        return ""

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a request's line and head may hold the token."""

    def do_GET(self) -> None:
        """`/healthz`, `/windows`."""
        path = urlsplit(self.path).path
        if not self._is_local():
            return
        if path == "/healthz":
            self._answer(200, {"status": "ok"})
        elif self._is_allowed(path):
            facts = self.service.spool.manifest()
            listed = {key: facts[key][-_MOST_LISTED:] for key in ("windows", "failed")}
            self._answer(200, {**listed, "dropped": facts["dropped"], "stopped": self.service.spool.stopped})

    def do_POST(self) -> None:
        """`/windows`."""
        parts = urlsplit(self.path)
        if not self._is_local() or not self._is_allowed(parts.path):
            return
        if parts.path == "/healthz":
            self._refuse(405, "method", "GET only", {"Allow": "GET"})
        elif self._read_body():
            wait, steps = self._asked(parts.query)
            if wait is not None:
                self._take(wait, steps)

    def _other(self) -> None:
        """Any other method."""
        self.close_connection = True
        if self._is_local() and self._is_allowed(urlsplit(self.path).path):
            self._refuse(405, "method", "GET and POST only", {"Allow": "GET, POST"})

    do_HEAD = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _other

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors that the base class finds: in the form of all others, without a word of the request."""
        phrases = [status.phrase for status in HTTPStatus if status == code]
        self._refuse(code, "request", phrases[0] if phrases else "error")

    def _is_local(self) -> bool:
        """Whether the request was made for this host and not by a web page, whose user may not know of it."""
        if self.service.loopback:
            hosts = self.headers.get_all("Host") or [""]
            if not all(_names_loopback(host) for host in hosts):
                self._refuse(403, "host", "only requests to this host itself are answered")
                return False
        if self.headers.get("Origin") is not None or self.headers.get("Sec-Fetch-Site") is not None:
            self._refuse(403, "origin", "no request of a web page is answered")
            return False
        return True

    def _is_allowed(self, path: str) -> bool:
        """Whether the token is there, and then whether the path is."""
        kind, _, token = (self.headers.get("Authorization") or "").partition(" ")
        given = token.strip().encode("utf-8", "replace")
        if kind.lower() != "bearer" or not hmac.compare_digest(given, self.service.token.encode()):
            self._refuse(401, "token", "Authorization: Bearer TOKEN is needed", {"WWW-Authenticate": "Bearer"})
            return False
        if path not in ("/windows", "/healthz"):
            self._refuse(404, "path", "there is /windows and /healthz")
            return False
        return True

    def _read_body(self) -> bool:
        """Take a small body, which means nothing, off the connection."""
        length = self.headers.get("Content-Length", "0")
        if self.headers.get("Transfer-Encoding") is not None or not re.match(r"[0-9]{1,18}\Z", length):
            self._refuse(411, "length", "no body is needed")
        elif int(length) > _MOST_BODY:
            self._refuse(413, "body", "no body is needed")
        else:
            return len(self.rfile.read(int(length))) == int(length)
        self._drain()
        return False

    def _drain(self) -> None:
        """Read what a client sends that was refused, within bounds: else it might not see the answer."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1.0)
            left = _MOST_DRAINED
            while left > 0:
                data = self.connection.recv(_PIECE)
                if not data:
                    break
                left -= len(data)

    def _asked(self, query: str) -> tuple[float | None, int | None]:
        """How long to wait and how many steps; (None, None) where that was refused."""
        try:
            found = parse_qs(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=8)
        except ValueError:
            found = {"": []}
        values = {key: value[0] for key, value in found.items() if len(value) == 1 and _COUNT.match(value[0])}
        wait, steps = int(values.get("wait", "0")), int(values.get("steps", "1"))
        if len(values) != len(found) or set(values) - {"wait", "steps"}:
            self._refuse(400, "query", "?wait=SECONDS&steps=N, both whole numbers, is what may be asked for")
        elif wait > LONGEST_WAIT_S or not 1 <= steps <= _MOST_STEPS:
            self._refuse(400, "query", f"wait is at most {LONGEST_WAIT_S}, steps from 1 to {_MOST_STEPS}")
        else:
            return float(wait), steps if "steps" in values else None
        return None, None

    def _take(self, wait: float, steps: int | None) -> None:
        self.service.allow(self.connection, _DECIDE_S + wait + READ_S)
        answer = self.service.ask(steps).decided(_DECIDE_S)
        if answer is None:
            self._refuse(503, "silent", "the collector did not answer")
        elif isinstance(answer, Refused):
            self._refuse(_REFUSED.get(answer.code, 503), answer.code, answer.message)
        elif not wait:
            self._answer(202, {"window": answer.number})
        else:
            self._await(answer.number, wait)

    def _await(self, number: int, wait: float) -> None:
        """Answer with the window when it is finished."""
        until = time.monotonic() + wait
        entry = None
        while entry is None and time.monotonic() < until:
            if self._is_gone() or self.service.ends.is_set():
                break
            entry = self.service.spool.wait(number, min(_LOOK_S, max(0.0, until - time.monotonic())))
        if entry is None:
            self._refuse(504, "wait", f"window {number} is not finished yet; it goes on", window=number)
        elif not entry["files"]:
            self._refuse(500, "lost", f"window {number} gave no file: {entry.get('why', _NO_ROOM)}", window=number)
        else:
            self._send(entry)

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        try:
            return bool(poll.poll(0)) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _send(self, entry: Mapping[str, Any]) -> None:
        """The files of a window: one as it is, several as a tar with their manifest."""
        spool = self.service.spool
        self.service.allow(self.connection, SEND_S)
        with contextlib.ExitStack() as stack:
            files: list[tuple[str, BinaryIO]] = []
            for file in entry["files"]:
                with contextlib.suppress(OSError):  # deleted since, to make room
                    files.append((file["name"], stack.enter_context((spool.folder / file["name"]).open("rb"))))
            names = {name for name, _ in files}
            if not files:
                self._refuse(500, "lost", f"window {entry['number']} gave no file: {_NO_ROOM}", window=entry["number"])
            elif len(files) == 1:
                self._send_file(*files[0], number=entry["number"])
            else:
                kept = {**entry, "files": [file for file in entry["files"] if file["name"] in names]}
                manifest = {**spool.manifest(), "windows": [kept], "steplogs": [], "counters": None}
                self._send_tar(f"{spool.run_id}-window{entry['number']}", manifest, files, entry["number"])

    def _send_file(self, name: str, stream: BinaryIO, number: int) -> None:
        self._start(200, "application/gzip", _size(stream), {**_attachment(name), "Traceanalyzer-Window": str(number)})
        _copy(stream, self.wfile)

    def _send_tar(
        self, folder: str, manifest: Mapping[str, Any], files: Sequence[tuple[str, BinaryIO]], number: int
    ) -> None:
        """An uncompressed tar, of known length, written as it is read."""
        text = json.dumps(manifest).encode()
        members = [(NAME, BytesIO(text), len(text)), *((name, stream, _size(stream)) for name, stream in files)]
        headers = {**_attachment(folder + ".tar"), "Traceanalyzer-Window": str(number)}
        self._start(200, "application/x-tar", _tar_size([size for _, _, size in members]), headers)
        with tarfile.open(fileobj=self.wfile, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
            for name, stream, size in members:
                member = tarfile.TarInfo(f"{folder}/{name}")
                member.size, member.mtime, member.mode = size, int(time.time()), 0o644
                tar.addfile(member, stream)

    def _refuse(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None, window: int | None = None
    ) -> None:
        body: dict[str, Any] = {"error": code, "message": message}
        if window is not None:
            body["window"] = window
        self._answer(status, body, headers)

    def _answer(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode() + b"\n"
        self._start(status, "application/json", len(data), headers or {})
        if self.command != "HEAD":
            self.wfile.write(data)

    def _start(self, status: int, kind: str, length: int, headers: Mapping[str, str]) -> None:
        """The head of an answer, after which the connection is closed."""
        self.close_connection = True
        self.send_response(status)
        fixed = {
            "Content-Type": kind, "Content-Length": str(length), "Connection": "close", "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }  # fmt: skip
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _names_loopback(host: str) -> bool:
    """Whether a Host header names this host: a page that resolves its own name to loopback says another one."""
    name = re.sub(r":\d*\Z", "", host.strip())
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _attachment(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def _size(stream: BinaryIO) -> int:
    return os.fstat(stream.fileno()).st_size


def _tar_size(sizes: Sequence[int]) -> int:
    """Bytes of an archive whose members have one block of head each, and that ends with two blocks of zeros."""
    block, record = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
    total = sum(block + -(-size // block) * block for size in sizes) + 2 * block
    return -(-total // record) * record


def _copy(source: BinaryIO, target: Any) -> None:
    while True:
        piece = source.read(_PIECE)
        if not piece:
            return
        target.write(piece)
