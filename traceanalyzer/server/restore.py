"""The other half of `backup`: reads a backup into an empty folder, and believes nothing that it does not check.

See `backup` for what is in the file. The contents go to a folder within the folder, where every hash is compared and
every row looked for; then the blobs move into place and the database last. A restore that is killed leaves a folder
that the next restore takes for empty.

What could be wrong: a database that somebody made up, with valid hashes around it, is taken as it is; restore only what
you keep yourself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from traceanalyzer.errors import InputError
from traceanalyzer.server.backup import DATABASE, MANIFEST, SCHEMA, Told
from traceanalyzer.server.blobs import REPORTS, Blobs, key_of_report, key_of_trace
from traceanalyzer.server.database import engine
from traceanalyzer.server.database.models import Trace
from traceanalyzer.server.folder import LOCK, claimed, sync_folder
from traceanalyzer.server.settings import Settings

_TRACE = re.compile(r"traces/([0-9a-f]{64})")
_REPORT = re.compile(rf"reports/([0-9a-f]{{64}})/({'|'.join(map(re.escape, REPORTS))})")
_STAGING = ".restoring"
_CHUNK = 1 << 20
_LARGEST_MANIFEST = 512 << 20
_LONGEST_REASON = 200


def restore(source: Path, folder: Path, watch: Callable[[int], None] | None = None) -> Told:
    """Put what a backup holds into `folder`, which must be empty or not exist yet.

    Args:
        source: the tar file.
        folder: the new server's; nothing in it changes where the backup turns out to be damaged.
        watch: told the number of traces read so far.

    Raises:
        InputError: the file is no backup, is damaged or was cut off; the folder is in use or not empty.
    """
    with claimed(folder):
        staging = folder / _STAGING
        if staging.is_dir() and not staging.is_symlink() and not (folder / DATABASE).exists():
            # An earlier restore was killed, perhaps between its last two steps.
            for name in ("blobs", _STAGING):
                shutil.rmtree(folder / name, ignore_errors=True)
        if left := sorted(entry.name for entry in folder.iterdir() if entry.name != LOCK):
            raise InputError(f"the folder {folder} is not empty: it holds {left[0]}", "name a new folder")
        staging.mkdir(mode=0o700)
        try:
            told = _checked(source, Settings(folder=staging), watch or (lambda _: None))
            for name in ("blobs", DATABASE):
                if (staging / name).exists():
                    sync_folder(staging)
                    (staging / name).replace(folder / name)
                    sync_folder(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return told


def _checked(source: Path, settings: Settings, watch: Callable[[int], None]) -> Told:
    try:
        with source.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                told, manifest = _read(tar, size, settings, watch)
    # tarfile lets out what headers that somebody made up bring it to, as they are: no numbers, chains, sizes.
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise InputError(f"{source.name} is no backup, or was cut off: {str(error) or 'a head is too long'}") from error
    _compare(told, manifest, source.name)
    _check_database(settings, told)
    return told


def _read(tar: tarfile.TarFile, size: int, settings: Settings, watch: Callable[[int], None]) -> tuple[Told, Any]:
    """Every member of a file of `size` bytes; nothing of one is written before its head has been looked at."""
    blobs, told, manifest = Blobs(settings), Told(), None
    for member in tar:
        name = member.name
        # A sparse member says in some bytes that it is as large as it likes.
        is_plain = member.isreg() and not member.issparse()
        if manifest is not None or name in told.members or not is_plain or not _belongs(name):
            raise InputError(f"the backup holds {name[:120]!r}, which does not belong there")
        if not 0 <= member.size <= size - member.offset_data:
            raise InputError(f"the backup was cut off within {name}")
        stream = tar.extractfile(member)
        if stream is None:
            raise InputError(f"the backup holds {name[:120]!r}, which cannot be read")
        if name == MANIFEST:
            if member.size > _LARGEST_MANIFEST:
                raise InputError("the backup's list of contents is too long")
            manifest = _parsed(stream.read())
            continue
        part = settings.folder / "part"
        digest = _copied(stream, part)
        told.members[name] = (member.size, digest)
        told.bytes += member.size
        _put(name, digest, part, blobs, settings)
        if name.startswith("traces/"):
            told.traces += 1
            watch(told.traces)
    if manifest is None:
        raise InputError("the backup was cut off: its list of contents, which comes last, is missing")
    return told, manifest


def _belongs(name: str) -> bool:
    return name in (DATABASE, MANIFEST) or bool(_TRACE.fullmatch(name) or _REPORT.fullmatch(name))


def _put(name: str, digest: str, part: Path, blobs: Blobs, settings: Settings) -> None:
    """Move `part` to where `name` belongs; nothing of the name but hexadecimal digits becomes part of a path."""
    if name == DATABASE:
        part.replace(settings.folder / DATABASE)
    elif found := _TRACE.fullmatch(name):
        if digest != found[1]:
            raise InputError(f"the trace {found[1]} in the backup is damaged")
        blobs.put_file(key_of_trace(found[1]), part)
    elif found := _REPORT.fullmatch(name):
        blobs.put_file(key_of_report(found[1], found[2]), part)


def _copied(stream: IO[bytes], part: Path) -> str:
    digest = hashlib.sha256()
    part.unlink(missing_ok=True)  # the one before may be a blob by now, under a second name
    with part.open("xb") as out:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("the backup's list of contents is damaged") from error


def _compare(told: Told, manifest: Any, name: str) -> None:
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise InputError(f"{name} was made by another version of traceanalyzer", "restore it with that version")
    listed = manifest.get("members")
    found = {member: list(facts) for member, facts in told.members.items()}
    if not isinstance(listed, dict) or listed != found or DATABASE not in found:
        wrong = sorted(set(listed or ()) ^ set(found)) if isinstance(listed, dict) else []
        what = wrong[0] if wrong else "a member whose contents changed"
        raise InputError(f"{name} is damaged: it differs from its own list of contents ({what})")


def _check_database(settings: Settings, told: Told) -> None:
    """Whether SQLite finds its file whole, and every trace in it has come along."""
    with closing(sqlite3.connect(settings.folder / DATABASE)) as connection:
        try:
            state = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            raise InputError(f"the database in the backup is damaged: {error}") from error
    if state != ("ok",):
        raise InputError("the database in the backup is damaged")
    database = engine.make(settings)
    try:
        database.upgrade()
        with database.reading() as session:
            missing = [one for one in session.scalars(select(Trace.sha256)) if f"traces/{one}" not in told.members]
    except SQLAlchemyError as error:
        why = str(error).partition("\n")[0][:_LONGEST_REASON]
        raise InputError(f"the database in the backup is no server's: {why}") from error
    finally:
        database.close()
    if missing:
        raise InputError(f"the backup lacks the trace {missing[0]}, which its database names")
