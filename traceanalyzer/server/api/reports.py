"""A trace's report: the stored renderings, as the analysis wrote them.

What could be wrong: while a trace is analysed again by a newer version, the report of the older one is served; the
report itself says which version made it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from traceanalyzer.server.access import Caller, needs, services_of
from traceanalyzer.server.api import PREFIX
from traceanalyzer.server.api.shapes import Sha256, TraceState
from traceanalyzer.server.api.traces import STATE
from traceanalyzer.server.blobs import key_of_report
from traceanalyzer.server.headers import report_headers
from traceanalyzer.server.problems import Problem, documented

Format = Literal["html", "json", "md"]
RETRY_S = 2
router = APIRouter(prefix=PREFIX, tags=["reports"])
Reader = Annotated[Caller, Depends(needs("read"))]

_KINDS: dict[Format, tuple[str, str]] = {
    "html": ("page.html", "text/html; charset=utf-8"),
    "json": ("report.json", "application/json"),
    "md": ("report.md", "text/markdown; charset=utf-8"),
}
_TEXT = {"schema": {"type": "string"}}
_CONTENT = {"application/json": {"schema": {}}, "text/html": _TEXT, "text/markdown": _TEXT}


@router.get(
    "/traces/{sha256}/report", response_class=Response,
    responses={
        200: {"description": "The report", "content": _CONTENT},
        202: {"description": "The analysis has not ended; ask again", "model": TraceState},
        **documented(400, 401, 403, 404, 422, 429, 503),
    },
)  # fmt: skip
def get_report(
    request: Request, sha256: Sha256, by: Reader,
    format: Annotated[Format, Query(description="the rendering")] = "html",
) -> Response:  # fmt: skip
    """Fetch a trace's report; 422 with the reason where the analysis failed."""
    services = services_of(request)
    row = services.traces.get(sha256)
    if row is None:
        raise Problem(404, "there is no such trace")
    kind, media_type = _KINDS[format]
    try:
        pieces = services.blobs.open(key_of_report(sha256, kind))
    except FileNotFoundError:
        if row.state == "failed":
            raise Problem(422, f"the trace cannot be analysed: {row.error or 'no reason is known'}") from None
        waiting = TraceState(sha256=sha256, state=row.state).model_dump()
        return JSONResponse(waiting, 202, {"Retry-After": str(RETRY_S), STATE: row.state})
    services.audit.note(by.name, "view", sha256, format)
    headers = {STATE: row.state, **(report_headers() if format == "html" else {})}
    return StreamingResponse(pieces, media_type=media_type, headers=headers)
