"""The database: made, made again, killed while it is made, made by several at once, newer than the code, full, busy."""

from __future__ import annotations

import io
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import create_mock_engine, text

from traceanalyzer.errors import InputError
from traceanalyzer.server.audit import Audit
from traceanalyzer.server.database import engine, migrate
from traceanalyzer.server.database.engine import Busy, Database, Full
from traceanalyzer.server.database.models import Base
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings
from traceanalyzer.server.traces import Search, Traces

TABLES = {"alembic_version", "audit", "jobs", "links", "tokens", "traces"}

# One process that forks: every child upgrades a folder of its own and kills itself at its own statement.
KILLED = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import event
from traceanalyzer.server.database import engine
from traceanalyzer.server.settings import Settings

root = Path(sys.argv[1])
at = 0
while True:
    child = os.fork()
    if child == 0:
        database = engine.make(Settings(folder=root / str(at)))
        seen = 0
        def count(*_):
            global seen
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
        event.listen(database.engine, "after_cursor_execute", count)
        database.upgrade()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
        print(at)
        sys.exit(0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    at += 1
"""

# Several at once: all wait for the pipe to close, and then start together.
TOGETHER = """
import os, sys
from pathlib import Path
from traceanalyzer.server.database import engine
from traceanalyzer.server.settings import Settings

reading, writing = os.pipe()
children = []
for _ in range(6):
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        engine.make(Settings(folder=Path(sys.argv[1]))).upgrade()
        os._exit(0)
    children.append(child)
os.close(writing)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = engine.make(Settings(folder=tmp_path))
    yield made
    made.close()


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )


def tables(folder: Path) -> set[str]:
    connection = sqlite3.connect(folder / "server.sqlite3")
    try:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        connection.close()


def test_an_empty_folder_becomes_what_the_models_say(tmp_path: Path, database: Database) -> None:
    database.upgrade()
    assert tables(tmp_path) == TABLES
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_postgresql_would_get_the_same_tables() -> None:
    """Nothing runs there in these tests; what would be sent is compared with what the models say."""
    made, said = io.StringIO(), io.StringIO()
    options = {"as_sql": True, "output_buffer": made}
    context = MigrationContext.configure(dialect_name="postgresql", opts=options)
    config = migrate.configuration()
    (first,) = ScriptDirectory.from_config(config).walk_revisions()
    with Operations.context(context):
        first.module.upgrade()
    target = create_mock_engine(
        "postgresql://", lambda statement, *_: said.write(f"{statement.compile(dialect=target.dialect)};\n")
    )
    Base.metadata.create_all(target, checkfirst=False)
    assert statements(made.getvalue()) == statements(said.getvalue())
    # Five tables, and the indexes on them.
    assert len(statements(made.getvalue())) == 16
    assert "ix_traces_list" not in made.getvalue()


def statements(script: str) -> list[str]:
    return sorted(" ".join(sorted(part.replace(",", " ").split())) for part in script.split(";") if part.strip())


def test_an_upgrade_that_is_repeated_changes_nothing(database: Database) -> None:
    database.upgrade()
    Audit(database).note("somebody", "did", "something")
    database.upgrade()
    database.upgrade()
    assert [row.actor for row in Audit(database).recent()] == ["somebody"]


def test_a_kill_at_any_statement_leaves_nothing_and_the_next_upgrade_does_all(tmp_path: Path) -> None:
    done = run(KILLED, tmp_path)
    assert done.returncode == 0, done.stderr
    statements = int(done.stdout)
    assert statements >= 20
    for at in range(statements):
        left = tables(tmp_path / str(at))
        # Killed after its last statement is still before its commit.
        assert left == set(), at
        again = engine.make(Settings(folder=tmp_path / str(at)))
        again.upgrade()
        again.close()
        assert tables(tmp_path / str(at)) == TABLES


def test_processes_that_start_together_make_the_tables_once(tmp_path: Path) -> None:
    for attempt in range(2):
        done = run(TOGETHER, tmp_path / str(attempt))
        assert (done.returncode, done.stderr) == (0, "")
        assert tables(tmp_path / str(attempt)) == TABLES


class Contended(sqlite3.Connection):
    """What happens to one in some hundred that open a new database together: refused at once, not kept waiting."""

    refusals = 3

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "PRAGMA journal_mode = WAL" and self.refusals:
            self.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return super().execute(sql, *values)


