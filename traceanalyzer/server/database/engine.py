"""The one place that knows which database is behind the tables.

SQLite is told what it does not do by itself: write-ahead logging, a full sync at every commit (what was acknowledged
survives a power cut), foreign keys, and transactions that say at their start whether they will write. Python's driver
is kept from opening transactions of its own, so DDL is inside the transaction too and a migration that is killed
leaves nothing.

A writer waits for another one: `BUSY_S` seconds, `_TRIES` times; then `Busy` says so. Keep write sessions short: no
network and no large file inside one.

What could be wrong: SQLite needs a local file system; on a network share its locks may not hold.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, CursorResult, Delete, Update, create_engine, event, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from traceanalyzer.errors import InputError, TraceAnalyzerError
from traceanalyzer.server.database.migrate import to_head
from traceanalyzer.server.settings import Settings

_log = logging.getLogger("traceanalyzer.server")
BUSY_S = 10.0
_TRIES = 2
_READS = "traceanalyzer_reads"
_UPGRADE_LOCK = 0x7472616365  # any constant that only this program uses
_PRIMARY = 0xFF  # SQLite's extended result codes keep the primary one in the low byte


class Busy(TraceAnalyzerError):
    """Others held the database for longer than a writer waits; the same request may succeed later."""


class Full(TraceAnalyzerError):
    """The disk of the database is full; nothing was written."""


class Database:
    """The database of one server; safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        """`make` is what callers use."""
        self.engine = engine
        self._reader = engine.execution_options(**{_READS: True})

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session that may write: committed at the end, rolled back on any error.

        Raises:
            Busy: another writer did not end.
            Full: the disk is full.
        """
        with _translated(), Session(self.engine, expire_on_commit=False) as session:
            _begin(session)
            yield session
            session.commit()

    def note(self, what: str, write: Callable[[Session], object]) -> None:
        """Write what is only noted beside the work; where it cannot be written, the work goes on and the log has it.

        Reading must not end because the disk is full.

        Args:
            what: one line for the log; it holds no secret.
            write: puts it into a session.
        """
        try:
            with self.session() as session:
                write(session)
        except (Busy, Full) as error:
            _log.warning("not noted in the database: %s", what, extra={"event": "not_noted", "reason": error.message})

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that only reads: it sees one state, and waits for no writer."""
        with _translated(), Session(self._reader, expire_on_commit=False) as session:
            yield session

    def upgrade(self) -> None:
        """Bring the tables to what this code expects, in one transaction.

        Raises:
            InputError: the database is newer than this code, or is none.
        """
        with _translated(), _opening(), self.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
            to_head(connection)

    def ping(self) -> None:
        """Ask the database for one value; raises what a session raises when it does not answer."""
        with self.reading() as session:
            session.execute(text("SELECT 1")).one()

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.engine.dispose()


def changed(session: Session, statement: Update | Delete) -> int:
    """Run an update or a deletion; how many rows it changed."""
    return cast("CursorResult[Any]", session.execute(statement)).rowcount


def make(settings: Settings) -> Database:
    """The database that the settings name; no table is made and nothing is read yet."""
    if settings.database_file is not None:
        _make_private(settings.database_file)
    # One connection a thread, all of which may be at work at once; eight stay open between requests.
    engine = create_engine(_address(settings), pool_size=8, max_overflow=-1)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_up)
        event.listen(engine, "begin", _say_begin)
    return Database(engine)


def _address(settings: Settings) -> URL:
    """As parts, not as text: a folder's name may hold what means something else in an address."""
    if settings.database_file is None:
        return make_url(settings.database)
    return URL.create("sqlite", database=str(settings.database_file))


def _make_private(path: Path) -> None:
    """Create the file for its owner only; SQLite gives its companions the same mode."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _set_up(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")
    _log_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Turn write-ahead logging on; two that do so at once get an error at once, whatever the timeout."""
    until = time.monotonic() + BUSY_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.02)


def _say_begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _begin(session: Session) -> None:
    """Start the transaction; nothing has happened in it yet, so it may simply be tried again."""
    for left in reversed(range(_TRIES)):
        try:
            session.connection()
        except OperationalError as error:
            session.rollback()
            if not left or _primary(error.orig) != sqlite3.SQLITE_BUSY:
                raise
        else:
            return


def _primary(error: BaseException | None) -> int:
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        code = _primary(error.orig)
        if code == sqlite3.SQLITE_BUSY:
            raise Busy("the database is busy", "try again in a moment") from error
        if code == sqlite3.SQLITE_FULL:
            raise Full("the disk of the database is full", "free some space, or shorten the retention") from error
        raise


@contextmanager
def _opening() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        code = _primary(error.orig)
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise InputError("the server's database is damaged or is none", "restore a backup") from error
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise InputError("the server's database cannot be written to", "check the folder's owner") from error
        raise
