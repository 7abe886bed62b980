"""Puts right what a killed server left: jobs that were running, half-sent bodies, blobs without a row and the reverse.

`recover` runs before the server answers anybody. `Stray` looks through the store in the background: a blob without a
row is deleted when two looks found it so, and a row whose blob is gone is marked failed. What could be wrong: a look
lists every key, which takes seconds for a hundred thousand traces in an object store.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from sqlalchemy import select

from traceanalyzer.server import storing
from traceanalyzer.server.blobs import key_of_trace
from traceanalyzer.server.database.models import Trace
from traceanalyzer.server.services import Services

_log = logging.getLogger("traceanalyzer.server")


def recover(services: Services) -> int:
    """Queue again what was running and empty `incoming` and `work`; returns how many jobs run again."""
    for folder in (services.settings.incoming, services.settings.work):
        empty(folder)
    again = services.jobs.recover()
    if again:
        _log.warning("jobs run again", extra={"event": "recovered", "jobs": again})
    return again


def empty(folder: Path) -> None:
    """Remove what is in a folder, as far as it can be removed."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class Stray:
    """Blobs without rows, remembered from one look to the next."""

    def __init__(self, services: Services) -> None:
        """Nothing is looked at yet."""
        self._services = services
        self._seen: set[str] = set()

    def look(self) -> tuple[int, int]:
        """Look through the store once; returns how many blobs were deleted and how many rows marked.

        An upload in progress has its blob before its row: what one look finds stray is deleted by the next one, if it
        is stray then, too.
        """
        rows = self._rows()  # before the keys: a row that comes later has its blob already
        stray, missing = set(), {sha256 for sha256, state in rows.items() if state != "failed"}
        for key in self._services.blobs.keys(""):
            if _sha256(key) not in rows:
                stray.add(key)
            elif key.startswith("traces/"):
                missing.discard(_sha256(key))
        deleted = sum(self._delete(key) for key in stray & self._seen)
        self._seen = stray - self._seen
        marked = sum(self._mark(sha256) for sha256 in missing)
        if deleted or marked:
            _log.warning("store put right", extra={"event": "stray", "deleted": deleted, "marked": marked})
        return deleted, marked

    def _rows(self) -> dict[str, str]:
        """The state of every trace, by hash."""
        with self._services.database.reading() as session:
            return {row[0]: row[1] for row in session.execute(select(Trace.sha256, Trace.state)).all()}

    def _delete(self, key: str) -> bool:
        with storing.exclusively(_sha256(key)):
            if self._services.traces.get(_sha256(key)) is not None:
                return False
            self._services.blobs.delete(key)
            return True

    def _mark(self, sha256: str) -> bool:
        with storing.exclusively(sha256):
            if self._services.blobs.size(key_of_trace(sha256)) is not None:
                return False
            return self._services.traces.set_failed(sha256, "the stored trace is gone")


def _sha256(key: str) -> str:
    return key.split("/")[2]
