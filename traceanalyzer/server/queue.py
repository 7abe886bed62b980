"""The queue: worker threads that run jobs, a thread that looks for some, and one that keeps the store tidy.

huey hands the jobs to the threads; its file says only when to look, the jobs table is the truth. Every half minute the
table is looked through, so that a lost, locked or full queue file loses nothing, and a job that is queued twice is
taken once. What could be wrong: a job waits for at most that half minute when the queue file cannot be written.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from huey import Huey, MemoryHuey, SqliteHuey  # type: ignore[import-untyped]
from huey.consumer import Consumer  # type: ignore[import-untyped]
from huey.registry import Message  # type: ignore[import-untyped]
from huey.serializer import Serializer  # type: ignore[import-untyped]
from sqlalchemy.exc import SQLAlchemyError

from traceanalyzer import __version__
from traceanalyzer.errors import InputError, TraceAnalyzerError
from traceanalyzer.server import sandbox, worker
from traceanalyzer.server.database.models import Job
from traceanalyzer.server.jobs_table import is_due
from traceanalyzer.server.recovery import Stray, recover
from traceanalyzer.server.retention import Sweeper
from traceanalyzer.server.services import Services
from traceanalyzer.server.text import now_ms

FILE = "queue.sqlite3"
LOOK_S = 30.0
"""How often the jobs table is looked through."""

_log = logging.getLogger("traceanalyzer.server")
_RENEWING = "version"
_RENEWED_AT_ONCE = 4
_FIRST, _LATER = 10, 0
_POLL_S = 0.5
_PAUSE_S = 0.1
_LEAST_BETWEEN_SWEEPS_S = 60.0
_KILL_S = 10.0
_TROUBLE = (OSError, sqlite3.Error, SQLAlchemyError, TraceAnalyzerError)


class Queue:
    """The jobs of one server, from `start` to `stop`."""

    def __init__(self, services: Services) -> None:
        """No thread runs yet, and the queue's file is not opened."""
        self._services = services
        self._stopping = threading.Event()
        self._kill = threading.Event()
        self._look = threading.Event()
        self._tidy = threading.Event()
        self._lock = threading.Lock()
        self._queued: set[int] = set()
        self._running: set[int] = set()
        self._given_up: set[str] = set()
        self._unconfined: dict[str, str] = {}
        self._tasks: _Tasks | None = None
        self._consumer: _Consumer | None = None
        self._clocks = [
            threading.Thread(target=target, name=target.__name__.strip("_"), daemon=True)
            for target in (self._keep_looking, self._keep_tidy)
        ]

    def start(self) -> None:
        """Put right what a killed server left, and start the threads.

        Raises:
            OSError: a folder cannot be emptied.
            TraceAnalyzerError: the database is busy or full.
        """
        recover(self._services)
        logging.getLogger("huey").setLevel(logging.WARNING)
        # A queue that cannot be read is told by whoever cannot write it, and not twice a second.
        logging.getLogger("huey.consumer").setLevel(logging.CRITICAL)
        self._tasks = _Tasks(_opened(self._services.settings.folder / FILE), self._run)
        self._consumer = _Consumer(
            self._tasks.huey,
            workers=self._services.settings.workers,
            periodic=False,
            initial_delay=_POLL_S / 5,
            max_delay=_POLL_S,
            check_worker_health=False,
        )
        self._consumer.start()
        for clock in self._clocks:
            clock.start()

    def stop(self, grace_s: float) -> None:
        """Take no more jobs; those that run get `grace_s` seconds, then they are killed and queued again."""
        self._stopping.set()
        self._look.set()
        self._tidy.set()
        if self._consumer is None:
            return
        self._consumer.stop_flag.set()
        threads = [thread for _, thread in self._consumer.worker_threads]
        _join(threads, grace_s)
        self._kill.set()
        _join([*threads, *self._clocks], _KILL_S)

    def wake(self) -> None:
        """Say that a job is waiting."""
        self._look.set()

    def short_of_space(self) -> None:
        """Say that an upload found no room: what may be deleted is looked for now, at most once a minute."""
        self._tidy.set()

    @property
    def workers(self) -> int:
        """How many worker threads are alive."""
        return 0 if self._consumer is None else sum(thread.is_alive() for _, thread in self._consumer.worker_threads)

    @property
    def unconfined(self) -> dict[str, str]:
        """What this machine lets an analysis child do although it should not: `network`, `files`, `processes`; why."""
        return dict(self._unconfined)

    def refill(self) -> None:
        """Look through the jobs table: queue what is due, give back what nobody runs, renew old reports.

        Raises:
            TraceAnalyzerError, SQLAlchemyError: the database cannot be read.
        """
        now = now_ms()
        jobs = self._services.jobs.unfinished()
        if self._tasks is not None and not self._tasks.waiting():
            with self._lock:
                self._queued.clear()  # all has been taken, or the file was lost
        for job in jobs:
            if job.state == "running":
                self._give_back(job, now)
            elif is_due(job.not_before, now):
                self._enqueue(job.id, _LATER if job.reason == _RENEWING else _FIRST)
        self._renew(sum(job.reason == _RENEWING for job in jobs))

    def _keep_looking(self) -> None:
        """A thread: look at once, and then every half minute or when it is asked for."""
        while not self._stopping.is_set():
            self._look.clear()
            _attempted("the jobs table cannot be read", self.refill)
            self._stopping.wait(_PAUSE_S)
            self._look.wait(LOOK_S)

    def _keep_tidy(self) -> None:
        """A thread: what may take long and hurries nobody."""
        _attempted("an analysis child cannot be started", self._check)
        sweeper, stray = Sweeper(self._services), Stray(self._services)
        while not self._stopping.is_set():
            _attempted("the retention cannot be kept", lambda: sweeper.sweep(now_ms()))
            _attempted("the store cannot be looked through", stray.look)
            self._tidy.wait(self._services.settings.retention.sweep_s)
            self._tidy.clear()
            self._stopping.wait(_LEAST_BETWEEN_SWEEPS_S)

    def _check(self) -> None:
        with tempfile.TemporaryDirectory(dir=self._services.settings.work) as folder:
            found = sandbox.check(Path(folder))
        self._unconfined = {what: how for what, how in found.items() if how != "blocked"}
        for what, how in self._unconfined.items():
            _log.warning("an analysis child is not confined", extra={"event": "unconfined", "what": what, "how": how})

    def _give_back(self, job: Job, now: int) -> None:
        """A job that the table says is running, and that no thread of ours runs."""
        with self._lock:
            ours = job.id in self._running
        if not ours:
            self._services.jobs.failed(job.id, "the server lost this analysis", now, now)

    def _renew(self, waiting: int) -> None:
        """Queue a few traces whose report an older analyser made."""
        room = _RENEWED_AT_ONCE * self._services.settings.workers - waiting
        if room <= 0:
            return
        with self._lock:
            given_up = set(self._given_up)
        outdated = self._services.jobs.outdated(__version__, limit=room + len(given_up))
        for sha256 in [sha256 for sha256 in outdated if sha256 not in given_up][:room]:
            with suppress(InputError):  # deleted meanwhile
                self._enqueue(self._services.jobs.requeue(sha256, _RENEWING).id, _LATER)

    def _run(self, job_id: int) -> None:
        """One task of a worker thread."""
        with self._lock:
            self._queued.discard(job_id)
            if self._stopping.is_set() or job_id in self._running:
                return
            self._running.add(job_id)
        try:
            _attempted("a job could not be run", lambda: self._work(job_id))
        finally:
            with self._lock:
                self._running.discard(job_id)

    def _work(self, job_id: int) -> None:
        """Run a job; do not renew the report of a trace that cannot be analysed, or it would be tried for ever."""
        if worker.run(job_id, self._services, self._kill) == "dead":
            job = self._services.jobs.get(job_id)
            if job is not None:
                with self._lock:
                    self._given_up.add(job.sha256)

    def _enqueue(self, job_id: int, priority: int) -> bool:
        """Queue a job that is not queued; False: the queue cannot be written."""
        with self._lock:
            if self._tasks is None or self._stopping.is_set() or job_id in self._queued | self._running:
                return True
            self._queued.add(job_id)
        if _attempted("the queue cannot be written", lambda: self._put(job_id, priority)):
            return True
        with self._lock:
            self._queued.discard(job_id)
        return False

    def _put(self, job_id: int, priority: int) -> None:
        if self._tasks is not None:
            self._tasks.put(job_id, priority)