def test_the_log_is_turned_on_by_the_first_that_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(tmp_path / "new", factory=Contended)
    engine._set_up(connection, None)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    monkeypatch.setattr(engine, "BUSY_S", 0.1)
    refused = sqlite3.connect(tmp_path / "never", factory=Contended)
    refused.refusals = 1000
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        engine._set_up(refused, None)
    refused.close()


def test_a_newer_database_is_refused_in_one_line_and_left_alone(tmp_path: Path, database: Database) -> None:
    database.upgrade()
    with database.session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(InputError, match="newer version") as caught:
        database.upgrade()
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    with database.reading() as session:
        assert session.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"
    done = subprocess.run(
        [sys.executable, "-m", "traceanalyzer", "token", "list", "--folder", str(tmp_path)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "newer version" in done.stderr


@pytest.mark.parametrize("content", [b"no database at all" * 1000, b"SQLite format 3\0" + b"\xff" * 8192])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "server.sqlite3").write_bytes(content)
    database = engine.make(Settings(folder=tmp_path))
    with pytest.raises(InputError, match="damaged"):
        database.upgrade()
    database.close()
    assert (tmp_path / "server.sqlite3").read_bytes() == content


def test_every_connection_syncs_fully_and_checks_foreign_keys(database: Database) -> None:
    database.upgrade()
    for context in (database.session, database.reading):
        with context() as session:
            said = {
                name: session.execute(text(f"PRAGMA {name}")).scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            }
        # 2 is FULL.
        assert said == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000}


def test_only_the_owner_can_read_what_is_made(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        services = Services.open(Settings(folder=tmp_path / "a" / "b"))
        services.audit.note("a", "b", "c")
    finally:
        os.umask(before)
    made = list((tmp_path / "a" / "b").rglob("*"))
    services.close()
    assert {path.name for path in made} >= {"server.sqlite3", "server.sqlite3-wal", "blobs", "incoming", "work"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "a" / "b", *made) if path.exists())


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "we?ird #%20 é&x=1"
    services = Services.open(Settings(folder=folder))
    services.audit.note("a", "b", "c")
    services.close()
    assert tables(folder) == TABLES
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_writer_that_does_not_get_its_turn_says_so(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.upgrade()
    database.close()
    monkeypatch.setattr(engine, "BUSY_S", 0.05)
    other = sqlite3.connect(tmp_path / "server.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Busy, match="busy"), database.session():
        pass
    Audit(database).note("a", "b", "c")  # what is only noted beside the work goes to the log
    # Readers wait for no writer.
    assert Audit(database).recent() == []
    other.execute("ROLLBACK")
    other.close()
    Audit(database).note("a", "b", "c")
    assert len(Audit(database).recent()) == 1


def test_a_full_disk_is_told_and_nothing_is_half_written(database: Database) -> None:
    database.upgrade()
    traces = Traces(database)
    with database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 5}")
    added = 0
    with pytest.raises(Full, match="full"):
        for added in range(10_000):
            traces.add(f"{added:064x}", 1, 1, Labels(name="x" * 200), None, added)
    assert 0 < added < 10_000
    page = traces.find(Search(), size=500)
    assert page.total == added == len(page.rows)
    with database.reading() as session:
        assert session.execute(text("SELECT count(*) FROM jobs")).scalar_one() == added


def test_an_error_in_a_session_takes_everything_back(database: Database) -> None:
    database.upgrade()
    with pytest.raises(ZeroDivisionError), database.session() as session:
        session.execute(text("INSERT INTO audit (at, actor, action, subject, detail) VALUES (1, 'a', 'b', 'c', 'd')"))
        raise ZeroDivisionError
    assert Audit(database).recent() == []


def test_what_was_committed_survives_a_kill(tmp_path: Path, database: Database) -> None:
    database.upgrade()
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from traceanalyzer.server.services import Services\nfrom traceanalyzer.server.settings import Settings\n"
        "services = Services.open(Settings(folder=Path(sys.argv[1])))\n"
        "for number in range(1000):\n"
        "    services.audit.note('a', 'b', str(number))\n"
        "    os.write(1, f'{number}\\n'.encode())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    told += process.stdout.readlines()
    process.stdout.close()
    process.wait(timeout=30)
    found = {row.subject for row in Audit(database).recent(limit=2000)}
    assert {line.decode().strip() for line in told if line.endswith(b"\n")} <= found


def test_many_threads_write_without_losing_one(database: Database) -> None:
    database.upgrade()
    audit = Audit(database)
    threads = [
        threading.Thread(target=lambda n=n: [audit.note("a", "b", f"{n}-{i}") for i in range(10)]) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len({row.subject for row in audit.recent(limit=500)}) == 120
