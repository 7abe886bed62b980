"""Deletes traces that are old, over the quota or in the way of a disk's free space; never a pinned one.

Oldest first. What was deleted is in the audit log. Two things that a clock or a neighbour may do are not taken for a
reason to delete: if more than half of all traces were suddenly too old, the clock has jumped or the settings have
changed, and age deletes nothing until that has held for a day of running; and if the traces are too few to free what
is missing, something else fills the disk. What could be wrong: a server that is restarted daily keeps waiting; traces
that came while the clock was years behind look old.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass

from traceanalyzer.server import storing
from traceanalyzer.server.audit import KEEP_DAYS
from traceanalyzer.server.services import Services
from traceanalyzer.server.traces import TraceRow

_log = logging.getLogger("traceanalyzer.server")
_DAY_MS = 86_400_000
_DOUBT_S = 86_400.0
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Swept:
    """How many traces a sweep deleted, for which reason, and what it left although it was asked to delete it."""

    old: int = 0
    over_quota: int = 0
    for_space: int = 0
    held: str | None = None


@dataclass(frozen=True, slots=True)
class _Age:
    """Traces from before a time, epoch milliseconds: of one environment, or of all `but` some."""

    before_ms: int
    environment: str | None = None
    but: tuple[str, ...] = ()


class Sweeper:
    """Sweeps again and again, and remembers since when it doubts the clock."""

    def __init__(self, services: Services) -> None:
        """Nothing is deleted yet."""
        self._services = services
        self._retention = services.settings.retention
        self._doubts_since: float | None = None

    def sweep(self, now: int) -> Swept:
        """Delete what has to go at `now`, epoch milliseconds."""
        old, doubt = self._delete_old(now)
        if doubt is None:
            self._services.audit.forget(now - KEEP_DAYS * _DAY_MS)
        over_quota = self._delete_over_quota()
        for_space, crowded = self._delete_for_space()
        held = "; ".join(reason for reason in (doubt, crowded) if reason) or None
        swept = Swept(old, over_quota, for_space, held)
        if swept != Swept():
            figures = {"old": old, "over_quota": over_quota, "for_space": for_space, "held": held}
            _log.warning("traces deleted" if held is None else held, extra={"event": "sweep", **figures})
        return swept

    def _delete_old(self, now: int) -> tuple[int, str | None]:
        ages = list(self._ages(now))
        going = sum(self._services.traces.how_many(age.before_ms, age.environment, age.but) for age in ages)
        total = sum(self._services.traces.counts().values())
        if going <= max(1, total / 2):
            self._doubts_since = None
        else:
            self._doubts_since = self._doubts_since if self._doubts_since is not None else time.monotonic()
            if time.monotonic() - self._doubts_since < _DOUBT_S:
                return 0, (
                    f"{going} of {total} traces are too old at once: unless the clock or the settings change, "
                    "they are deleted after a day"
                )
            self._doubts_since = None
        return sum(self._delete_older(age) for age in ages), None

    def _ages(self, now: int) -> Iterator[_Age]:
        """From when on which traces are too old."""
        special = self._retention.keep_days_by_environment
        for environment, days in special.items():
            yield _Age(now - round(days * _DAY_MS), environment)
        if self._retention.keep_days is not None:
            yield _Age(now - round(self._retention.keep_days * _DAY_MS), but=tuple(special))

    def _delete_older(self, age: _Age) -> int:
        deleted = 0
        while rows := self._services.traces.oldest(_BATCH, age.before_ms, age.environment, age.but):
            gone = sum(self._delete(row, "too old") for row in rows)
            deleted += gone
            if not gone:
                break
        return deleted

    def _delete_over_quota(self) -> int:
        if self._retention.quota_bytes is None:
            return 0
        missing = self._services.traces.stored_bytes() - self._retention.quota_bytes
        return self._delete_oldest(missing, "over the quota")

    def _delete_for_space(self) -> tuple[int, str | None]:
        if self._services.settings.blobs is None:
            return 0, None
        missing = self._retention.min_free_bytes - shutil.disk_usage(self._services.settings.blobs).free
        if missing <= 0:
            return 0, None
        if self._services.traces.stored_bytes() < missing:
            return 0, "the disk is nearly full, but not of traces: nothing is deleted for that"
        return self._delete_oldest(missing, "the disk is nearly full"), None

    def _delete_oldest(self, missing: int, why: str) -> int:
        """Delete the oldest unpinned traces until `missing` bytes are freed."""
        deleted = 0
        while missing > 0:
            before = missing
            for row in self._services.traces.oldest(_BATCH):
                if missing > 0 and self._delete(row, why):
                    deleted += 1
                    missing -= row.bytes + (row.report_bytes or 0)
            if missing == before:
                break
        return deleted

    def _delete(self, row: TraceRow, why: str) -> bool:
        if not storing.forget(self._services, row.sha256, even_pinned=False):
            return False
        self._services.audit.note("retention", "delete", row.sha256, why)
        return True
