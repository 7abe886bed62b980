"""Health, version and metrics. The first two need no token and tell nothing about what is stored.

What could be wrong: health asks the database and the worker threads, not the disk or the blobs.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy.exc import SQLAlchemyError

from traceanalyzer import __version__
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.server import metrics as prometheus
from traceanalyzer.server.access import Caller, needs, services_of
from traceanalyzer.server.api import PREFIX
from traceanalyzer.server.api.shapes import Health, Version
from traceanalyzer.server.problems import Problem, documented

router = APIRouter(prefix=PREFIX, tags=["state"])
_TEXT = {"text/plain": {"schema": {"type": "string"}}}
Reader = Annotated[Caller, Depends(needs("read"))]


@router.get("/health", responses=documented(400, 503))
def health(request: Request) -> Health:
    """Say whether the server can work."""
    try:
        services_of(request).database.ping()
    except (SQLAlchemyError, TraceAnalyzerError) as error:
        raise Problem(503, "the database does not answer") from error
    queue = request.app.state.queue
    if queue is not None and queue.workers < services_of(request).settings.workers:
        raise Problem(503, "an analysis thread has ended")
    return Health(status="ok")


@router.get("/version", responses=documented(400))
def version(request: Request) -> Version:
    """Say what the server is and what it takes."""
    settings = services_of(request).settings
    return Version(
        version=__version__, api=1, redacted_only=settings.redacted_only,
        max_body_bytes=settings.limits.max_body_bytes,
    )  # fmt: skip


@router.get(
    "/metrics", response_class=Response,
    responses={200: {"description": "Prometheus' text format", "content": _TEXT},
               **documented(400, 401, 403, 429, 503)},
)  # fmt: skip
def metrics(request: Request, _by: Reader) -> Response:
    """Fetch the metrics."""
    found: prometheus.Metrics = request.app.state.metrics
    return Response(found.text(), media_type=prometheus.MEDIA_TYPE)
