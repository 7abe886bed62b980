"""Share links: made, listed and revoked. Who may read a report may show it to others.

What could be wrong: the answer to `POST` is the only place where a link's address stands; whoever logs bodies logs it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from traceanalyzer.server.access import Caller, needs, services_of
from traceanalyzer.server.api.shapes import LinkId, LinkInfo, LinkList, LinkRequest, NewLink, Sha256
from traceanalyzer.server.api.traces import address
from traceanalyzer.server.problems import Problem, documented

router = APIRouter(tags=["links"])
Reader = Annotated[Caller, Depends(needs("read"))]
_COMMON = documented(400, 401, 403, 404, 422, 429, 503)


@router.get("/traces/{sha256}/links", responses=_COMMON)
def list_links(request: Request, sha256: Sha256, _by: Reader) -> LinkList:
    """List the links to a trace's report, ended ones too."""
    services = services_of(request)
    if services.traces.get(sha256) is None:
        raise Problem(404, "there is no such trace")
    return LinkList(links=[LinkInfo.of(link) for link in services.links.of(sha256)])


@router.post("/traces/{sha256}/links", status_code=201, responses={**_COMMON, **documented(507)})
def make_link(request: Request, sha256: Sha256, asked: LinkRequest, by: Reader) -> NewLink:
    """Make a link that opens the trace's report without a token."""
    services = services_of(request)
    if services.traces.get(sha256) is None:
        raise Problem(404, "there is no such trace")
    link, secret = services.links.make(sha256, by.name, asked.expires_s)
    services.audit.note(by.name, "share", sha256, link.id)
    return NewLink(**LinkInfo.of(link).model_dump(), url=f"{address(request)}/s/{secret}")


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
