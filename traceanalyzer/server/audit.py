"""The audit log: who did what to which thing, and when. Rows are added, and go when they are `KEEP_DAYS` old.

What could be wrong: the actor is a token's id or a name that the caller chose; behind a proxy many people may be one.
A clock that jumps ahead makes every row look old.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select

from traceanalyzer.server import paging
from traceanalyzer.server.database.engine import Database, changed
from traceanalyzer.server.database.models import Audit as Entry
from traceanalyzer.server.text import clean, now_ms
from traceanalyzer.server.traces import Page

KEEP_DAYS = 400
"""Longer than a year, so that whoever looks once a year sees all of it."""
_FIELD = 200
_DETAIL = 1000
_BATCH = 5000


class Audit:
    """The log in one database."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database

    def note(self, actor: str, action: str, subject: str, detail: str = "") -> None:
        """Add one row; characters that cannot be seen are written out and long text is cut.

        Where the disk is full or the database busy, the row goes to the log instead: what was done is done.
        """
        row = Entry(
            at=now_ms(),
            actor=clean(actor, _FIELD),
            action=clean(action, _FIELD),
            subject=clean(subject, _FIELD),
            detail=clean(detail, _DETAIL),
        )
        said = f"{row.actor} {row.action} {row.subject} {row.detail}"
        self._database.note(said, lambda session: session.add(row))

    def recent(self, limit: int = 100, subject: str | None = None) -> Sequence[Entry]:
        """The newest rows, newest first."""
        query = select(Entry).order_by(Entry.id.desc()).limit(limit)
        if subject is not None:
            query = query.where(Entry.subject == subject)
        with self._database.reading() as session:
            return session.scalars(query).all()

    def page(self, subject: str | None = None, page: str | None = None, size: int = 50) -> Page[Entry]:
        """One page of the log, newest first, of one thing or of all; `page` is the `next` of the page before.

        Raises:
            InputError: `page` is none of ours.
        """
        wanted = [] if subject is None else [Entry.subject == subject]
        return paging.newest(self._database, Entry, Entry.id, wanted, page, size)

    def forget(self, before_ms: int) -> int:
        """Delete the rows from before a time, epoch milliseconds, oldest first; returns how many.

        In transactions of a bounded size: others may write in between. One that is interrupted goes on the next time.

        Raises:
            Busy, Full: the database cannot be written to.
        """
        old = select(Entry.id).where(Entry.at < before_ms).order_by(Entry.at).limit(_BATCH)
        gone, last = 0, _BATCH
        while last == _BATCH:
            with self._database.session() as session:
                last = changed(session, delete(Entry).where(Entry.id.in_(old)))
            gone += last
        return gone
