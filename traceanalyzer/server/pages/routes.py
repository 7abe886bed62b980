"""Which address is whose. Pages are no part of the API: they are not in its description, and may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from traceanalyzer.server.pages import audit, jobs, listing, rendering, sending, sharing, signing, trace
from traceanalyzer.server.pages.visit import Page, page
from traceanalyzer.server.services import Services

_SHOWN = ("GET", "HEAD")
_FOR_GOOD = "public, max-age=31536000, immutable"


def router(services: Services) -> APIRouter:
    """Every page of a server."""
    made = APIRouter(include_in_schema=False)
    shown: tuple[tuple[str, Page, str | None], ...] = (
        ("/", listing.traces, "read"),
        ("/t/{sha256}", trace.trace, "read"),
        ("/t/{sha256}/delete", trace.ask_to_delete, "delete"),
        ("/upload", sending.upload, "upload"),
        ("/jobs", jobs.jobs, "read"),
        ("/audit", audit.audit, "admin"),
        ("/login", signing.login, None),
        ("/s/{secret}", sharing.shared, None),
        ("/s/{secret}/report", sharing.shared_report, None),
    )
    done: tuple[tuple[str, Page, str | None], ...] = (
        ("/t/{sha256}/share", sharing.share, sharing.SCOPE),
        ("/t/{sha256}/pin", trace.pin, "upload"),
        ("/t/{sha256}/unpin", trace.unpin, "delete"),
        ("/t/{sha256}/analyse", trace.analyse, "upload"),
        ("/t/{sha256}/delete", trace.delete, "delete"),
        ("/links/{id}/revoke", sharing.revoke, sharing.SCOPE),
        ("/jobs/{id}/retry", jobs.retry, "upload"),
        ("/login", signing.signed_in, None),
        ("/logout", signing.logout, None),
    )
    for path, function, scope in shown:
        _add(made, path, page(function, services, scope), _SHOWN)
    for path, function, scope in done:
        _add(made, path, page(function, services, scope), ("POST",))
    _add(made, "/upload", sending.receiving(services), ("POST",))
    _add(made, "/static/{name}", _static, _SHOWN)
    return made


def _add(made: APIRouter, path: str, endpoint: Callable[..., Any], methods: Sequence[str]) -> None:
    """As a route of FastAPI's: it leaves in the request which it is, so that the log and the metrics can tell."""
    made.add_api_route(path, endpoint, methods=list(methods), include_in_schema=False, response_class=Response)


def _static(request: Request) -> Response:
    found = rendering.content(request.url.path)
    if found is None:
        return Response(status_code=404)
    content, media_type = found
    return Response(content, media_type=media_type, headers={"Cache-Control": _FOR_GOOD})
