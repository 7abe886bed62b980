"""Who asks, and what they may do: a Bearer token, a browser's session, or this machine while no token exists.

Until the first token is made, everybody on the loopback interface may do everything. A request that a proxy passed on
comes from elsewhere, whatever its address is, and is nobody. What could be wrong: a proxy on this machine that says
nothing about itself makes its clients look local; make a token before you put one in front.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from traceanalyzer.server.database.models import Token
from traceanalyzer.server.limits import Rates
from traceanalyzer.server.problems import Problem
from traceanalyzer.server.services import Services
from traceanalyzer.server.sessions import COOKIE, Sessions
from traceanalyzer.server.text import now_ms
from traceanalyzer.server.tokens import SCOPES, usable

LOCAL = "local"
"""The name of everybody on this machine while no token exists."""

_PASSED_ON = frozenset({"forwarded", "via", "x-real-ip", "cf-connecting-ip", "true-client-ip"})
_PASSED_ON_PREFIX = "x-forwarded-"
_bearer = HTTPBearer(auto_error=False, bearerFormat="ta_<id>_<secret>", description="made by `traceanalyzer token`")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    token: Token | None
    scopes: frozenset[str]
    name: str
    """For the audit log: a token's id, `local`, or `-` for nobody."""

    @classmethod
    def of(cls, token: Token) -> Caller:
        """Whoever holds a token that is good."""
        return cls(token, frozenset(token.scopes.split(",")), token.id)

    def may(self, scope: str) -> bool:
        """Whether the caller has a scope, by itself or as an admin."""
        return bool(self.scopes & {scope, "admin"})


NOBODY = Caller(None, frozenset(), "-")
_LOCAL_CALLER = Caller(None, frozenset(SCOPES), LOCAL)


def services_of(request: Request) -> Services:
    """What the application works with."""
    services: Services = request.app.state.services
    return services


def rates_of(request: Request) -> Rates:
    """The rates of the application."""
    rates: Rates = request.app.state.rates
    return rates


def caller(request: Request) -> Caller:
    """Who sent this request; reads the database, so call it in a thread. Nobody is `NOBODY`, not an error."""
    known: Caller | None = getattr(request.state, "caller", None)
    if known is None:
        known = request.state.caller = _identified(request, services_of(request))
    return known


def needs(*scopes: str) -> Callable[..., Caller]:
    """A dependency that lets only callers with one of the scopes through, as often as the limits allow.

    Raises:
        Problem: 401 without a good token, 403 without a scope, 429 too often.
    """

    def check(
        request: Request, _shown: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None
    ) -> Caller:
        found = caller(request)
        if not found.scopes:
            rates_of(request).failed(address_of(request))
            raise Problem(401, "a valid token is needed: Authorization: Bearer ta_...", {"WWW-Authenticate": "Bearer"})
        rates_of(request).request(rate_key(found, request))
        if not any(found.may(scope) for scope in scopes):
            raise Problem(403, f"this token does not have the scope {' or '.join(scopes)}")
        return found

    return check


def rate_key(found: Caller, request: Request) -> str:
    """Whose bucket a request is counted in."""
    return found.token.id if found.token else address_of(request)


def address_of(request: Request) -> str:
    """The address of whoever opened the connection: of the proxy for everybody behind one.

    What a proxy says of its clients is not believed, as everybody on this machine could say it and so be somebody new
    for every try. Those behind a proxy therefore share the limit of requests without a good token.
    """
    return request.client.host if request.client else "-"


def session_token(request: Request, services: Services) -> Token | None:
    """The token of a browser's session, if its cookie is ours and the token still good."""
    cookie = request.cookies.get(COOKIE)
    sessions: Sessions = request.app.state.sessions
    session = sessions.read(cookie) if cookie else None
    token = services.tokens.get(session.token_id) if session else None
    if session is None or token is None or not session.matches(token.hash) or not usable(token, now_ms()):
        return None
    return token


def is_local(request: Request) -> bool:
    """Whether the request comes from this machine and nobody passed it on."""
    if request.client is None or any(map(_tells_of_a_proxy, request.headers)):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _tells_of_a_proxy(header: str) -> bool:
    return header in _PASSED_ON or header.startswith(_PASSED_ON_PREFIX)


def _identified(request: Request, services: Services) -> Caller:
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, text = header.partition(" ")
        token = services.tokens.check(text.strip()) if scheme.lower() == "bearer" else None
    else:
        token = session_token(request, services)
    if token is not None:
        return Caller.of(token)
    if not services.tokens.any_active() and is_local(request):  # whatever a header says: there is nothing to compare
        return _LOCAL_CALLER
    return NOBODY
