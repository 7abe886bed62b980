"""Runs the server as one process, from the claim on its folder to the last answered request.

The order matters: the folder is claimed before anything in it is touched, the port is bound before the database is
changed, and nobody is answered before the access rules hold. A first SIGTERM, SIGINT or SIGHUP ends it gently: no new
connection, running requests and analyses get the grace, what does not finish is cancelled and runs again at the next
start. A second signal gives up waiting. After SIGKILL nothing that was acknowledged is missing, because an answer is
sent only after the disk has it; see `ingest`.

What could be wrong: uvicorn has no limit on how long the head of a request may take, so that idle connections can pile
up; strangers should meet a reverse proxy first.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from urllib.parse import urlsplit

import uvicorn

from traceanalyzer.errors import InputError
from traceanalyzer.network import is_loopback
from traceanalyzer.server import logs
from traceanalyzer.server.app import create_app
from traceanalyzer.server.folder import claimed
from traceanalyzer.server.queue import Queue
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings

GRACE_S = 30.0
"""How long running requests and analyses may go on after a signal: below the 90 s after which systemd kills."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOK_S = 0.05
# Idle connections are closed by us later than proxies commonly close theirs, or a request could meet a closed one.
_KEEP_ALIVE_S = 75
# More connections than this are answered 503 at once: each costs memory before its request is known.
_MOST_CONNECTIONS = 1000
_log = logging.getLogger("traceanalyzer.server")


def run(settings: Settings, grace_s: float = GRACE_S) -> int:
    """Serve until a signal; returns the exit code, 0 after a gentle end and 1 where waiting was given up.

    Raises:
        InputError: the folder or the port is taken or cannot be used, or everybody could do everything.
    """
    os.umask(0o077)
    ending = _Ending()
    with ending.signals(), claimed(settings.folder), _bound(settings.host, settings.port) as listening:
        logs.configure(sys.stderr)
        services = Services.open(settings)
        services.blobs.tidy()
        refuse_open_doors(settings, services.tokens.any_active())
        queue = Queue(services)
        app = create_app(services, queue)
        config = uvicorn.Config(
            app, loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE_S,
            limit_concurrency=_MOST_CONNECTIONS, timeout_graceful_shutdown=max(1, round(grace_s)),
        )  # fmt: skip
        server = _Server(config, queue, grace_s, url_of(settings, listening), settings)
        ending.server = server
        if not ending.asked:
            queue.start()
            server.run(sockets=[listening])
        services.close()
        _log.info("stopped", extra={"event": "stopped"})
        return 1 if server.force_exit else 0


def refuse_open_doors(settings: Settings, any_token: bool) -> None:
    """Let nobody but this machine in while everybody may do everything.

    Raises:
        InputError: no token exists, and the address or the public name says that others can reach the server.
    """
    if any_token:
        return
    public = urlsplit(settings.public_url).hostname if settings.public_url else None
    for option, host in (("--host", settings.host), ("--public-url", public)):
        if host is not None and not is_loopback(host):
            raise InputError(
                f"{option}: {host} can be reached by others, and no token exists yet",
                f"make one: traceanalyzer token create NAME --folder {settings.folder}",
            )


def url_of(settings: Settings, listening: socket.socket) -> str:
    """Where a person finds the server: its public name, or the address and the port it really has."""
    if settings.public_url:
        return settings.public_url
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket at that address that does not listen yet."""
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host: {host!r} is no address of this machine") from error
    with made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise InputError(f"--port: {where} is in use", "choose another, or 0 for any free one") from error
            raise InputError(f"cannot listen at {where}: {error.strerror}") from error
        yield made


class _Server(uvicorn.Server):
    """uvicorn's server with our signals, which says where it is and lets analyses end while requests do."""

    def __init__(self, config: uvicorn.Config, queue: Queue, grace_s: float, url: str, settings: Settings) -> None:
        super().__init__(config)
        self._queue, self._grace_s, self._url, self._settings = queue, grace_s, url, settings

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `_Ending`, which has them from the first moment on."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _log.info("listening", extra={"event": "listening", "url": self._url, "folder": str(self._settings.folder)})
            if sys.stderr.isatty():
                sys.stderr.write(f"traceanalyzer: {self._url} (Ctrl-C ends it)\n")
            tell_systemd("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        _log.info("stopping", extra={"event": "stopping", "grace_s": self._grace_s})
        tell_systemd("STOPPING=1")
        # A daemon: when waiting is given up, nothing else waits for it either.
        ending = threading.Thread(target=self._queue.stop, args=(self._grace_s,), name="stop-queue", daemon=True)
        ending.start()
        await super().shutdown(sockets)
        while ending.is_alive() and not self.force_exit:
            await asyncio.sleep(_LOOK_S)


class _Ending:
    """What signals do: the first asks the server to end, the second to wait no longer."""

    def __init__(self) -> None:
        self.asked = False
        self.server: _Server | None = None

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle them until the end of the block; afterwards they do what they did before."""
        before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.server is not None:
            self.server.force_exit = self.asked
            self.server.should_exit = True
        self.asked = True


def tell_systemd(state: str) -> None:
    """Say `state` to systemd where it waits for that (`Type=notify`): sd_notify(3); nothing elsewhere."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    address = "\0" + place[1:] if place.startswith("@") else place
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(state.encode(), address)
