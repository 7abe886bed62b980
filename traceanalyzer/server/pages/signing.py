"""Signing in with a token and out again. The token is checked once; then the browser holds a session (`sessions`).

What could be wrong: signing out makes this browser forget its session; a copy of the cookie works until its twelve
hours are over or the token is revoked.
"""

from __future__ import annotations

import re

from fastapi import Response

from traceanalyzer.server.access import address_of, rates_of
from traceanalyzer.server.pages.visit import Visit, go
from traceanalyzer.server.pages.words import text
from traceanalyzer.server.sessions import COOKIE, MAX_AGE_S, Sessions

_OWN_PATH = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*")
_PATH_CHARS = 2000


def login(visit: Visit) -> Response:
    """The form that takes a token."""
    return _form(visit, _own(visit.asked("next")))


def signed_in(visit: Visit) -> Response:
    """Open a session for a token that is good, and lead back to where the browser came from."""
    back = _own(visit.form.get("next", ""))
    token = visit.services.tokens.check(visit.form.get("token", "").strip())
    if token is None:
        rates_of(visit.request).failed(address_of(visit.request))
        return _form(visit, back, text("login.wrong"), 403)
    visit.services.audit.note(token.id, "login", token.id)
    sessions: Sessions = visit.request.app.state.sessions
    answer = go(back)
    answer.set_cookie(
        COOKIE,
        sessions.make(token.id, token.hash),
        max_age=MAX_AGE_S,
        path="/",
        secure=visit.address().startswith("https:"),
        httponly=True,
        samesite="lax",
    )
    return answer


def logout(visit: Visit) -> Response:
    """Let the browser forget its session."""
    answer = go("/login")
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")
    return answer


def _form(visit: Visit, back: str, wrong: str = "", status: int = 200) -> Response:
    return visit.page("login.html", text("login.title"), status, next=back, wrong=wrong)


def _own(path: str) -> str:
    """A path of this server to go back to; whatever could lead elsewhere is the list."""
    return path if len(path) <= _PATH_CHARS and _OWN_PATH.fullmatch(path) else "/"
