"""The traces that were sent: adding is idempotent, the list is paged by key, and what an analysis found is kept here.

A page ends with the key of its last row, so rows that arrive meanwhile shift nothing.

What could be wrong: where few traces match, filters and text are held against every trace, newest first; that time
grows with their number. A page's order is that of the machine's clock.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from traceanalyzer.errors import InputError
from traceanalyzer.server.database.engine import Database, changed
from traceanalyzer.server.database.models import FILTERS, Job
from traceanalyzer.server.database.models import Trace as TraceRow
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.text import clean

__all__ = ["Found", "Labels", "Page", "Search", "TraceRow", "Traces"]

_COUNTED = 10_000
_LARGEST_PAGE = 500
_WORDS = 8
_WORD_CHARS = 200
_SEARCHED_CHARS = 1000
_NEWEST = (TraceRow.uploaded_at.desc(), TraceRow.sha256.desc())
_ANY_CASE = frozenset({"model", "engine", "gpu"})
"""Filters without regard to case: who sends a trace and who reads its report may spell them differently."""
_START_OF_NAME = re.compile(r"[0-9a-f]{4,64}")
_TEXT_CHARS = 500
_ERROR_CHARS = 1000
_LABELS = ("name", "model", "engine", "host", "revision", "environment", "recording", "weight_s", "pinned")
_SEARCHED = ("name", "model", "engine", "host", "revision", "environment", "recording", "gpu", "workload", "headline")
Row = TypeVar("Row")
_KEY = re.compile(r"([0-9]{1,18}):([0-9a-f]{64}):([0-9]{0,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a page of the list is asked for; None asks for nothing. Times are epoch milliseconds, until is exclusive."""

    text: str | None = None
    model: str | None = None
    engine: str | None = None
    environment: str | None = None
    host: str | None = None
    gpu: str | None = None
    bound: str | None = None
    state: str | None = None
    recording: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some rows, what to ask for to get the next ones (None: these were the last), and how many there are.

    `total` is counted with the first page; None: there are more than are worth counting.
    """

    rows: Sequence[Row]
    next: str | None
    total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an analysis found, for the list; all of it comes from a stranger's file."""

    gpu: str | None = None
    headline: str | None = None
    bound: str | None = None
    workload: str | None = None
    span_us: float | None = None
    decode_step_us: float | None = None
    tokens_per_s: float | None = None
    quality: str | None = None
    report_id: str | None = None
    analyser: str | None = None
    report_bytes: int | None = None
    redaction: str | None = None


