"""Serves the recording on loopback or a unix socket: `POST /windows` takes a window and answers with the recording.

    POST /windows[?steps=N]           202 and the window's number, as JSON
    POST /windows?wait=60[&steps=N]   200 and the trace of one process, or a tar of all of them and their manifest
    GET  /windows                     the manifest's windows
    GET  /healthz                     200 while the collector runs; the only one without a token

All others need `Authorization: Bearer TOKEN`. Errors are JSON, `{"error": code, "message": text}`: 400 and 411
malformed, 401 no token, 403 not from this host or from a web page, 404, 405, 409 a window is being taken, 413 a body,
429 too soon or too many, 500 the window gave no file, 503 cannot be taken now, 504 not finished in time (it goes on).

What could be wrong: whoever may read the token's file may take windows. Traffic is not encrypted; it does not leave the
host. Answers of more than ten minutes are cut.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import socketserver
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any, Mapping

from .handler import Ask, Handler, Service
from .say import complain, say
from .spool import Spool

TOKEN_VARIABLE = "TRACEANALYZER_TOKEN"  # noqa: S105
"""Holds the token; it must not reach the recorded command."""
TOKEN_FILE = "token"  # noqa: S105
MOST_CONNECTIONS = 8
LONGEST_SOCKET_NAME = 107
_TOKEN = re.compile(r"[!-~]{16,256}\Z")
_POLL_S = 0.25
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Endpoint:
    """The server. Its threads only pass wishes on; the main loop takes them with `asks`.

    url: where it listens, for a user to read.
    """

    def __init__(self, address: str, token: str, spool: Spool) -> None:
        """Listen at `address`, 127.0.0.1:PORT (0: any) or unix:PATH. Raises `OSError` where it is taken."""
        unix = address.startswith("unix:")
        self._service = Service(spool, token, loopback=not unix)
        handler = type("BoundHandler", (Handler,), {"service": self._service})
        self._path = Path(address[len("unix:") :]) if unix else None
        if self._path is not None:
            self._server: _Server = _unix_server(self._path, handler)
            self.url = f"unix:{self._path}"
        else:
            host, _, port = address.rpartition(":")
            host = host.strip("[]")
            kind = _TcpServer6 if ":" in host else _TcpServer
            self._server = kind((host, int(port)), handler)
            shown = f"[{host}]" if ":" in host else host
            self.url = f"http://{shown}:{self._server.socket.getsockname()[1]}"
        self._server.service = self._service
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="traceanalyzer-endpoint", daemon=True
        )

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def asks(self) -> list[Ask]:
        """The wishes that came since the last call; each needs its `answer` within seconds."""
        return self._service.asks()

    def close(self, within_s: float = 2.0) -> None:
        """Take no further connection; those that wait are told, those that are being answered have so many seconds."""
        self._service.ends.set()
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        until = time.monotonic() + within_s
        while self._server.open_connections() and time.monotonic() < until:
            time.sleep(0.02)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A thread per connection, of which there are few."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 16
    service: Service

    def __init__(self, address: Any, handler: Any) -> None:
        self._room = threading.Semaphore(MOST_CONNECTIONS)
        self._open = 0
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def open_connections(self) -> int:
        return self._open

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.05)  # no file descriptor is left: the next try will not be better at once
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.send(_FULL)
            self.shutdown_request(request)
            return
        with self._lock:
            self._open += 1
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._open -= 1
        self._room.release()

    def service_actions(self) -> None:
        self.service.cut_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away or was too slow is none; anything else is told, without a word of the request."""
        kind, error = sys.exc_info()[:2]
        if kind is not None and not isinstance(error, OSError):
            complain(f"a request was not answered: {kind.__name__}")


class _TcpServer(_Server):
    address_family = socket.AF_INET


class _TcpServer6(_Server):
    address_family = socket.AF_INET6


class _UnixServer(_Server):
    address_family = socket.AF_UNIX
    allow_reuse_address = False

    def server_bind(self) -> None:
        """Bind to a file that no other user may connect to, from its first moment on."""
        os.fchmod(self.socket.fileno(), 0o600)
        super().server_bind()


def _unix_server(path: Path, handler: Any) -> _Server:
    """Listen on a socket file that only this user may use; one that nobody listens on any more is replaced."""
    if len(os.fsencode(str(path))) > LONGEST_SOCKET_NAME:
        raise OSError(f"the name of a unix socket has at most {LONGEST_SOCKET_NAME} bytes: {path}")
    if _is_dead_socket(path):
        path.unlink()
    return _UnixServer(str(path), handler)


def _is_dead_socket(path: Path) -> bool:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def find_token(output: Path, environment: Mapping[str, str]) -> str:
    """The token: of the environment, else of the file in the folder of recordings, which is made where it is not safe.

    Raises:
        ValueError: the environment's is not 16 to 256 visible ASCII characters.
        OSError: the file cannot be written.
    """
    given = environment.get(TOKEN_VARIABLE)
    if given is not None:
        if not _TOKEN.match(given):
            raise ValueError(f"{TOKEN_VARIABLE} must have 16 to 256 visible ASCII characters")
        return given
    path = output / TOKEN_FILE
    with contextlib.suppress(OSError):
        if path.lstat().st_uid != os.getuid():  # another user records to the same folder
            path = output / f"{TOKEN_FILE}-{os.getuid()}"
    found = _read_token(path)
    if found is None:
        found = secrets.token_urlsafe(32)
        temporary = path.with_name(f".{TOKEN_FILE}-{os.getpid()}-{secrets.token_hex(4)}")
        fd = os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(fd, "w") as stream:
                stream.write(found + "\n")
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    say(f"the token for the endpoint is in {path}")
    return found


def _read_token(path: Path) -> str | None:
    """The token of a file that nobody else can have written or read; None without one."""
    try:
        fd = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(fd, errors="replace") as stream:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) != 0o600:
            return None
        found = stream.read(300).strip()
    return found if _TOKEN.match(found) else None
