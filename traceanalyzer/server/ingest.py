"""Takes a body in: written, hashed and checked piece by piece, then put in place, then acknowledged.

The event loop only reads from the network. Each piece goes to one of a few threads and the loop reads on when it comes
back, so a fast client waits and a hundred slow ones cost a few hundred kilobytes each. To unpack zstd takes megabytes,
so such a body is checked when it has arrived, a few at a time; no client decides how long that takes. Nothing of a body
that is refused, breaks off or is cancelled stays in `incoming/`.

The order of the end: the file is synced, the blob is put in place, the row and its job are committed, the answer is
sent. What could be wrong: between the blob and the row the process may be killed; the blob without a row is swept
later. Only threads of this process are kept from deleting a trace that is just being kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import secrets
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from traceanalyzer.server.access import Caller, rate_key, rates_of, services_of
from traceanalyzer.server.blobs import key_of_trace
from traceanalyzer.server.bodies import gathered, patient
from traceanalyzer.server.inspection import Inspection
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.problems import Problem
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Limits, Settings
from traceanalyzer.server.storing import exclusively
from traceanalyzer.server.text import now_ms
from traceanalyzer.trace.unpack import ZSTD, magic_of

THREADS = 2
"""How many threads write, hash and check bodies: each keeps a core busy while bodies arrive fast."""

_PIECE = 1 << 18
_WAIT_FOR_TURN_S = 60.0
_RETRY_S = "5"
_REDACTED = ("default", "strict")
Result = TypeVar("Result")
Count = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Received:
    """A body that is whole, is what its hash says, and may be stored."""

    path: Path
    sha256: str
    bytes: int
    text_bytes: int
    redaction: str | None


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of an upload; `new` is False where the trace was stored already, with its bytes."""

    sha256: str
    bytes: int
    state: str
    new: bool


