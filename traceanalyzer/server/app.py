"""Puts the server together: the API, the pages, and what stands before both.

From the outside in: the request log, the headers, the draining of unwanted bodies, the gate (hosts, other sites, tokens
in addresses), then FastAPI. The log and the headers are outside of FastAPI's own error handling, so that an answer
about a failure has them too.

What could be wrong: another ASGI application that mounts this one gets none of the rules for paths it serves itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.types import ASGIApp

from traceanalyzer import __version__
from traceanalyzer.server import problems
from traceanalyzer.server.api import PREFIX, links, reports, state, traces
from traceanalyzer.server.gate import Drained, Gate
from traceanalyzer.server.headers import SecurityHeaders
from traceanalyzer.server.ingest import Ingest
from traceanalyzer.server.limits import Rates
from traceanalyzer.server.logs import RequestLog
from traceanalyzer.server.metrics import Metrics
from traceanalyzer.server.pages import router as pages
from traceanalyzer.server.services import Services
from traceanalyzer.server.sessions import Sessions

if TYPE_CHECKING:
    from traceanalyzer.server.queue import Queue

_ABOUT = "Keeps PyTorch profiler traces, analyses them and shares the reports. Errors are RFC 9457 problems."


class Application(FastAPI):
    """FastAPI inside of our own middleware."""

    def build_middleware_stack(self) -> ASGIApp:
        """Ours outermost, also around the answers to failures."""
        services: Services = self.state.services
        https = (services.settings.public_url or "").startswith("https:")
        inner = Drained(Gate(super().build_middleware_stack(), services.settings))
        return RequestLog(SecurityHeaders(inner, https), self.state.metrics)


def create_app(services: Services, queue: Queue | None = None) -> FastAPI:
    """The application over `services`; `queue` is told about new jobs."""
    app = Application(
        title="traceanalyzer", version=__version__, description=_ABOUT,
        openapi_url=f"{PREFIX}/openapi.json", docs_url=None, redoc_url=None, redirect_slashes=False,
    )  # fmt: skip
    app.state.services = services
    app.state.queue = queue
    app.state.rates = Rates(services.settings.limits)
    app.state.metrics = Metrics(services)
    app.state.sessions = Sessions.open(services.settings.secret_path)
    app.state.ingest = Ingest(services)
    problems.install(app)
    for module in (traces, reports, links, state):
        app.include_router(module.router)
    app.add_api_route("/metrics", state.metrics, include_in_schema=False, methods=["GET"])
    app.include_router(pages(services))
    return app