class Traces:
    """The traces in one database."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database

    def add(
        self,
        sha256: str,
        bytes: int,
        text_bytes: int,
        labels: Labels,
        by: str | None,
        now: int,
        redaction: str | None = None,
    ) -> bool:
        """Keep a trace and the job that analyses it, in one transaction; the blob must be in place already.

        False: it was known; the labels that are given replace what was said before.
        """
        row = TraceRow(
            sha256=sha256,
            bytes=bytes,
            text_bytes=text_bytes,
            uploaded_at=now,
            uploaded_by=by,
            state="queued",
            redaction=redaction,
            **{label: getattr(labels, label) for label in _LABELS},
        )
        row.name = labels.name or f"{sha256[:12]}.json"
        row.pinned = bool(labels.pinned)
        row.words = _words(row)
        try:
            with self._database.session() as session:
                known = session.get(TraceRow, sha256)
                if known is None:
                    session.add(row)
                    session.flush()
                    session.add(Job(sha256=sha256, reason="upload", state="queued", not_before=now, created_at=now))
                else:
                    _relabel(known, labels)
                return known is None
        except IntegrityError:  # another process was faster, on a database whose writers run side by side
            with self._database.session() as session:
                _relabel(session.get_one(TraceRow, sha256), labels)
            return False

    def get(self, sha256: str) -> TraceRow | None:
        """The trace with this name."""
        with self._database.reading() as session:
            return session.get(TraceRow, sha256)

    def find(self, search: Search, page: str | None = None, size: int = 50) -> Page[TraceRow]:
        """One page of what matches, newest first; `page` is the `next` of the page before.

        Raises:
            InputError: `page` is none of ours.
        """
        size = max(1, min(size, _LARGEST_PAGE))
        conditions = _conditions(search)
        # The names first: an index can hold all that this asks for, where the rows would have to be read.
        names = select(TraceRow.sha256).where(*conditions)
        with self._database.reading() as session:
            if page is None:
                found, total = _first(session, names, size, bool(search.text))
            else:
                at, sha256, total = _key(page)
                after = names.where(tuple_(TraceRow.uploaded_at, TraceRow.sha256) < tuple_(at, sha256))
                found = session.scalars(after.order_by(*_NEWEST).limit(size + 1)).all()
            rows = session.scalars(select(TraceRow).where(TraceRow.sha256.in_(found[:size])).order_by(*_NEWEST)).all()
        return Page(rows, _token(rows[-1], total) if len(found) > size else None, total)

    def delete(self, sha256: str) -> bool:
        """Forget a trace with its jobs and links; the caller deletes the blobs after that."""
        with self._database.session() as session:
            return bool(changed(session, delete(TraceRow).where(TraceRow.sha256 == sha256)))

    def pin(self, sha256: str, pinned: bool) -> bool:
        """Keep a trace for good, or no longer; False: there is none."""
        query = update(TraceRow).where(TraceRow.sha256 == sha256).values(pinned=pinned)
        with self._database.session() as session:
            return bool(changed(session, query))

    def set_analysed(self, sha256: str, found: Found, now: int, labels: Labels | None = None) -> bool:
        """Keep what an analysis found; `labels`, from the file itself, fill only what nobody has said.

        False: the trace was deleted meanwhile.
        """
        with self._database.session() as session:
            row = session.get(TraceRow, sha256)
            if row is None:
                return False
            for field in Found.__slots__:
                value = getattr(found, field)
                if field == "redaction" and value is None:
                    continue
                setattr(row, field, clean(value, _TEXT_CHARS) if isinstance(value, str) else value)
            for label in _LABELS if labels else ():
                if getattr(row, label) is None:
                    setattr(row, label, getattr(labels, label))
            row.state, row.error, row.analysed_at = "analysed", None, now
            row.words = _words(row)
            return True

    def set_failed(self, sha256: str, error: str) -> bool:
        """Keep why a trace could not be analysed, in one line; a report that is there stays good."""
        query = (
            update(TraceRow)
            .where(TraceRow.sha256 == sha256, TraceRow.analysed_at.is_(None))
            .values(state="failed", error=clean(error, _ERROR_CHARS))
        )
        with self._database.session() as session:
            return bool(changed(session, query))

    def oldest(
        self, limit: int, before_ms: int | None = None, environment: str | None = None, but: Sequence[str] = ()
    ) -> Sequence[TraceRow]:
        """The oldest traces that are not pinned: of one environment, or of all `but` some."""
        query = select(TraceRow).where(*_unpinned(before_ms, environment, but))
        with self._database.reading() as session:
            return session.scalars(query.order_by(TraceRow.uploaded_at).limit(limit)).all()

    def how_many(self, before_ms: int, environment: str | None = None, but: Sequence[str] = ()) -> int:
        """How many traces `oldest` would find without a limit."""
        query = select(func.count()).select_from(TraceRow).where(*_unpinned(before_ms, environment, but))
        with self._database.reading() as session:
            return int(session.scalars(query).one())

    def counts(self) -> dict[str, int]:
        """How many traces there are in each state."""
        query = select(TraceRow.state, func.count()).group_by(TraceRow.state)
        with self._database.reading() as session:
            found = dict(session.execute(query).all())
        return {state: found.get(state, 0) for state in ("queued", "running", "analysed", "failed")}

    def stored_bytes(self) -> int:
        """The bytes of all traces and reports, as the rows say."""
        query = select(func.coalesce(func.sum(TraceRow.bytes + func.coalesce(TraceRow.report_bytes, 0)), 0))
        with self._database.reading() as session:
            return int(session.scalars(query).one())


def _unpinned(before_ms: int | None, environment: str | None, but: Sequence[str]) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [TraceRow.pinned.is_(False)]
    if before_ms is not None:
        conditions.append(TraceRow.uploaded_at < before_ms)
    if environment is not None:
        conditions.append(TraceRow.environment == environment)
    if but:
        conditions.append(func.coalesce(TraceRow.environment, "").not_in(but))
    return conditions


def _relabel(row: TraceRow, labels: Labels) -> None:
    """Whoever sends a trace again may pin it, and not unpin it: that lets it be deleted, which is another scope's."""
    for label in _LABELS:
        value = getattr(labels, label)
        if value is not None and not (label == "pinned" and not value):
            setattr(row, label, value)
    row.words = _words(row)


def _words(row: TraceRow) -> str:
    said = (getattr(row, column) for column in _SEARCHED)
    return "\n".join(text for text in said if text).casefold()[:_SEARCHED_CHARS]


def _conditions(search: Search) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [
        _is(column, value) for column in FILTERS if (value := getattr(search, column)) is not None
    ]
    if search.since_ms is not None:
        conditions.append(TraceRow.uploaded_at >= search.since_ms)
    if search.until_ms is not None:
        conditions.append(TraceRow.uploaded_at < search.until_ms)
    conditions.extend(_mentions(word) for word in (search.text or "").casefold().split()[:_WORDS])
    return conditions


def _is(column: str, value: str) -> ColumnElement[bool]:
    """Both sides by the database's own rule: SQLite folds ASCII letters only."""
    held: ColumnElement[str] = getattr(TraceRow, column)
    return func.lower(held) == func.lower(value) if column in _ANY_CASE else held == value


def _mentions(word: str) -> ColumnElement[bool]:
    mentions = TraceRow.words.contains(word[:_WORD_CHARS], autoescape=True)
    if _START_OF_NAME.fullmatch(word):
        # "g" comes after every hexadecimal digit.
        return or_(mentions, and_(TraceRow.sha256 >= word, TraceRow.sha256 < word + "g"))
    return mentions


def _first(session: Session, names: Select[str], size: int, searched: bool) -> tuple[Sequence[str], int | None]:
    """At least the names of the first page, and how many there are in all.

    A search reads every trace either way, so its names are counted while it does; the others are counted in the index.
    """
    found = session.scalars(names.order_by(*_NEWEST).limit(_COUNTED + 1 if searched else size + 1)).all()
    total = len(found)
    if not searched and total > size:
        total = session.scalars(select(func.count()).select_from(names.limit(_COUNTED + 1).subquery())).one()
    return found, total if total <= _COUNTED else None


def _token(row: TraceRow, total: int | None) -> str:
    """The key of a page's last row, and the total, which is counted once."""
    key = f"{row.uploaded_at}:{row.sha256}:{'' if total is None else total}"
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def _key(page: str) -> tuple[int, str, int | None]:
    try:
        text = base64.urlsafe_b64decode(page + "=" * (-len(page) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    match = _KEY.fullmatch(text)
    if match is None:
        raise InputError("no such page", "start at the first page again")
    return int(match[1]), match[2], int(match[3]) if match[3] else None
