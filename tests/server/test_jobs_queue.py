"""The queue: every job runs once, whatever happens to the queue's file, the threads and the process."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from obstore.exceptions import GenericError

from tests.server.serving import until
from tests.server.test_jobs_worker import SAMPLE, store
from traceanalyzer.server import child, queue, sandbox, worker
from traceanalyzer.server.blobs import REPORTS, key_of_report
from traceanalyzer.server.queue import Queue
from traceanalyzer.server.sandbox import Outcome
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import AnalysisLimits, Settings
from traceanalyzer.server.text import now_ms


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    opened = Services.open(Settings(folder=tmp_path / "server", workers=2))
    yield opened
    opened.close()


@pytest.fixture
def start(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Queue]]:
    started: list[Queue] = []
    monkeypatch.setattr(queue, "LOOK_S", 0.2)
    monkeypatch.setattr(sandbox, "check", lambda _: {})

    def do() -> Queue:
        started.append(Queue(services))
        started[-1].start()
        return started[-1]

    yield do
    for one in started:
        one.stop(5)


Run = Callable[[str], Outcome]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], dict[str, Run]]:
    """How often each trace was analysed, and what is done instead of a quick good end."""
    count: Counter[str] = Counter()
    instead: dict[str, Run] = {}

    def run_child(
        argv: tuple[str, ...], limits: AnalysisLimits, folder: Path, stop: threading.Event | None = None
    ) -> Outcome:
        text = Path(argv[1]).read_text()
        count[text] += 1
        if text in instead:
            return instead[text](text)
        for kind in REPORTS:
            (folder / kind).write_text(f"{kind} {worker.__version__}")
        (folder / child.SUMMARY).write_text(json.dumps({"headline": text}))
        return Outcome(0, "done", "", 1, 0.01)

    monkeypatch.setattr(sandbox, "run_child", run_child)
    return count, instead


Children = tuple[Counter[str], dict[str, Run]]


def test_every_job_runs_once(services: Services, start: Callable[[], Queue], children: Children) -> None:
    before = [store(services, f"before {n}".encode()) for n in range(10)]
    running = start()
    after = [store(services, f"after {n}".encode()) for n in range(10)]
    for _ in after:
        running.wake()
    until(lambda: services.traces.counts()["analysed"] == 20)
    assert set(children[0].values()) == {1}
    until(lambda: services.jobs.counts()["done"] == 20)
    assert {services.jobs.get(job.id).attempts for job in before + after} == {1}  # type: ignore[union-attr]
    assert running.workers == 2


def test_lost_locked_or_damaged_queue_file_loses_nothing(
    services: Services, start: Callable[[], Queue], children: Children
) -> None:
    file = services.settings.folder / queue.FILE
    file.write_bytes(b"no database" * 1000)
    running = start()
    store(services, b"first")
    running.wake()
    until(lambda: services.traces.counts()["analysed"] == 1)
    locked = sqlite3.connect(file, isolation_level=None)
    locked.execute("BEGIN EXCLUSIVE")
    store(services, b"second")
    running.wake()
    time.sleep(0.5)
    locked.execute("DELETE FROM task")
    locked.execute("COMMIT")
    locked.close()
    until(lambda: services.traces.counts()["analysed"] == 2)
    for path in services.settings.folder.glob(queue.FILE + "*"):
        path.unlink()
    running.stop(5)
    store(services, b"third")
    start()
    until(lambda: services.traces.counts()["analysed"] == 3)
    assert set(children[0].values()) == {1}


def test_queue_without_a_file_runs_jobs_too(
    services: Services, start: Callable[[], Queue], children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(queue, "SqliteHuey", full)
    running = start()
    for n in range(3):
        store(services, f"{n}".encode())
        running.wake()
    until(lambda: services.traces.counts()["analysed"] == 3)
    assert set(children[0].values()) == {1}


def test_a_pickle_in_the_queue_file_is_not_run(
    services: Services, start: Callable[[], Queue], children: Children, tmp_path: Path
) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    running = start()
    with sqlite3.connect(services.settings.folder / queue.FILE) as file:
        file.execute("INSERT INTO task (queue, data, priority) VALUES ('analyses', ?, 99)", (pickle.dumps(Payload()),))
    file.close()
    store(services, b"1")
    running.wake()
    until(lambda: services.traces.counts()["analysed"] == 1)
    assert not (tmp_path / "ran").exists()


def test_failure_waits_and_a_crash_of_our_own_is_no_endless_loop(
    services: Services, start: Callable[[], Queue], children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, instead = children
    monkeypatch.setattr(worker, "_FIRST_WAIT_S", 0.05)
    instead["bad"] = lambda _: Outcome(-11, "killed", "", 1, 0.01)

    def bug(_: str) -> Outcome:
        raise RuntimeError("a mistake of ours")

    instead["bug"] = bug
    jobs = [store(services, b"bad"), store(services, b"bug"), store(services, b"good")]
    start()
    until(lambda: services.traces.counts()["failed"] == 2)
    assert (count["bad"], count["bug"], count["good"]) == (3, 3, 1)
    assert [services.jobs.get(job.id).state for job in jobs] == ["dead", "dead", "done"]  # type: ignore[union-attr]


def test_new_version_renews_reports_in_the_background(
    services: Services, start: Callable[[], Queue], children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, instead = children
    jobs = [store(services, f"{n}".encode()) for n in range(6)]
    first = start()
    until(lambda: services.traces.counts()["analysed"] == 6)
    first.stop(5)
    for module in (queue, worker):
        monkeypatch.setattr(module, "__version__", "9.9")
    monkeypatch.setattr(worker, "_FIRST_WAIT_S", 0.0)
    instead["3"] = lambda _: Outcome(2, "refused", "no longer read", 1, 0.01)
    start()

    def versions() -> list[str | None]:
        return [services.traces.get(job.sha256).analyser for job in jobs]  # type: ignore[union-attr]

    until(lambda: versions().count("9.9") == 5)
    until(lambda: services.jobs.counts()["dead"] == 1)
    time.sleep(0.7)  # some more looks: what failed is not tried for ever
    assert [count[f"{n}"] for n in range(6)] == [2] * 6
    assert services.traces.counts()["analysed"] == 6
    old = b"".join(services.blobs.open(key_of_report(jobs[3].sha256, "page.html"))).decode()
    new = b"".join(services.blobs.open(key_of_report(jobs[4].sha256, "page.html"))).decode()
    assert (old.endswith("9.9"), new.endswith("9.9")) == (False, True)
    assert services.traces.get(jobs[3].sha256).headline == "3"  # type: ignore[union-attr]


def test_uploads_come_before_renewals(
    services: Services, start: Callable[[], Queue], children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        store(services, f"old {n}".encode())
    first = start()
    until(lambda: services.traces.counts()["analysed"] == 3)
    first.stop(5)
    order: list[str] = []

    def note(text: str) -> Outcome:
        order.append(text)
        return Outcome(2, "refused", "", 1, 0.01)

    children[1].update(dict.fromkeys(("old 0", "old 1", "old 2", "new 0", "new 1"), note))
    monkeypatch.setattr(queue, "__version__", "9.9")
    for n in range(3):
        services.jobs.requeue(worker.hashlib.sha256(f"old {n}".encode()).hexdigest(), "version")
    for n in range(2):
        store(services, f"new {n}".encode())
    # Queue everything first: the threads start when all of it is waiting.
    waiting = Queue(services)
    monkeypatch.setattr(queue._Consumer, "start", lambda _: None)
    waiting.start()
    until(lambda: waiting._tasks is not None and waiting._tasks.huey.pending_count() == 5)
    consumer = waiting._consumer
    assert consumer is not None
    consumer.worker_threads[0][1].start()
    until(lambda: len(order) == 5)
    waiting.stop(5)
    assert set(order[:2]) == {"new 0", "new 1"}


def test_stop_gives_running_children_the_grace_and_then_queues_them_again(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = store(services, SAMPLE.read_bytes())
    real, started = sandbox.run_child, threading.Event()

    def sleeping(
        argv: tuple[str, ...], limits: AnalysisLimits, folder: Path, stop: threading.Event | None = None
    ) -> Outcome:
        (folder / "sleep.py").write_text("import time\ntime.sleep(300)")
        started.set()
        return real(("sleep.py",), limits, folder, stop)

    monkeypatch.setattr(sandbox, "run_child", sleeping)
    monkeypatch.setattr(sandbox, "check", lambda _: {})
    running = Queue(services)
    running.start()
    assert started.wait(30)
    before = time.monotonic()
    running.stop(1.0)
    assert time.monotonic() - before >= 1.0
    back = services.jobs.get(job.id)
    assert back is not None
    assert (back.state, back.attempts) == ("queued", 0)
    assert not [p for p in psutil.Process().children(recursive=True) if "sleep.py" in " ".join(p.cmdline())]
    running.wake()
    running.wake()
    assert services.jobs.get(job.id).state == "queued"  # type: ignore[union-attr]


def test_children_that_are_not_confined_are_told(
    services: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = {"network": "blocked", "files": "Landlock is not there", "processes": "blocked"}
    monkeypatch.setattr(sandbox, "check", lambda _folder: found)
    running = Queue(services)
    running.start()
    try:
        until(lambda: running.unconfined == {"files": "Landlock is not there"})
    finally:
        running.stop(5)
    (record,) = (one for one in caplog.records if getattr(one, "event", "") == "unconfined")
    assert (record.what, record.how) == ("files", "Landlock is not there")  # type: ignore[attr-defined]


def test_children_are_confined_on_this_machine(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[dict[str, str]] = []
    check = sandbox.check
    monkeypatch.setattr(sandbox, "check", lambda folder: checked.append(check(folder)) or checked[-1])
    running = Queue(services)
    running.start()
    try:
        until(lambda: bool(checked))
        assert set(checked[0].values()) == {"blocked"} and running.unconfined == {}
    finally:
        running.stop(5)


def test_a_store_that_fails_costs_one_look_and_not_the_thread(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """obstore's errors are no `OSError` by themselves."""
    monkeypatch.setattr(queue, "_LEAST_BETWEEN_SWEEPS_S", 0.01)
    looks: list[int] = []

    def fail(*_: object) -> Iterator[object]:
        looks.append(1)
        raise GenericError("a folder that cannot be read")
        yield

    monkeypatch.setattr("obstore.list", fail)
    running = Queue(services)
    running.start()
    try:
        until(lambda: len(looks) == 1)
        running.short_of_space()
        until(lambda: len(looks) == 2)
    finally:
        running.stop(5)


