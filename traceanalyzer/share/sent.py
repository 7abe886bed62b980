"""Remembers what was sent, in a small SQLite file, and keeps two uploaders from sending the same file at once.

A file is known by its path, size, time of change and inode, together with the level of redaction and the server: one
that was replaced is another. Whoever is sending a file holds a lock on one byte of a file beside the state; the system
lets go of it when the process dies, however it dies. What could be wrong: without locks (Windows, some network file
systems) two uploaders may send the same file at once, which the server then stores once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traceanalyzer.errors import InputError
from traceanalyzer.share.offered import Signature

NAME = "sent.sqlite3"
_OUTGOING = "outgoing-"
_VERSION = 1
_WAIT_S = 10.0
_POLL_S = 0.1
_OLD_MS = 30 * 86_400_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
  path TEXT NOT NULL, bytes INTEGER NOT NULL, changed_ns INTEGER NOT NULL, inode INTEGER NOT NULL,
  level TEXT NOT NULL, redactor TEXT NOT NULL, server TEXT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('sent', 'refused')),
  sha256 TEXT, page TEXT, reason TEXT, at_ms INTEGER NOT NULL,
  PRIMARY KEY (path, bytes, changed_ns, inode, level, redactor, server)
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Key:
    """One file as it is, to be sent to one server in one way."""

    path: str
    signature: Signature
    level: str
    redactor: str
    server: str

    def columns(self) -> tuple[str | int, ...]:
        """In the order of the table's primary key."""
        return (self.path, *self.signature, self.level, self.redactor, self.server)


@dataclass(frozen=True, slots=True)
class Known:
    """How it ended: sent as the trace `sha256` with its page, or refused for good, for a reason in one line."""

    status: Literal["sent", "refused"]
    sha256: str | None
    page: str | None
    reason: str | None


def default_place() -> Path:
    """The state file of this user."""
    base = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    return folder / "traceanalyzer" / NAME


class State:
    """What was sent, and the folder for what is about to be."""

    def __init__(self, place: Path | None) -> None:
        """Open the state, or one in memory that is forgotten afterwards.

        Raises:
            InputError: it cannot be opened, or is no state of ours; the message names the file.
        """
        self._place = place
        self._locks: int | None = None
        self._mine: set[str] = set()
        try:
            if place is not None:
                self._make(place)
            self._base = sqlite3.connect(place or ":memory:", timeout=_WAIT_S, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            self._unlock()
            raise _unusable(place, error) from error
        try:
            self._prepare()
        except (InputError, OSError, sqlite3.Error) as error:
            self.close()
            raise error if isinstance(error, InputError) else _unusable(place, error) from error

    def _make(self, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The database takes over the mode of a file that exists: only its owner reads which files there were.
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600))
        self._locks = os.open(place.with_name(place.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)

    def _prepare(self) -> None:
        # A result is only told, and a file only forgotten, when this is on the disk.
        self._base.execute("PRAGMA synchronous = FULL")
        (version,) = self._base.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise InputError(f"{self._place} was written by a newer version", "update traceanalyzer, or use --state")
        self._base.execute(_SCHEMA)
        if version < _VERSION:
            self._base.execute(f"PRAGMA user_version = {_VERSION}")
        self._forget_old()
        self._sweep()

    def close(self) -> None:
        """Close the database and let go of the locks."""
        self._base.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._locks is not None:
            os.close(self._locks)
            self._locks = None

    def find(self, key: Key) -> Known | None:
        """How it ended; None where it has not."""
        with self._usable():
            row = self._base.execute(
                "SELECT status, sha256, page, reason FROM files WHERE path = ? AND bytes = ? AND changed_ns = ? "
                "AND inode = ? AND level = ? AND redactor = ? AND server = ?",
                key.columns(),
            ).fetchone()
        return None if row is None else Known(*row)

    def note_sent(self, key: Key, sha256: str, page: str) -> None:
        """The server has it."""
        self._note(key, Known("sent", sha256, page, None))

    def note_refused(self, key: Key, reason: str) -> None:
        """It will never be sent."""
        self._note(key, Known("refused", None, None, reason[:500]))

    def _note(self, key: Key, known: Known) -> None:
        with self._usable():
            self._base.execute(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*key.columns(), known.status, known.sha256, known.page, known.reason, time.time_ns() // 10**6),
            )

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _unusable(self._place, error) from error

    def _forget_old(self) -> None:
        """Forget files that are gone since long."""
        old = time.time_ns() // 10**6 - _OLD_MS
        paths = [path for (path,) in self._base.execute("SELECT DISTINCT path FROM files WHERE at_ms < ?", (old,))]
        gone = [(path, old) for path in paths if not os.path.lexists(path)]
        self._base.executemany("DELETE FROM files WHERE path = ? AND at_ms < ?", gone)

    @contextlib.contextmanager
    def hold(self, key: Key, wait_s: float = 0.0) -> Iterator[bool]:
        """Whether nobody else is sending it; if so, nobody does until the block ends.

        Args:
            key: the file.
            wait_s: how long to wait for somebody else who does.
        """
        with self._held(repr(key.columns()), wait_s) as is_held:
            yield is_held

    @contextlib.contextmanager
    def outgoing(self) -> Iterator[Path]:
        """A private folder for one redacted copy, removed afterwards; what a killed uploader left goes at the start."""
        if self._place is None:
            with tempfile.TemporaryDirectory(prefix="traceanalyzer-") as name:
                yield Path(name)
            return
        name = _OUTGOING + secrets.token_hex(8)
        with self._held(name, 0.0):
            folder = self._place.with_name(name)
            folder.mkdir(mode=0o700)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self) -> None:
        if self._place is None or self._locks is None:
            return
        for folder in self._place.parent.glob(_OUTGOING + "*"):
            with self._held(folder.name, 0.0) as is_left:
                if is_left:
                    shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _held(self, name: str, wait_s: float) -> Iterator[bool]:
        if name in self._mine:  # the system would grant it to the same process once more
            yield False
            return
        until = time.monotonic() + wait_s
        while not self._lock(name):
            if time.monotonic() >= until:
                yield False
                return
            time.sleep(_POLL_S)
        self._mine.add(name)
        try:
            yield True
        finally:
            self._mine.discard(name)
            self._let_go(name)

    def _lock(self, name: str) -> bool:
        if self._locks is None or os.name != "posix":
            return True
        import fcntl

        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(name))
        except (BlockingIOError, PermissionError):
            return False
        except OSError:  # this file system has no locks
            return True
        return True

    def _let_go(self, name: str) -> None:
        if self._locks is None or os.name != "posix":
            return
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, _byte(name))


def _byte(name: str) -> int:
    """Which byte stands for a name: two names share one only by a chance of 2**-56."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:7], "big")


def _unusable(place: Path | None, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(f"the state {place} cannot be used: {reason}", "name another file with --state")
