"""Share links: made, listed and revoked. Who may read a report may show it to others.

What could be wrong: the answer to `POST` is the only place where a link's address stands; whoever logs bodies logs it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from traceanalyzer.server.access import Caller, needs, services_of
from traceanalyzer.server.api import PREFIX
from traceanalyzer.server.api.shapes import LinkId, LinkInfo, LinkList, LinkRequest, NewLink, Sha256
from traceanalyzer.server.api.traces import address
from traceanalyzer.server.bodies import small
from traceanalyzer.server.problems import Problem, documented

router = APIRouter(prefix=PREFIX, tags=["links"])
Reader = Annotated[Caller, Depends(needs("read"))]
_COMMON = documented(400, 401, 403, 404, 422, 429, 503)
_JSON = "application/json"
_BODY = {"requestBody": {"required": True, "content": {_JSON: {"schema": LinkRequest.model_json_schema()}}}}


@router.get("/traces/{sha256}/links", responses=_COMMON)
def list_links(request: Request, sha256: Sha256, _by: Reader) -> LinkList:
    """List the links to a trace's report, ended ones too."""
    services = services_of(request)
    if services.traces.get(sha256) is None:
        raise Problem(404, "there is no such trace")
    return LinkList(links=[LinkInfo.of(link) for link in services.links.of(sha256)])


@router.post(
    "/traces/{sha256}/links", status_code=201, openapi_extra=_BODY,
    responses={**_COMMON, **documented(408, 413, 415, 507)},
)  # fmt: skip
async def make_link(request: Request, sha256: Sha256, by: Reader) -> NewLink:
    """Make a link that opens the trace's report without a token."""
    asked = await _asked(request)
    return await run_in_threadpool(_made, request, sha256, asked.expires_s, by)


@router.delete(
    "/links/{id}", status_code=204, response_class=Response,
    responses={204: {"description": "It opens nothing any more"}, **_COMMON},
)  # fmt: skip
def revoke_link(request: Request, id: LinkId, by: Reader) -> Response:
    """Revoke a link now."""
    services = services_of(request)
    link = services.links.get(id)
    if link is None or not services.links.revoke(id):
        raise Problem(404, "there is no such link, or it is revoked already")
    services.audit.note(by.name, "revoke", link.sha256, id)
    return Response(status_code=204)


async def _asked(request: Request) -> LinkRequest:
    """What the body says. It is read here and not by FastAPI, which would read all of a stranger's before it asks who.

    Raises:
        Problem: 400, 408, 413, 415 or 422.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        raise Problem(415, f"the body is {_JSON}, and its Content-Type says so")
    body = await small(request, services_of(request).settings.limits)
    try:
        return LinkRequest.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError([{**found, "loc": ("body", *found["loc"])} for found in error.errors()]) from error


def _made(request: Request, sha256: str, expires_s: float | None, by: Caller) -> NewLink:
    services = services_of(request)
    if services.traces.get(sha256) is None:
        raise Problem(404, "there is no such trace")
    link, secret = services.links.make(sha256, by.name, expires_s)
    services.audit.note(by.name, "share", sha256, link.id)
    return NewLink(**LinkInfo.of(link).model_dump(), url=f"{address(request)}/s/{secret}")
