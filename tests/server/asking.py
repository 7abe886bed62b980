"""A server inside the test's own process: its services, a client without sockets, and the same behind real ones.

What could be wrong: what runs here has no queue, so nothing is analysed unless a test does it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from traceanalyzer.server.app import create_app
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Limits, Settings
from traceanalyzer.server.traces import Search

BASE = "http://127.0.0.1:8321"
TRACE = gzip.compress(
    json.dumps({"traceEvents": [{"ph": "X", "name": "aten::add", "ts": 1, "dur": 2}]}).encode(), mtime=0
)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def path_of(data: bytes) -> str:
    return f"/api/v1/traces/{sha256(data)}"


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[Services]:
    """Services over a folder; a full disk of the test's machine is no concern."""
    limits = settings.pop("limits", {})
    made = Services.open(Settings(folder=folder, limits=Limits(**{"min_free_bytes": 0, **limits}), **settings))
    try:
        yield made
    finally:
        made.close()


def client(app: FastAPI, token: str = "", address: str = "127.0.0.1") -> TestClient:
    """A client on this machine; an error in the server is an answer, as it is for everybody."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return TestClient(
        app, base_url=BASE, client=(address, 50000), headers=headers, raise_server_exceptions=False,
        follow_redirects=False,
    )  # fmt: skip


def token_of(services: Services, *scopes: str, expires_s: float | None = None, now: int | None = None) -> str:
    return services.tokens.make("test", scopes, expires_s, now)[1]


def secret_of(token: str) -> str:
    """What follows `ta_` and the token's id; there may be further "_" in it."""
    return token.split("_", 2)[2]


def kept(services: Services) -> dict[str, list[str]]:
    """Everything that is stored: blobs, what is being staged, bodies on their way, rows."""
    settings = services.settings
    assert settings.blobs is not None
    files = [str(path.relative_to(settings.blobs)) for path in settings.blobs.rglob("*") if path.is_file()]
    return {
        "blobs": sorted(files),
        "incoming": [path.name for path in settings.incoming.iterdir()],
        "traces": [row.sha256 for row in services.traces.find(Search(), None, 500).rows],
        "jobs": [job.sha256 for job in services.jobs.unfinished()],
    }


NOTHING: dict[str, list[str]] = {"blobs": [], "incoming": [], "traces": [], "jobs": []}


def until(condition: Callable[[], Any], timeout: float = 30.0) -> Any:
    """What `condition` gives once it is true."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
    return found


@contextmanager
def listening(services: Services) -> Iterator[int]:
    """The application behind a real socket of the loopback interface, as `serve` runs it; the port."""
    config = uvicorn.Config(
        create_app(services), http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
        proxy_headers=False, timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            until(lambda: server.started)
            yield int(bound.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


class Wire:
    """One connection that says exactly what it is told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)

    def head(self, method: str, path: str, **headers: str) -> None:
        given = {"Host": f"127.0.0.1:{self._port}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def status(self) -> int:
        """The status of the next answer; 0 where the connection was closed without one."""
        answer = self.read()
        return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0

    def read(self) -> bytes:
        """What arrives until the server closes, or until a head is whole."""
        data = b""
        try:
            while b"\r\n\r\n" not in data and (piece := self._socket.recv(65536)):
                data += piece
        except ConnectionError:
            pass
        return data

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