def _opened(file: Path) -> Huey:
    """huey over its file, a new one where it is damaged: it holds nothing that the jobs table does not hold.

    On a full disk, where no file can be made, in memory: what is stored can still be read and deleted.
    """
    for _ in range(2):
        try:
            huey = SqliteHuey("analyses", filename=str(file), results=False, serializer=_AsJson())
            huey.storage.flush_all()  # what an earlier server queued is in the table
            return huey
        except sqlite3.Error as error:
            _log.warning("the queue's file is not usable", extra={"event": "trouble", "error": str(error)})
            for suffix in ("", "-wal", "-shm"):
                file.with_name(file.name + suffix).unlink(missing_ok=True)
    return MemoryHuey("analyses", results=False, serializer=_AsJson())


class _Tasks:
    """huey's queue, and the one task that is in it."""

    def __init__(self, huey: Huey, run: Callable[[int], None]) -> None:
        self.huey = huey
        self._analyse = self.huey.task(name="analyse")(run)

    def put(self, job_id: int, priority: int) -> None:
        self.huey.enqueue(self._analyse.task_class((job_id,), {}, priority=priority))

    def waiting(self) -> bool:
        return bool(self.huey.pending_count())


class _Consumer(Consumer):  # type: ignore[misc] # huey has no types
    """huey's consumer as threads of a program that handles its signals itself."""

    def _set_signal_handlers(self) -> None:
        return


class _AsJson(Serializer):  # type: ignore[misc] # huey has no types
    """Tasks as JSON: whoever could write to the file could otherwise run code by a pickle."""

    def _serialize(self, data: Any) -> bytes:
        return json.dumps([data.id, data.name, list(data.args), data.priority]).encode()

    def _deserialize(self, data: bytes) -> Message:
        id, name, arguments, priority = json.loads(data)
        return Message(id, name, None, 0, 0, priority, tuple(arguments), {})


def _attempted(trouble: str, action: Callable[[], object]) -> bool:
    """Do something that the disk or the database may refuse; False: it did, the log says why, and it comes again."""
    try:
        action()
    except _TROUBLE as error:
        _log.warning(trouble, extra={"event": "trouble", "error": f"{type(error).__name__}: {error}"})
        return False
    return True


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait for all of them, together at most so long."""
    until = time.monotonic() + seconds
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, until - time.monotonic()))
