"""Share links: making and revoking them, and the page that a stranger with a link sees.

A link's page shows one report in a frame and leads nowhere else. What could be wrong: whoever opens a link has its
address in the browser's history, as with every page.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Response
from fastapi.responses import StreamingResponse

from traceanalyzer.errors import InputError
from traceanalyzer.server.blobs import key_of_report
from traceanalyzer.server.database.models import Link
from traceanalyzer.server.headers import report_headers
from traceanalyzer.server.pages import rendering
from traceanalyzer.server.pages.lines import path_of, trace_line
from traceanalyzer.server.pages.moments import moment
from traceanalyzer.server.pages.visit import NothingHere, Visit, go
from traceanalyzer.server.pages.words import text

_DAY_S = 86400
_LIFETIMES = {"day": _DAY_S, "week": 7 * _DAY_S, "month": 30 * _DAY_S, "quarter": 90 * _DAY_S, "never": None}
_USUAL = "month"
SCOPE = "read"
"""Who may read a report may show it to others."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a link works, as a choice of the form."""

    value: str
    label: str
    chosen: bool


def lifetimes() -> list[Lifetime]:
    """What the form that makes a link offers."""
    return [Lifetime(key, text(f"share.{key}"), key == _USUAL) for key in _LIFETIMES]


def may_share(visit: Visit) -> bool:
    """Whether the caller makes and revokes links."""
    return visit.may(SCOPE)


def share(visit: Visit) -> Response:
    """Make a link and show it, this once: the server keeps only its hash, so no page can lead to it later."""
    row = visit.trace()
    lifetime = visit.form.get("expires", _USUAL)
    if lifetime not in _LIFETIMES:
        raise InputError("a link has no such lifetime")
    link, secret = visit.services.links.make(row.sha256, visit.caller.name, _LIFETIMES[lifetime])
    visit.note("share", row.sha256, link.id)
    return visit.page(
        "link.html",
        text("link.title"),
        201,
        line=trace_line(row, visit.now),
        url=f"{visit.address()}/s/{secret}",
        ends=None if link.expires_at is None else moment(link.expires_at, visit.now),
    )


def revoke(visit: Visit) -> Response:
    """End a link."""
    link = visit.services.links.get(visit.part("id"))
    if link is None:
        raise NothingHere
    if visit.services.links.revoke(link.id):
        visit.note("revoke", link.sha256, link.id)
    return go(f"{path_of(link.sha256)}#share")


def shared(visit: Visit) -> Response:
    """What a stranger with a link sees."""
    link = _opened(visit, counted=True)
    if link is None:
        return _gone(visit)
    row = visit.services.traces.get(link.sha256)
    if row is None or row.analysed_at is None:
        return _answer(visit, 404, "shared.waiting", told=text("shared.waiting_told"))
    visit.note("open", link.sha256, link.id)
    return visit.page(
        "shared.html",
        row.headline or text("shared.title"),
        headers=_HEADERS,
        report=f"{visit.request.url.path}/report",
        ends=None if link.expires_at is None else moment(link.expires_at, visit.now),
    )


def shared_report(visit: Visit) -> Response:
    """The report behind a link, as the frame asks for it."""
    link = _opened(visit, counted=False)
    if link is None:
        return _gone(visit)
    try:
        pieces = visit.services.blobs.open(key_of_report(link.sha256, "page.html"))
    except FileNotFoundError:
        return _answer(visit, 404, "shared.waiting", told=text("shared.waiting_told"))
    return StreamingResponse(pieces, media_type="text/html; charset=utf-8", headers=report_headers())


_HEADERS = {"Content-Security-Policy": rendering.POLICY, "Referrer-Policy": "no-referrer"}


def _opened(visit: Visit, counted: bool) -> Link | None:
    return visit.services.links.open(visit.part("secret"), visit.now, counted)


def _gone(visit: Visit) -> Response:
    """One wording for every link that opens nothing; the status tells one that did from one that never did."""
    status = 410 if visit.services.links.known(visit.part("secret")) else 404
    return _answer(visit, status, "shared.gone", told=text("shared.gone_told"))


def _answer(visit: Visit, status: int, title: str, told: str) -> Response:
    return visit.page("message.html", text(title), status, headers=_HEADERS, told=told, path="", path_label="")
