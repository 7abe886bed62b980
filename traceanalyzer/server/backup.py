"""A backup is one tar file: the blobs, the database and a manifest; made while the server runs, restored into nothing.

The database is copied first, by SQLite's online backup; every blob it names was in place before its row was. A trace
that is deleted while its blob is on its way into the file is taken out of the copy, which is written after the blobs.
The manifest comes last and lists every other member with its SHA-256: a file without it was cut off.

    traces/<sha256>                    as they were sent
    reports/<sha256>/page.html ...     their reports
    server.sqlite3                     traces, labels, tokens (hashed), links (hashed), audit
    manifest.json                      {schema, version, created_at in ms, members: {name: [bytes, sha256]}}

What could be wrong: the secret that signs sessions is left out, so that a backup signs nobody in; everybody signs in
again after a restore. What a trace holds, its backup holds: keep it as private as the server's folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from sqlalchemy import delete, select
from sqlalchemy.exc import SQLAlchemyError

from traceanalyzer import __version__
from traceanalyzer.errors import InputError
from traceanalyzer.server.blobs import REPORTS, Blobs, key_of_report, key_of_trace
from traceanalyzer.server.database import engine
from traceanalyzer.server.database.models import Trace
from traceanalyzer.server.folder import sync_folder
from traceanalyzer.server.settings import Settings

SCHEMA = 1
"""Of the manifest."""
DATABASE = "server.sqlite3"
"""A member's name, and the file's in the folder."""
MANIFEST = "manifest.json"
"""The last member's name."""
_CHUNK = 1 << 20
Watch = Callable[[int], None]


@dataclass(slots=True)
class Told:
    """What a backup holds: traces and bytes of traces and reports."""

    traces: int = 0
    bytes: int = 0
    members: dict[str, tuple[int, str]] = field(default_factory=dict)


def _ignore(_traces: int) -> None:
    """Watch nothing."""


def backup(settings: Settings, target: Path, watch: Watch = _ignore) -> Told:
    """Write a backup to `target`, which appears whole or not at all; a file that is there is replaced.

    Args:
        settings: the server's; it may be running.
        target: the tar file.
        watch: told the number of traces written so far.

    Raises:
        InputError: there is no SQLite database in the folder, a stored trace is damaged, or the disk is full.
    """
    file = settings.database_file
    if file is None:
        raise InputError("backup copies SQLite databases only", "use the tools of your database and of your blob store")
    if not file.is_file():
        raise InputError(f"the folder {settings.folder} holds no server's database")
    told = Told()
    with _staging(target, settings.folder) as (stream, staging):
        copied = Settings(folder=staging, blob_url=settings.blob_url)
        _copy_database(file, staging / DATABASE)
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
            _write_blobs(Writer(tar, told), Blobs(settings), copied, watch)
            _one_file(staging / DATABASE)
            with (staging / DATABASE).open("rb") as database:
                size = os.fstat(database.fileno()).st_size
                Writer(tar, told).add(DATABASE, size, iter(lambda: database.read(_CHUNK), b""))
            manifest = {
                "schema": SCHEMA, "version": __version__, "created_at": time.time_ns() // 1_000_000,
                "members": told.members,
            }  # fmt: skip
            text = json.dumps(manifest, separators=(",", ":")).encode()
            tar.addfile(_member(MANIFEST, len(text)), io.BytesIO(text))
    return told


class Writer:
    """Adds members to a backup and notes what they were."""

    def __init__(self, tar: tarfile.TarFile, told: Told) -> None:
        """Write to `tar`, count in `told`."""
        self._tar, self.told = tar, told

    def add(self, name: str, size: int, chunks: Iterable[bytes]) -> str:
        """Add a member of exactly `size` bytes; returns its SHA-256.

        Raises:
            InputError: there are fewer or more bytes.
        """
        reading = _Reading(chunks)
        try:
            self._tar.addfile(_member(name, size), reading)  # type: ignore[arg-type]
        except OSError as error:
            if reading.size < size and error.errno is None:  # tarfile's own word for a member that is too short
                raise InputError(
                    f"{name} is shorter than the database says", "delete this trace, then try again"
                ) from error
            raise
        if reading.read(1):
            raise InputError(f"{name} is longer than the database says", "delete this trace, then try again")
        digest = reading.hash.hexdigest()
        self.told.members[name] = (size, digest)
        self.told.bytes += size
        return digest


class _Reading:
    """Chunks as a file that can be read once, and the hash of what was read."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = b""
        self.size = 0
        self.hash = hashlib.sha256()

    def read(self, count: int) -> bytes:
        """At most `count` bytes; fewer only at the end."""
        parts, have = [self._rest], len(self._rest)
        while have < count and (chunk := next(self._chunks, None)) is not None:
            parts.append(bytes(chunk))
            have += len(chunk)
        joined = b"".join(parts)
        given, self._rest = joined[:count], joined[count:]
        self.size += len(given)
        self.hash.update(given)
        return given


@contextmanager
def _staging(target: Path, source: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A file beside `target` that takes its name at the end, and a folder for what is needed until then."""
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        part = folder / "part"
        with part.open("xb") as stream:
            part.chmod(0o600)
            yield stream, folder
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
        sync_folder(target.parent)
    except sqlite3.Error as error:
        raise InputError(f"the database in {source} cannot be copied: {error}") from error
    except SQLAlchemyError as error:
        raise InputError(f"the database in {source} is no server's") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_database(source: Path, target: Path) -> None:
    """SQLite's online backup: one state of the database, while others go on writing."""
    reading = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=engine.BUSY_S)
    with closing(reading), closing(sqlite3.connect(target)) as copy:
        reading.backup(copy)


def _one_file(database: Path) -> None:
    """Bring what its companions hold into the file itself."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


def _write_blobs(writer: Writer, blobs: Blobs, copied: Settings, watch: Watch) -> None:
    database = engine.make(copied)
    try:
        with database.reading() as session:
            rows = session.execute(select(Trace.sha256, Trace.bytes).order_by(Trace.sha256)).all()
        gone = []
        for sha256, size in rows:
            if _write_trace(writer, blobs, sha256, size):
                writer.told.traces += 1
                watch(writer.told.traces)
            else:
                gone.append(sha256)
        with database.session() as session:
            for sha256 in gone:
                session.execute(delete(Trace).where(Trace.sha256 == sha256))
    finally:
        database.close()


def _write_trace(writer: Writer, blobs: Blobs, sha256: str, size: int) -> bool:
    """Add one trace and its reports; False where it was deleted meanwhile."""
    key = key_of_trace(sha256)
    if blobs.size(key) is None:
        return False
    try:
        chunks = blobs.open(key)
    except FileNotFoundError:
        return False
    if writer.add(f"traces/{sha256}", size, chunks) != sha256:
        raise InputError(f"the stored trace {sha256} is damaged", "delete it, or restore it from an earlier backup")
    for kind in REPORTS:
        # A report may be replaced between two looks at it, so it is taken at once; its size is bounded.
        if (report := _whole(blobs, key_of_report(sha256, kind))) is not None:
            writer.add(f"reports/{sha256}/{kind}", len(report), [report])
    return True


def _whole(blobs: Blobs, key: str) -> bytes | None:
    try:
        return b"".join(map(bytes, blobs.open(key)))
    except FileNotFoundError:
        return None


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info
