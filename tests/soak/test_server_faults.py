"""What the server acknowledged is there afterwards, whatever happens meanwhile.

Real processes, real SIGKILL, a really full disk. Acknowledged and found are counted and printed.

Every body is told apart by its number, so the tests keep no copy of what they sent. The clock jumps in the server's
process alone: its `time` adds an offset that a file holds. What could be wrong: SIGKILL leaves what was written in the
kernel's cache; that it would also outlast a power cut follows from the syncs, which `test_core_blobs` looks for.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import select

from tests.conftest import require
from tests.server.serving import SLOW_S, Serving, make_token, serving, sha256, trace_gz, trace_text, until
from traceanalyzer.server.blobs import key_of_trace
from traceanalyzer.server.database import migrate
from traceanalyzer.server.database.models import Trace
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings

pytestmark = pytest.mark.soak

KILLS = int(os.environ.get("SOAK_KILLS", "30"))
SENDERS = 8
DAY_S = 86_400
_JUMPING = """
import time
_real_time, _real_time_ns = time.time, time.time_ns
def _offset():
    try:
        with open(JUMP_FILE) as file:
            return int(file.read() or 0)
    except OSError:
        return 0
time.time = lambda: _real_time() + _offset()
time.time_ns = lambda: _real_time_ns() + _offset() * 1_000_000_000
"""


@functools.cache
def _rest(events: int) -> bytes:
    """Everything after the opening brace of a trace, compressed."""
    return gzip.compress(trace_text(events, events)[1:], mtime=0)


_SIZES = (200, 4_000, 40_000)


def body_of(number: int) -> bytes:
    """A trace that no other number gives: 5 kB, 100 kB or 1 MB, in two gzip members."""
    first = gzip.compress(f'{{"traceName": "{number}",'.encode(), mtime=0)
    return first + _rest(_SIZES[number % 3])


@pytest.fixture(scope="module", autouse=True)
def _made() -> None:
    """What the senders send is ready before the first of them begins."""
    for events in _SIZES:
        _rest(events)


class Sending:
    """Sends numbered bodies from several threads until it is told to stop, and remembers what was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}
        self.unanswered: set[int] = set()
        self.statuses: dict[int, int] = {}
        self.next = 0
        self.begun = 0
        self._lock = threading.Lock()
        self._over = threading.Event()

    @contextmanager
    def to(self, server: Serving, senders: int = SENDERS) -> Iterator[None]:
        """Send until the end of the block."""
        self._over.clear()
        with ThreadPoolExecutor(senders) as pool:
            running = [pool.submit(self._send, server.url) for _ in range(senders)]
            try:
                yield
            finally:
                self._over.set()
            for one in running:
                one.result(SLOW_S)

    def _take(self) -> int:
        """A new number, or one that got no answer before: sending it again must be harmless."""
        with self._lock:
            self.begun += 1
            if self.unanswered and random.random() < 0.3:
                return self.unanswered.pop()
            self.next += 1
            return self.next

    def _send(self, url: str) -> None:
        with httpx2.Client(base_url=url, trust_env=False, verify=False, timeout=30) as client:
            while not self._over.is_set():
                number = self._take()
                body = body_of(number)
                try:
                    answer = client.put(f"/api/v1/traces/{sha256(body)}", content=_slowly(body, number))
                except httpx2.HTTPError:
                    with self._lock:
                        self.unanswered.add(number)
                    continue
                with self._lock:
                    self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
                    if answer.status_code in (200, 201):
                        self.acknowledged[number] = answer.status_code
                    else:
                        self.unanswered.add(number)