class Ingest:
    """Takes bodies in for one application.

    Args:
        services: where they go.
    """

    def __init__(self, services: Services) -> None:
        """Nothing runs yet; threads start with the first body."""
        self._services = services
        self._limits = services.settings.limits
        self._threads = ThreadPoolExecutor(THREADS, "ingest")
        self._turns = asyncio.Semaphore(self._limits.parallel_uploads)
        self._looks = asyncio.Semaphore(THREADS)

    async def receive(
        self, stream: AsyncIterator[bytes], sha256: str | None, labels: Labels, by: str | None, count: Count
    ) -> Kept:
        """Read one body into `incoming/`, check it and keep it.

        Args:
            stream: the body in pieces, as it arrives.
            sha256: what its bytes must hash to, in lower-case hexadecimal; None: whatever they hash to.
            labels: what is said about it.
            by: the id of the token it came with.
            count: told about every piece; may refuse it.

        Raises:
            Problem: 400, 408, 413, 415, 422, 429, 503 or 507; nothing is left behind.
        """
        await self._turn()
        body = _Body(self._services.settings, sha256)
        try:
            await self._run(body.open)
            async for piece in gathered(patient(stream, self._limits)):
                count(len(piece))
                await self._run(body.write, piece)
            await self._run(body.arrived)
            if not body.is_checked_late:
                return await self._kept(body, labels, by)
            async with self._looks:
                while await self._run(body.look):
                    pass
                return await self._kept(body, labels, by)
        finally:
            body.drop()
            self._turns.release()

    async def _kept(self, body: _Body, labels: Labels, by: str | None) -> Kept:
        received = await self._run(body.finish)
        keeping = self._run(keep, self._services, received, labels, by)
        body.is_handed_on = True
        # A request that is cancelled from here on changes nothing: the thread ends what it began.
        return await asyncio.shield(keeping)

    async def _turn(self) -> None:
        try:
            async with asyncio.timeout(_WAIT_FOR_TURN_S):
                await self._turns.acquire()
        except TimeoutError as error:
            raise Problem(503, "too many uploads at once; try again", {"Retry-After": _RETRY_S}) from error

    def _run(self, function: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


class _Body:
    """One body on its way: a file in `incoming/` for its owner only. All but `drop` is called in threads."""

    def __init__(self, settings: Settings, sha256: str | None) -> None:
        self._settings = settings
        self._sha256 = sha256
        self._path = settings.incoming / f"{secrets.token_hex(16)}.part"
        self._hash = hashlib.sha256()
        self._inspection = Inspection(settings.limits)
        self._file: io.FileIO | None = None
        self._written = self._looked_at = 0
        self._lock = threading.Lock()
        self._dropped = False
        self.is_handed_on = False
        self.is_checked_late = False

    def open(self) -> None:
        """Make the file."""
        with self._held():
            refuse_full_disk(self._settings)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = io.FileIO(os.open(self._path, flags, 0o600), "r+")

    def write(self, piece: bytes) -> None:
        """Check the piece first: what is refused is not written. Of zstd only the size is checked yet."""
        with self._held():
            if self._dropped or self._file is None:
                return
            if not self._written:
                self.is_checked_late = magic_of(piece) == ZSTD
            if self.is_checked_late:
                _refuse_size(self._written + len(piece), self._settings.limits)
            else:
                self._inspection.feed(piece)
            self._hash.update(piece)
            refuse_full_disk(self._settings, len(piece))
            rest = memoryview(piece)
            while rest:
                rest = rest[self._file.write(rest) :]
            self._written += len(piece)

    def arrived(self) -> None:
        """Refuse bytes that are not the ones that were sent, before anything else is said about them."""
        if self._sha256 not in (None, self._hash.hexdigest()):
            raise Problem(400, "the body does not have this SHA-256; it was changed or cut on its way")

    def look(self) -> bool:
        """Check the next piece of what was written; False: there is none."""
        with self._held():
            if self._dropped or self._file is None:
                return False
            piece = os.pread(self._file.fileno(), _PIECE, self._looked_at)
            self._looked_at += len(piece)
            self._inspection.feed(piece)
            return bool(piece)

    def finish(self) -> Received:
        """Check what the whole says, and let the disk have it."""
        with self._held():
            self._inspection.finish()
            if self._file is not None:
                os.fsync(self._file.fileno())
            seen = self._inspection
            if self._settings.redacted_only and seen.redaction not in _REDACTED:
                raise Problem(422, "this server takes redacted traces only: send it with `traceanalyzer upload`")
            return Received(self._path, self._hash.hexdigest(), seen.bytes, seen.text_bytes, seen.redaction)

    def drop(self) -> None:
        """Close the file, and remove it unless it is handed on; a thread that still works on it does so itself."""
        self._dropped = True
        if self._lock.acquire(blocking=False):
            try:
                self._remove()
            finally:
                self._lock.release()
        elif not self.is_handed_on:  # the thread may have looked a moment before
            self._path.unlink(missing_ok=True)

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                if self._dropped:
                    self._remove()

    def _remove(self) -> None:
        if self._file is not None:
            self._file.close()
        if not self.is_handed_on:
            self._path.unlink(missing_ok=True)


async def accept(
    request: Request, stream: AsyncIterator[bytes], sha256: str | None, labels: Labels, by: Caller
) -> Kept:
    """Take one upload in, whoever wraps it: counted, limited, noted, and its analysis started.

    A trace that is stored already gets the new labels, and its body is not read.

    Raises:
        Problem: see `Ingest.receive`.
    """
    services, state = services_of(request), request.app.state
    token = by.token.id if by.token else None
    key = rate_key(by, request)
    try:
        kept = await run_in_threadpool(relabel, services, sha256, labels, token) if sha256 else None
        if kept is None:
            declared = request.headers.get("content-length", "")
            if sha256 and declared.isdecimal():
                _refuse_size(int(declared), services.settings.limits)
            kept = await state.ingest.receive(stream, sha256, labels, token, partial(rates_of(request).uploaded, key))
    except BaseException as error:
        state.metrics.uploaded("refused")
        if isinstance(error, Problem) and error.status == 507 and state.queue is not None:
            state.queue.short_of_space()
        raise
    state.metrics.uploaded("stored" if kept.new else "known", kept.bytes if kept.new else 0)
    await run_in_threadpool(services.audit.note, by.name, "upload", kept.sha256, "stored" if kept.new else "known")
    if kept.new and state.queue is not None:
        state.queue.wake()
    return kept


def _refuse_size(size: int, limits: Limits) -> None:
    if size > limits.max_body_bytes:
        raise Problem(413, f"a trace may have {limits.max_body_bytes} bytes")


def keep(services: Services, received: Received, labels: Labels, by: str | None) -> Kept:
    """Put a body in place and commit its row and job, both durably. The file in `incoming/` is gone afterwards.

    Raises:
        OSError, TraceAnalyzerError: the disk is full, or the database is busy; nothing is left behind.
    """
    sha256 = received.sha256
    key = key_of_trace(sha256)
    try:
        with exclusively(sha256):
            missing = services.traces.get(sha256) is None or services.blobs.size(key) is None
            try:
                if missing:
                    services.blobs.put_file(key, received.path)
                new = services.traces.add(
                    sha256, received.bytes, received.text_bytes, labels, by, now_ms(), received.redaction
                )
                if missing and not new:  # its bytes were lost; its job may have ended without them
                    services.jobs.requeue(sha256, "upload")
            except BaseException:
                if missing:
                    with suppress(OSError):
                        services.blobs.delete(key)
                raise
            return Kept(sha256, received.bytes, _state(services, sha256), missing)
    finally:
        received.path.unlink(missing_ok=True)


def relabel(services: Services, sha256: str, labels: Labels, by: str | None) -> Kept | None:
    """Give a trace that is stored already new labels; None: it is not stored, and nothing was done."""
    with exclusively(sha256):
        row = services.traces.get(sha256)
        if row is None or services.blobs.size(key_of_trace(sha256)) is None:
            return None
        services.traces.add(sha256, row.bytes, row.text_bytes, labels, by, now_ms())
        return Kept(sha256, row.bytes, row.state, False)


def _state(services: Services, sha256: str) -> str:
    row = services.traces.get(sha256)
    return row.state if row else "queued"


def refuse_full_disk(settings: Settings, wanted: int = 0) -> None:
    """Raise the 507 where less than the minimum would stay free."""
    if shutil.disk_usage(settings.incoming).free - wanted < settings.limits.min_free_bytes:
        raise Problem(507, "the server's disk is full; nothing was stored")
