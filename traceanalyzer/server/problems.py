"""What the API says when it refuses: `application/problem+json` (RFC 9457), the same shape for every error.

An error is raised as `Problem` wherever it is found and becomes an answer in one place. What could be wrong: `detail`
may quote what a client sent, so it is JSON and never HTML.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from traceanalyzer.errors import InputError
from traceanalyzer.report.text_safety import shorten, visible
from traceanalyzer.server.database.engine import Busy, Full

MEDIA_TYPE = "application/problem+json"
BUSY_RETRY_S = 2
_DETAIL_CHARS = 400
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Problem(Exception):
    """A request that is refused.

    Args:
        status: the HTTP status.
        detail: what is wrong and what to do, in one line.
        headers: more headers of the answer, such as Retry-After.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        """Keep what the answer is made of."""
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})


class ProblemBody(BaseModel):
    """The body of an error (RFC 9457)."""

    type: str = Field(description="`about:blank`: the status says what kind of problem it is")
    title: str = Field(description="the status in words")
    status: int = Field(description="the HTTP status")
    detail: str = Field(description="what is wrong and what to do, in one line")


def response(problem: Problem) -> Response:
    """The answer that tells a problem."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": shorten(visible(problem.detail[: 4 * _DETAIL_CHARS]), _DETAIL_CHARS),
    }
    return JSONResponse(body, problem.status, problem.headers, MEDIA_TYPE)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What a route's OpenAPI says about the problems it can answer with."""
    reference = {"$ref": "#/components/schemas/ProblemBody"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": reference}}}
        for status in statuses
    }


def of_disk(error: OSError) -> Problem | None:
    """The problem that a full disk is; None for any other error."""
    if error.errno in _NO_SPACE:
        return Problem(507, "the server's disk is full; nothing was stored")
    return None


def install(app: FastAPI) -> None:
    """Let every error of `app` be answered as a problem."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(InputError, _input)
    app.add_exception_handler(Busy, _busy)
    app.add_exception_handler(Full, _full)
    app.add_exception_handler(OSError, _os)
    app.add_exception_handler(Exception, _unexpected)


def _problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return response(error)


def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return response(Problem(error.status_code, str(error.detail), error.headers))


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    told = "; ".join(f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}" for found in error.errors()[:3])
    return response(Problem(422, told or "the request is not as documented"))


def _input(_request: Request, error: Exception) -> Response:
    return response(Problem(422, str(error)))


def _busy(_request: Request, _error: Exception) -> Response:
    return response(Problem(503, "the database is busy; try again", {"Retry-After": str(BUSY_RETRY_S)}))


def _full(_request: Request, _error: Exception) -> Response:
    return response(Problem(507, "the server's disk is full; nothing was stored"))


def _os(_request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    problem = of_disk(error)
    if problem is None:
        raise error
    return response(problem)


def _unexpected(_request: Request, _error: Exception) -> Response:
    return response(Problem(500, "the server failed; its log says why"))
