"""One request to a page: who asks, what they may do, and the answers a page can give.

A page is a plain function of a `Visit`; it runs in a thread, for it reads the database. `page` makes it an endpoint
that knows who may come in: without a session it leads to the sign-in page, without the scope it says so.

What could be wrong: forms are told from a stranger's by the request's own headers, which the server's middleware
checks; nothing here would notice if that were left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse

from traceanalyzer import __version__
from traceanalyzer.errors import InputError
from traceanalyzer.server.access import Caller, caller, rate_key, rates_of
from traceanalyzer.server.api.traces import address
from traceanalyzer.server.bodies import small
from traceanalyzer.server.pages import rendering
from traceanalyzer.server.pages.words import sentence, text
from traceanalyzer.server.problems import Problem
from traceanalyzer.server.services import Services
from traceanalyzer.server.text import now_ms
from traceanalyzer.server.traces import TraceRow

_FIELDS = 20
_SCOPES = ("upload", "read", "delete")


class NothingHere(Exception):
    """The address leads to nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """One entry of the navigation."""

    path: str
    label: str


@dataclass(frozen=True, slots=True)
class Frame:
    """What every page shows around its content."""

    title: str
    here: str
    places: tuple[Place, ...]
    signed_in: bool
    name: str
    open_to_all: bool
    may: Mapping[str, bool]
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to a page; `form` holds the fields that were posted, `now` is in epoch milliseconds."""

    request: Request
    services: Services
    caller: Caller
    form: Mapping[str, str]
    now: int

    def may(self, scope: str) -> bool:
        """Whether the caller has a scope."""
        return self.caller.may(scope)

    def part(self, name: str) -> str:
        """A part of the address."""
        return str(self.request.path_params[name])

    def asked(self, name: str) -> str:
        """A value of the address's query, trimmed; empty where there is none."""
        return self.request.query_params.get(name, "").strip()

    def address(self) -> str:
        """The address of this server, as the world knows it, without a slash at its end."""
        return address(self.request)

    def page(
        self, template: str, title: str, status: int = 200, headers: Mapping[str, str] | None = None, **context: object
    ) -> Response:
        """A page of its own; `headers` replace what pages are sent with."""
        made = rendering.render(template, page=self._frame(title), **context)
        return HTMLResponse(made, status, headers={**rendering.HEADERS, **(headers or {})})

    def message(self, status: int, title: str, told: str, link: Place | None = None) -> Response:
        """A page that says one thing."""
        where = link or Place("/", text("wrong.list"))
        return self.page("message.html", title, status, told=told, path=where.path, path_label=where.label)

    def problem(self, problem: Problem) -> Response:
        """A page that says why the request is refused."""
        return self.message(problem.status, text("wrong.400"), sentence(problem.detail))

    def trace(self) -> TraceRow:
        """The trace that the address names.

        Raises:
            NothingHere: there is none.
        """
        row = self.services.traces.get(self.part("sha256"))
        if row is None:
            raise NothingHere
        return row

    def note(self, action: str, subject: str, detail: str = "") -> None:
        """Keep in the audit log what the caller did."""
        self.services.audit.note(self.caller.name, action, subject, detail)

    def analyse(self, sha256: str) -> None:
        """Have a trace analysed again.

        Raises:
            InputError: there is none.
        """
        self.services.jobs.requeue(sha256, "manual")
        self.note("analyse", sha256)
        wake(self.request)

    def _frame(self, title: str) -> Frame:
        may = {scope: self.may(scope) for scope in _SCOPES}
        signed_in = self.caller.token is not None
        places = [
            *([Place("/", text("nav.list"))] if may["read"] else []),
            *([Place("/upload", text("nav.upload"))] if may["upload"] else []),
            *([Place("/jobs", text("nav.jobs"))] if may["read"] else []),
            *([Place("/audit", text("nav.audit"))] if self.may("admin") else []),
            *([] if any(may.values()) else [Place("/login", text("nav.login"))]),
        ]
        return Frame(
            title=title,
            here=self.request.url.path,
            places=tuple(places),
            signed_in=signed_in,
            name=self.caller.token.name if self.caller.token else "",
            open_to_all=any(may.values()) and not signed_in,
            may=may,
        )


Page = Callable[[Visit], Response]
Endpoint = Callable[[Request], Awaitable[Response]]


def go(path: str) -> Response:
    """Lead the browser to another page, whatever it sent here."""
    return RedirectResponse(path, 303, headers={"Cache-Control": "no-store"})


def wake(request: Request) -> None:
    """Let the queue look at the jobs now instead of soon."""
    queue = request.app.state.queue
    if queue is not None:
        queue.wake()


def page(function: Page, services: Services, scope: str | None = None) -> Endpoint:
    """An endpoint for a page; `scope` is what a caller needs to come in, None: nothing."""

    async def endpoint(request: Request) -> Response:
        form = await _form(request, services) if request.method == "POST" else {}
        return await run_in_threadpool(_answer, function, request, services, form, scope)

    return endpoint


def enter(request: Request, services: Services, form: Mapping[str, str] | None = None) -> Visit:
    """Who asks; nobody has no scope."""
    return Visit(request, services, caller(request), form or {}, now_ms())


def refused(visit: Visit, scope: str | None) -> Response | None:
    """What a caller without the scope is answered; None: they have it."""
    if scope is None or visit.may(scope):
        return None
    if visit.caller.token is None:
        asked = visit.request.url
        back = f"{asked.path}?{asked.query}" if asked.query else asked.path
        return go("/login" if visit.request.method == "POST" else f"/login?next={quote(back, safe='')}")
    link = Place("/login", text("wrong.login"))
    return visit.message(403, text("wrong.403"), text("wrong.403_told", scope=scope), link)


def _answer(
    function: Page, request: Request, services: Services, form: Mapping[str, str] | Problem, scope: str | None
) -> Response:
    visit = enter(request, services, {} if isinstance(form, Problem) else form)
    try:
        rates_of(request).request(rate_key(visit.caller, request))
        answer = refused(visit, scope)
        if answer is not None:
            return answer
        if isinstance(form, Problem):
            raise form
        return function(visit)
    except Problem as problem:
        return visit.problem(problem)
    except NothingHere:
        return visit.message(404, text("wrong.404"), text("wrong.404_told"))
    except InputError as error:
        return visit.message(400, text("wrong.400"), sentence(str(error)))


async def _form(request: Request, services: Services) -> Mapping[str, str] | Problem:
    """The fields of a small form, or why it could not be read: who may not come in is told that first."""
    try:
        body = await small(request, services.settings.limits)
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS))
    except Problem as problem:
        return problem
    except ValueError:
        return {}
