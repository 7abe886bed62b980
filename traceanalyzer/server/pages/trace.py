"""A trace's page: its report in a frame that can reach nothing, what is known about the file, and what may be done."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Response

from traceanalyzer.server import storing
from traceanalyzer.server.database.models import Job
from traceanalyzer.server.pages.lines import link_line, path_of, stem_of, trace_facts, trace_line
from traceanalyzer.server.pages.listing import path_of_recording
from traceanalyzer.server.pages.sharing import lifetimes, may_share
from traceanalyzer.server.pages.visit import NothingHere, Visit, go
from traceanalyzer.server.pages.words import text


@dataclass(frozen=True, slots=True)
class ReportPaths:
    """Where the renderings of a trace's report are."""

    html: str
    json: str
    markdown: str


def trace(visit: Visit) -> Response:
    """The page of a trace."""
    row = visit.trace()
    line = trace_line(row, visit.now)
    raw = f"/api/v1/traces/{row.sha256}"
    jobs = visit.services.jobs.of(row.sha256)
    last = jobs[-1] if jobs and row.analysed_at is not None else None
    links = visit.services.links.of(row.sha256) if may_share(visit) else None
    return visit.page(
        "trace.html",
        line.title,
        line=line,
        stem=stem_of(row),
        facts=trace_facts(row, visit.now),
        raw=raw,
        recording=path_of_recording(row.recording) if row.recording else "",
        report=ReportPaths(*(f"{raw}/report?format={kind}" for kind in ("html", "json", "md"))),
        has_report=row.analysed_at is not None,
        waiting=row.state in ("queued", "running"),
        renewing=_renewing(last),
        links=None if links is None else [link_line(link, visit.now) for link in reversed(links)],
        lifetimes=lifetimes(),
    )


def _renewing(last: Job | None) -> str:
    """What is to be said about a report whose trace is being analysed again, or could not be."""
    if last is None or last.state == "done":
        return ""
    return text("trace.kept", error=last.error or "") if last.state == "dead" else text("trace.renewing")


def pin(visit: Visit) -> Response:
    """Keep a trace for good."""
    return _pinned(visit, True)


def unpin(visit: Visit) -> Response:
    """Keep a trace no longer than others: it may be deleted then."""
    return _pinned(visit, False)


def _pinned(visit: Visit, pinned: bool) -> Response:
    row = visit.trace()
    visit.services.traces.pin(row.sha256, pinned)
    visit.note("pin" if pinned else "unpin", row.sha256)
    return go(path_of(row.sha256))


def analyse(visit: Visit) -> Response:
    """Analyse a trace again."""
    row = visit.trace()
    visit.analyse(row.sha256)
    return go(path_of(row.sha256))


def ask_to_delete(visit: Visit) -> Response:
    """Ask before a trace goes for good."""
    return visit.page("delete.html", text("delete.title"), line=trace_line(visit.trace(), visit.now))


def delete(visit: Visit) -> Response:
    """Delete a trace with everything that belongs to it."""
    row = visit.trace()
    if not storing.forget(visit.services, row.sha256):
        raise NothingHere
    visit.note("delete", row.sha256)
    return go("/")
