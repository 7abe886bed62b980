"""The traces: storing, fetching, deleting and listing them.

What could be wrong: a `PUT` of a trace that is stored already is answered without reading the body, so it says nothing
about the bytes the client holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from traceanalyzer.server import ingest, storing
from traceanalyzer.server.access import Caller, needs, services_of
from traceanalyzer.server.api import PREFIX
from traceanalyzer.server.api.shapes import LabelsQuery, SearchQuery, Sha256, Stored, TraceInfo, TraceList
from traceanalyzer.server.blobs import key_of_trace
from traceanalyzer.server.database.models import Trace
from traceanalyzer.server.headers import attachment
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.problems import Problem, documented
from traceanalyzer.server.services import Services
from traceanalyzer.server.traces import Search
from traceanalyzer.trace.unpack import GZIP

STATE = "X-Traceanalyzer-State"
router = APIRouter(prefix=PREFIX, tags=["traces"])
Uploader = Annotated[Caller, Depends(needs("upload"))]
Reader = Annotated[Caller, Depends(needs("read"))]
Looker = Annotated[Caller, Depends(needs("read", "upload"))]
Deleter = Annotated[Caller, Depends(needs("delete"))]

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BODY = {"requestBody": {"required": True, "content": {"application/octet-stream": _BINARY}}}
_STATE_HEADER = {STATE: {"description": "queued, running, analysed or failed", "schema": {"type": "string"}}}
_RAW = {"content": {"application/octet-stream": _BINARY, "application/gzip": _BINARY}}
_COMMON = documented(400, 401, 403, 422, 429, 503)


@router.put(
    "/traces/{sha256}", status_code=201, response_model=Stored, openapi_extra=_BODY,
    responses={
        200: {"model": Stored, "description": "It was stored already; the labels are new"},
        201: {"description": "It is stored, and will be analysed"},
        **_COMMON, **documented(408, 413, 415, 507),
    },
)  # fmt: skip
async def put_trace(
    request: Request, sha256: Sha256, labels: Annotated[LabelsQuery, Query()], by: Uploader
) -> Response:
    """Store a trace: the body is the file as it is, JSON or JSON compressed with gzip or zstd."""
    chars = services_of(request).settings.limits.label_chars
    checked = Labels.checked(**labels.model_dump(), chars=chars)
    kept = await ingest.accept(request, request.stream(), sha256, checked, by)
    stored = Stored(sha256=kept.sha256, state=kept.state, bytes=kept.bytes, url=f"{address(request)}/t/{kept.sha256}")
    return JSONResponse(stored.model_dump(), 201 if kept.new else 200)


@router.head(
    "/traces/{sha256}", response_class=Response,
    responses={200: {"description": "It is stored", "headers": _STATE_HEADER}, **documented(404), **_COMMON},
)  # fmt: skip
def head_trace(request: Request, sha256: Sha256, _by: Looker) -> Response:
    """Say whether a trace is stored."""
    services = services_of(request)
    row = _found(services, sha256)
    if services.blobs.size(key_of_trace(sha256)) is None:  # lost: a client that hears so sends it again
        raise _none()
    return Response(headers={STATE: row.state, "Content-Length": str(row.bytes), **_raw_headers(row)})


@router.get(
    "/traces/{sha256}", response_class=Response,
    responses={200: {"description": "The bytes that were stored", "headers": _STATE_HEADER, **_RAW},
               **documented(404), **_COMMON},
)  # fmt: skip
def get_trace(request: Request, sha256: Sha256, by: Reader) -> Response:
    """Fetch a trace, byte by byte what was stored, as a download."""
    services = services_of(request)
    row = _found(services, sha256)
    try:
        pieces = services.blobs.open(key_of_trace(sha256))
        first = next(pieces, b"")
    except FileNotFoundError as error:
        raise _none() from error
    services.audit.note(by.name, "download", sha256)
    media_type = "application/gzip" if first.startswith(GZIP) else "application/octet-stream"
    headers = {STATE: row.state, "Content-Length": str(row.bytes), **_raw_headers(row)}
    return StreamingResponse(_after(first, pieces), media_type=media_type, headers=headers)


@router.delete(
    "/traces/{sha256}", status_code=204, response_class=Response,
    responses={204: {"description": "It is gone, with its report and links"}, **documented(404), **_COMMON},
)  # fmt: skip
def delete_trace(request: Request, sha256: Sha256, by: Deleter) -> Response:
    """Delete a trace with its report and links."""
    services = services_of(request)
    if not storing.forget(services, sha256):
        raise _none()
    services.audit.note(by.name, "delete", sha256)
    return Response(status_code=204)


@router.get("/traces", responses=_COMMON)
def list_traces(request: Request, query: Annotated[SearchQuery, Query()], _by: Reader) -> TraceList:
    """List traces, newest first."""
    services = services_of(request)
    limits = services.settings.limits
    search = Search(
        text=query.q, model=query.model, engine=query.engine, environment=query.environment, host=query.host,
        gpu=query.gpu, bound=query.bound, recording=query.recording, state=query.state,
        since_ms=query.since, until_ms=query.until,
    )  # fmt: skip
    page = services.traces.find(search, query.after, min(query.size or limits.page_size, limits.max_page_size))
    return TraceList(traces=[TraceInfo.of(row) for row in page.rows], next=page.next, total=page.total)


def address(request: Request) -> str:
    """The address of this server, as the world knows it, without a slash at its end."""
    return (services_of(request).settings.public_url or str(request.base_url)).rstrip("/")


def _found(services: Services, sha256: str) -> Trace:
    row = services.traces.get(sha256)
    if row is None:
        raise _none()
    return row


def _none() -> Problem:
    return Problem(404, "there is no such trace")


def _raw_headers(row: Trace) -> dict[str, str]:
    return {"Content-Disposition": attachment(row.name), "Content-Security-Policy": "default-src 'none'; sandbox"}


def _after(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    return chain((first,), rest)