SERVER = """
import pathlib, sys, time
from traceanalyzer.server.queue import Queue
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings
queue = Queue(Services.open(Settings(folder=pathlib.Path(sys.argv[1]))))
queue.start()
time.sleep(300)
"""


def test_killed_server_analyses_again_and_leaves_no_child(services: Services, start: Callable[[], Queue]) -> None:
    job = store(services, SAMPLE.read_bytes())
    (services.settings.incoming / "half").write_bytes(b"half a body")
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(services.settings.folder)])
    try:
        until(lambda: services.jobs.get(job.id).state == "running")  # type: ignore[union-attr]
        found = until(lambda: psutil.Process(server.pid).children())
        assert not (services.settings.incoming / "half").exists()
        (services.settings.incoming / "half").write_bytes(b"half a body")
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait(30)
    until(lambda: not any(process.is_running() for process in found))
    left = services.jobs.get(job.id)
    assert left is not None
    assert (left.state, left.attempts) == ("running", 1)
    start()
    until(lambda: services.jobs.get(job.id).state == "done")  # type: ignore[union-attr]
    again, row = services.jobs.get(job.id), services.traces.get(job.sha256)
    assert again is not None
    assert row is not None
    assert (again.attempts, row.state, len(services.jobs.of(job.sha256))) == (2, "analysed", 1)
    assert all(services.blobs.size(key_of_report(job.sha256, kind)) for kind in REPORTS)
    assert list(services.settings.work.iterdir()) == []
    assert list(services.settings.incoming.iterdir()) == []


def test_busy_database_delays_a_job_and_loses_none(
    services: Services, start: Callable[[], Queue], children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    from traceanalyzer.server.database import engine

    failures = iter([True, True])
    real = type(services.jobs).take

    def take(*arguments: object) -> object:
        if next(failures, False):
            raise engine.Busy("the database is busy")
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(type(services.jobs), "take", take)
    store(services, b"1")
    start()
    until(lambda: services.traces.counts()["analysed"] == 1)
    assert now_ms() > 0