def _slowly(body: bytes, number: int) -> Iterator[bytes]:
    """In pieces, every fourth body with pauses, so that a kill meets bodies in every state."""
    pause = 0.03 if number % 4 == 0 else 0.0
    size = max(1, len(body) // 6)
    for begin in range(0, len(body), size):
        yield body[begin : begin + size]
        time.sleep(pause)


def account(folder: Path, numbers: dict[int, int], what: str) -> None:
    """Compare what was acknowledged with what a stopped server holds, read past its own reading code."""
    services = Services.open(Settings(folder=folder))
    with services.database.reading() as session:
        rows = dict(session.execute(select(Trace.sha256, Trace.bytes)).all())
    found = torn = 0
    for digest, size in rows.items():
        path = folder / "blobs" / key_of_trace(digest)
        torn += not path.is_file() or path.stat().st_size != size or sha256(path.read_bytes()) != digest
    for number in numbers:
        body = body_of(number)
        digest = sha256(body)
        found += digest in rows and (folder / "blobs" / key_of_trace(digest)).read_bytes() == body
    stored = {path.name for path in (folder / "blobs" / "traces").rglob("*") if path.is_file()}
    services.close()
    with closing(sqlite3.connect(folder / "server.sqlite3")) as connection:
        whole = connection.execute("PRAGMA integrity_check").fetchone()[0]
    print(
        f"\n{what}: acknowledged {len(numbers)}, found {found}, listed {len(rows)}, of them torn {torn}; "
        f"blobs without a row {len(stored - set(rows))}, database {whole}"
    )
    assert found == len(numbers) > 0
    assert torn == 0
    assert whole == "ok"


def nothing_is_left(folder: Path) -> bool:
    return not list((folder / "incoming").iterdir()) and not list((folder / "work").iterdir())


def test_killed_during_uploads(tmp_path: Path) -> None:
    folder, sending, draw = tmp_path / "server", Sending(), random.Random(5)
    for _ in range(KILLS):
        with serving(folder, "--workers", "0") as server:
            assert not list((folder / "incoming").iterdir())  # what the kill before left is gone
            begun = sending.begun
            with sending.to(server):
                until(lambda begun=begun: sending.begun > begun, 30, 0.01)
                time.sleep(draw.uniform(0.0, 2.0))
                server.kill()
    with serving(folder, "--workers", "0") as server:
        until(lambda: nothing_is_left(folder), 30)  # at its start it tries out the confinement in work/
        for number in random.Random(6).sample(sorted(sending.acknowledged), min(40, len(sending.acknowledged))):
            body = body_of(number)
            assert server.ask("GET", f"/api/v1/traces/{sha256(body)}").content == body
            again = server.put(body)
            assert (again.status_code, again.json()["bytes"]) == (200, len(body))
        assert server.end() == 0
    print(f"\n{KILLS} kills, answers {sending.statuses}, without an answer {len(sending.unanswered)}", end="")
    assert set(sending.statuses) <= {200, 201, 429, 503}
    account(folder, sending.acknowledged, "killed during uploads")


def test_killed_during_analyses(tmp_path: Path) -> None:
    folder, draw = tmp_path / "server", random.Random(7)
    numbers = dict.fromkeys((3, 4, 6, 7), 201)  # none of the largest
    orphans: list[psutil.Process] = []
    for round_ in range(5):
        with serving(folder, "--workers", "2") as server:
            if round_ == 0:
                assert [server.put(body_of(number)).status_code for number in numbers] == [201] * len(numbers)
            time.sleep(draw.uniform(0.3, 4.0))
            orphans += psutil.Process(server.process.pid).children(recursive=True)
            server.kill()
    until(lambda: not [child for child in orphans if child.is_running()], 15)
    with serving(folder, "--workers", "2") as server:
        digests = [sha256(body_of(number)) for number in numbers]
        given_up = 0
        for digest in digests:
            until(lambda digest=digest: server.state(digest) in ("analysed", "failed"), 120, 0.5)
            if server.state(digest) == "failed":  # it seemed to end the server three times; a person tries again
                given_up += 1
                assert server.ask("POST", f"/t/{digest}/analyse").status_code in (200, 303)
                until(lambda digest=digest: server.state(digest) == "analysed", 120, 0.5)
        for digest in digests:
            page = server.ask("GET", f"/api/v1/traces/{digest}/report")
            assert page.status_code == 200 and page.text.rstrip().endswith("</html>")
        until(lambda: nothing_is_left(folder), 10)
        assert server.end() == 0
    print(
        f"\n{len(orphans)} children, none outlived its server; {given_up} traces were given up until asked for again",
        end="",
    )
    account(folder, numbers, "killed during analyses")


_MIGRATING = """
import json, os, sqlite3, sys
from pathlib import Path
from sqlalchemy import event
from traceanalyzer.server.database import engine, migrate
from traceanalyzer.server.settings import Settings

pattern, migrations, *places = sys.argv[1:]
if migrations:
    migrate.FOLDER = Path(migrations)

def upgrade(folder, last):
    done, database = 0, engine.make(Settings(folder=folder))

    @event.listens_for(database.engine, "after_cursor_execute")
    def count(*_):
        nonlocal done
        done += 1
        if done == last:
            os.kill(os.getpid(), 9)

    database.upgrade()
    os._exit(0)

def forked(folder, last):
    if not (pid := os.fork()):
        upgrade(folder, last)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def look(folder, last, status):
    with sqlite3.connect(folder / "server.sqlite3") as connection:
        told = {
            "last": last, "status": status, "whole": connection.execute("PRAGMA integrity_check").fetchone()[0],
            "schema": connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2").fetchall(),
        }
        if told["schema"]:
            told["rows"] = connection.execute("SELECT count(*) FROM traces").fetchone()[0]
    connection.close()
    return told

for last in map(int, places):
    folder = Path(pattern.replace("*", str(last)))
    told = look(folder, last, forked(folder, last))
    if "*" in pattern:
        told["again"] = look(folder, 0, forked(folder, 0))
    print(json.dumps(told))
"""


def _migrate(folder: str, *places: int, migrations: str = "") -> list[dict[str, Any]]:
    """Upgrade a database once for each of `places`, killed after that many statements (0: not), and look at it.

    A star in the folder's name stands for the number, and each is then upgraded to its end.
    """
    words = [sys.executable, "-c", _MIGRATING, folder, migrations, *map(str, places)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SLOW_S, check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["last"] for one in told] == list(places)
    assert {one["whole"] for one in told} == {"ok"}
    return told


def test_killed_during_the_first_migration(tmp_path: Path) -> None:
    """After every statement of it: there is all of it or nothing, and the next start makes it whole."""
    finished, *killed = _migrate(str(tmp_path / "cut-*"), *range(40))
    places = [one["last"] for one in killed if one["status"] == -9]
    assert places == list(range(1, len(places) + 1)) and 10 < len(places) < 39
    assert {one["status"] for one in killed} == {-9, 0}
    assert all(one["schema"] in ([], finished["schema"]) for one in killed)
    assert sum(not one["schema"] for one in killed) > 10
    assert all(one["again"]["schema"] == finished["schema"] for one in killed)
    print(f"\nkilled after each of {len(places)} statements of the first migration: each time nothing or all of it")


_SECOND = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "test", "{head}"

def upgrade():
    op.add_column("traces", sa.Column("later", sa.Text))
    for digit in "0123456789abcdef":
        op.execute("UPDATE traces SET later = 'moved' WHERE sha256 LIKE '" + digit + "%'")
    op.create_table("newer", sa.Column("id", sa.Integer, primary_key=True))
"""


def test_killed_while_rows_are_rewritten(tmp_path: Path) -> None:
    """A later migration, made up here, meets a database with traces in it."""
    folder, later = tmp_path / "server", tmp_path / "migrations"
    numbers = dict.fromkeys(range(1, 31), 201)
    with serving(folder, "--workers", "0") as server:
        assert {server.put(body_of(number)).status_code for number in numbers} == {201}
        assert server.end() == 0
    head = ScriptDirectory.from_config(migrate.configuration()).get_current_head()
    shutil.copytree(migrate.FOLDER, later)
    (later / "versions" / "test_second.py").write_text(_SECOND.format(head=head))
    killed = _migrate(str(folder), *range(1, 40), migrations=str(later))
    places = [one["last"] for one in killed if one["status"] == -9]
    assert len(places) > 18 and {one["rows"] for one in killed} == {len(numbers)}
    schemas = [one["schema"] for one in killed]
    first_new = next(place for place, schema in enumerate(schemas) if schema != schemas[0])
    assert first_new > 18 and all(schema == schemas[-1] for schema in schemas[first_new:])
    with closing(sqlite3.connect(folder / "server.sqlite3")) as connection:
        moved = connection.execute("SELECT later, count(*) FROM traces GROUP BY 1").fetchall()
    assert moved == [("moved", len(numbers))]
    refused = Serving(folder)  # its database is newer than it is now
    try:
        assert refused.process.wait(SLOW_S) == 2 and "newer version" in refused.log()
    finally:
        refused.close()
    print(
        f"\nkilled after {first_new} statements, one later each time: {len(numbers)} traces as before, then all moved"
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={24 << 20}", "tmpfs", str(folder)]
    mounted = (
        os.geteuid() == 0 and subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    )
    require(mounted, "a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], timeout=20, check=True)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def test_a_full_disk(small_disk: Path) -> None:
    folder, sending = small_disk / "server", Sending()
    (small_disk / "spare").write_bytes(b"x" * (2 << 20))  # what an operator will free
    with serving(folder, "--workers", "0") as server:
        with sending.to(server, 4):
            until(lambda: sending.statuses.get(507, 0) >= 20, 60)
        assert set(sending.statuses) <= {200, 201, 507, 429, 503}, sending.statuses
        assert not list((folder / "incoming").iterdir())
        _fill(small_disk / "filler")  # not a byte is left
        assert server.put(trace_gz(999)).status_code == 507
        for number in sorted(sending.acknowledged)[:20]:
            assert server.ask("GET", f"/api/v1/traces/{sha256(body_of(number))}").content == body_of(number)
        assert server.ask("GET", "/api/v1/traces").status_code == 200
        assert not list((folder / "incoming").iterdir())
        server.kill()
    with serving(folder, "--workers", "0") as server:  # it starts on the full disk, and what is there can be read
        last = max(sending.acknowledged)
        assert server.ask("GET", f"/api/v1/traces/{sha256(body_of(last))}").content == body_of(last)
        assert server.put(body_of(999_998)).status_code == 507  # of 1 MB
        server.kill()
    (small_disk / "spare").unlink()
    with serving(folder, "--workers", "0") as server:
        first, *_ = sorted(sending.acknowledged)
        assert server.ask("DELETE", f"/api/v1/traces/{sha256(body_of(first))}").status_code == 204
        del sending.acknowledged[first]
        assert server.put(trace_gz(999)).status_code == 201
        until(lambda: nothing_is_left(folder), 30)
        assert server.end() == 0
    print(f"\nanswers {sending.statuses}", end="")
    account(folder, sending.acknowledged, "disk full")


def _locked(file: Path, seconds: float) -> subprocess.Popen[str]:
    """Another process that holds the database for writing."""
    script = (
        "import sqlite3, sys, time\n"
        f"connection = sqlite3.connect({str(file)!r}, isolation_level=None, timeout=20)\n"
        "connection.execute('BEGIN EXCLUSIVE')\n"
        f"print('locked', flush=True)\ntime.sleep({seconds})\nconnection.rollback()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    return process


def test_the_database_is_locked_by_somebody_else(tmp_path: Path) -> None:
    folder, sent = tmp_path / "server", {}
    with serving(folder, "--workers", "0") as server, ExitStack() as stack:
        assert server.put(body_of(1)).status_code == 201
        holder = stack.enter_context(_locked(folder / "server.sqlite3", 4))
        begun = time.monotonic()
        assert server.put(body_of(3)).status_code == 201
        waited = time.monotonic() - begun
        assert server.ask("GET", "/api/v1/traces").status_code == 200
        holder.wait(20)
        holder = stack.enter_context(_locked(folder / "server.sqlite3", 60))
        refused = server.put(body_of(6))
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) > 0
        assert server.ask("HEAD", f"/api/v1/traces/{sha256(body_of(6))}").status_code == 404
        assert not (folder / "blobs" / key_of_trace(sha256(body_of(6)))).exists()
        assert server.ask("GET", f"/api/v1/traces/{sha256(body_of(1))}").content == body_of(1)
        holder.kill()
        assert server.put(body_of(6)).status_code == 201
        sent = dict.fromkeys((1, 3, 6), 201)
        until(lambda: nothing_is_left(folder), 30)
        assert server.end() == 0
    print(f"\nan upload waited {waited:.1f} s for a lock of 4 s; one of 60 s was answered with 503", end="")
    account(folder, sent, "database locked")


class Clock:
    """The server's clock: the machine's and an offset of whole seconds."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "offset"
        (folder / "sitecustomize.py").write_text(f"JUMP_FILE = {str(self._file)!r}\n{_JUMPING}")
        self.jump(0)
        self.environment = {"PYTHONPATH": str(folder)}

    def jump(self, seconds: int) -> None:
        """Put it so many seconds from the machine's."""
        draft = self._file.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.replace(self._file)


def test_the_clock_jumps(tmp_path: Path) -> None:
    """A year ahead: nothing is swept away for that. A day back: nothing stands still."""
    folder, clock = tmp_path / "server", Clock(tmp_path / "clock")
    numbers = dict.fromkeys(range(3, 39, 3), 201)
    token = make_token(folder, "admin")
    options = {"environment": clock.environment, "token": token}
    with serving(folder, "--workers", "0", **options) as server:
        for number in numbers:
            assert server.put(body_of(number)).status_code == 201
        digest = sha256(body_of(3))
        made = server.ask("POST", f"/api/v1/traces/{digest}/links", json={"expires_s": 3600})
        assert made.status_code == 201, made.text
        link = "/s/" + made.json()["url"].rpartition("/s/")[2]
        assert server.ask("GET", link, headers={"Authorization": ""}).status_code == 404  # its report is awaited
        clock.jump(400 * DAY_S)
        assert server.ask("GET", link, headers={"Authorization": ""}).status_code == 410
        assert server.put(body_of(39)).status_code == 201
        assert server.end() == 0
    with serving(folder, "--workers", "2", **options) as server:  # sweeps at its start, a year ahead
        until(lambda: "too old at once" in server.log(), 60)
        assert server.ask("GET", "/api/v1/traces").json()["total"] == len(numbers) + 1
        clock.jump(-DAY_S)
        assert server.put(body_of(42)).status_code == 201
        assert server.ask("GET", link, headers={"Authorization": ""}).status_code != 410
        for number in (39, 42):  # sent a year ahead, and a day behind
            until(lambda number=number: server.state(sha256(body_of(number))) == "analysed", 200, 0.5)
        assert server.end() == 0
    account(folder, {**numbers, 39: 201, 42: 201}, "clock 400 days ahead, then one back")
