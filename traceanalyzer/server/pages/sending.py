"""Uploading from a browser: the page, and the form that works without JavaScript.

With JavaScript the page hashes each file and sends it as the client does (`PUT /api/v1/traces/{sha256}`). Without, the
form sends its files in one body, which is read part by part; each file goes where a `PUT` would put it, and the server
computes the hash. A file that is refused is told beside the ones that were stored.

What could be wrong: a form has no hash to check against, so a file that a broken browser changes on the way is stored
as it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from traceanalyzer.errors import InputError
from traceanalyzer.report import format as fmt
from traceanalyzer.server import ingest
from traceanalyzer.server.access import rate_key, rates_of
from traceanalyzer.server.bodies import patient
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.pages.lines import path_of
from traceanalyzer.server.pages.multipart import BrokenForm, Part, parts
from traceanalyzer.server.pages.visit import Endpoint, Visit, enter, go, refused
from traceanalyzer.server.pages.words import sentence, text
from traceanalyzer.server.problems import Problem
from traceanalyzer.server.services import Services

_TEXTS = ("model", "engine", "environment", "host", "revision", "recording")
_FIELDS = (*_TEXTS, "weight_s", "pinned")
_HASH_BYTES = 512 << 20
_FIELD_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Field:
    """One label of the form."""

    name: str
    label: str
    kind: str


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one file of a form; `path` is empty where it was not stored."""

    name: str
    told: str
    path: str = ""
    status: int = 201


def upload(visit: Visit) -> Response:
    """The page that takes files."""
    settings = visit.services.settings
    kinds = [*((name, "text") for name in _TEXTS), ("weight_s", "number")]
    return visit.page(
        "upload.html",
        text("upload.title"),
        fields=[Field(name, text(f"upload.{name}"), kind) for name, kind in kinds],
        label_chars=settings.limits.label_chars,
        most=fmt.size(settings.limits.max_body_bytes),
        most_bytes=settings.limits.max_body_bytes,
        hash_bytes=_HASH_BYTES,
        redacted_only=settings.redacted_only,
        example=example(visit),
    )


def example(visit: Visit) -> str:
    """How the same is done in a terminal."""
    key = "upload.example" if visit.caller.token is None else "upload.example_token"
    return text(key, url=visit.address())


def receiving(services: Services) -> Endpoint:
    """The endpoint of the form; its files may be large, so it reads them as they arrive."""

    async def endpoint(request: Request) -> Response:
        visit = await run_in_threadpool(enter, request, services)
        try:
            rates_of(request).request(rate_key(visit.caller, request))
        except Problem as problem:
            return visit.problem(problem)
        answer = await run_in_threadpool(refused, visit, "upload")
        if answer is not None:
            return answer
        limits = services.settings.limits
        sent: list[Sent] = []
        fields: dict[str, str] = {}
        try:
            body = patient(request.stream(), limits)
            async for part in parts(request.headers.get("content-type", ""), body, limits.max_body_bytes):
                if part.filename is None:
                    fields[part.name] = await part.field(_FIELD_BYTES)
                elif part.filename:
                    sent.append(await _received(visit, part, fields))
        except BrokenForm as error:
            sent.append(Sent(text("upload.broken"), sentence(str(error)), status=400))
        except Problem as problem:
            sent.append(Sent(text("upload.broken"), sentence(problem.detail), status=problem.status))
        return _told(visit, sent)

    return endpoint


async def _received(visit: Visit, part: Part, fields: dict[str, str]) -> Sent:
    name = part.filename or ""
    try:
        said = {label: value for label in _FIELDS if (value := fields.get(label))}
        labels = Labels.checked(name=name, **said, chars=visit.services.settings.limits.label_chars)
        kept = await ingest.accept(visit.request, part.content, None, labels, visit.caller)
    except Problem as problem:
        return Sent(name, sentence(problem.detail), status=problem.status)
    except InputError as error:
        return Sent(name, sentence(str(error)), status=422)
    told = text("sent.new") if kept.new else text("sent.known")
    return Sent(name, told, path_of(kept.sha256))


def _told(visit: Visit, sent: list[Sent]) -> Response:
    """One stored file leads to its page; everything else is told as a list."""
    if not sent:
        sent = [Sent(text("upload.title"), text("upload.none"), status=400)]
    if len(sent) == 1 and sent[0].path:
        return go(sent[0].path)
    status = max((file.status for file in sent if not file.path), default=201)
    return visit.page("sent.html", text("sent.title"), status, files=sent)
