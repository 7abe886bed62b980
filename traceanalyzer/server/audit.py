"""The audit log: who did what to which thing, and when. Rows are only ever added.

What could be wrong: the actor is a token's id or a name that the caller chose; behind a proxy many people may be one.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from traceanalyzer.server.database.engine import Database
from traceanalyzer.server.database.models import Audit as Entry
from traceanalyzer.server.text import clean, now_ms

_FIELD = 200
_DETAIL = 1000


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
