"""The page of the audit log: who did what to which thing, and when; for admins.

What could be wrong: a token's name is what it is called now, and may have been given to several; its id tells them
apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlencode

from fastapi import Response

from traceanalyzer.server.audit import KEEP_DAYS
from traceanalyzer.server.database.models import Audit as Entry
from traceanalyzer.server.pages.lines import named, path_of
from traceanalyzer.server.pages.moments import Moment, moment
from traceanalyzer.server.pages.visit import Visit
from traceanalyzer.server.pages.words import text

_TRACE = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"[0-9a-f]{12}")
_SHORT = 12
_LONGEST_SUBJECT = 200
_HERE = "/audit"


@dataclass(frozen=True, slots=True)
class Named:
    """Somebody or something: the name that readers know, where there is one, and the id that the log has.

    path: its page, if it has one. log: the log of it alone.
    """

    name: str
    id: str
    path: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One row of the log."""

    when: Moment
    who: Named
    what: str
    which: Named
    detail: str


def audit(visit: Visit) -> Response:
    """The newest rows, of one thing or of all."""
    subject = visit.asked("subject")[:_LONGEST_SUBJECT]
    after = visit.asked("after") or None
    found = visit.services.audit.page(subject or None, after, visit.services.settings.limits.page_size)
    names = _Names(visit)
    return visit.page(
        "audit.html",
        text("audit.title"),
        subject=subject,
        lines=[_line(row, names, visit.now) for row in found.rows],
        next=_address(subject=subject, after=found.next) if found.next else "",
        first=_address(subject=subject) if after else "",
        here=_HERE,
        days=KEEP_DAYS,
        longest=_LONGEST_SUBJECT,
    )


def _line(row: Entry, names: _Names, now: int) -> AuditLine:
    return AuditLine(
        when=moment(row.at, now),
        who=names.who(row.actor),
        what=named("audit.did", row.action),
        which=names.which(row.subject),
        detail=row.detail,
    )


class _Names:
    """Looks every token and trace of a page up once."""

    def __init__(self, visit: Visit) -> None:
        self._services = visit.services
        self._known: dict[str, str | None] = {}

    def who(self, actor: str) -> Named:
        name = self._name(actor)
        return Named(name, actor) if name else Named(named("audit.who", actor), "")

    def which(self, subject: str) -> Named:
        name, is_trace = self._name(subject), _TRACE.fullmatch(subject)
        return Named(
            name=name or "",
            id=subject[:_SHORT] if is_trace else subject,
            path=path_of(subject) if is_trace and name else "",
            log=_address(subject=subject),
        )

    def _name(self, id: str) -> str | None:
        if id not in self._known:
            self._known[id] = self._looked_up(id)
        return self._known[id]

    def _looked_up(self, id: str) -> str | None:
        """What a trace or a token is called; None: it is neither, or is gone."""
        if _TRACE.fullmatch(id):
            row = self._services.traces.get(id)
            return None if row is None else row.name or id[:_SHORT]
        token = self._services.tokens.get(id) if _TOKEN.fullmatch(id) else None
        return None if token is None else token.name


def _address(**query: str | None) -> str:
    given = {key: value for key, value in query.items() if value}
    return f"{_HERE}?{urlencode(given)}" if given else _HERE
