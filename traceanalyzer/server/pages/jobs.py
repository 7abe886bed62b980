"""The page of jobs: what waits, what runs, and what failed and why."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Response

from traceanalyzer.server.database.models import Job
from traceanalyzer.server.pages.lines import job_line
from traceanalyzer.server.pages.visit import NothingHere, Visit, go
from traceanalyzer.server.pages.words import text

_SHOWN = ("", "dead", "failed", "running", "queued", "done")
_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Choice:
    """One state that the page can be narrowed to."""

    path: str
    label: str
    chosen: bool


def jobs(visit: Visit) -> Response:
    """The newest jobs, of one state or of all."""
    state = visit.asked("state")
    state = state if state in _SHOWN else ""
    after = visit.asked("after") or None
    found = visit.services.jobs.recent(state or None, after, visit.services.settings.limits.page_size)
    here = _address(state)
    queue = visit.request.app.state.queue
    return visit.page(
        "jobs.html",
        text("jobs.title"),
        unconfined=[f"{what}: {how}" for what, how in sorted(queue.unconfined.items())] if queue is not None else [],
        choices=[Choice(_address(other), text(f"jobs.show.{other or 'all'}"), other == state) for other in _SHOWN],
        jobs=[job_line(job, _name(visit, job), visit.now) for job in found.rows],
        next=f"{here}{'&' if state else '?'}after={found.next}" if found.next else "",
        first=here if after else "",
    )


def retry(visit: Visit) -> Response:
    """Analyse a job's trace again."""
    number = visit.part("id")
    readable = number.isascii() and number.isdigit() and len(number) <= _DIGITS
    job = visit.services.jobs.get(int(number)) if readable else None
    if job is None:
        raise NothingHere
    visit.analyse(job.sha256)
    return go("/jobs")


def _address(state: str) -> str:
    return f"/jobs?state={state}" if state else "/jobs"


def _name(visit: Visit, job: Job) -> str:
    row = visit.services.traces.get(job.sha256)
    return row.name if row is not None and row.name else job.sha256[:12]
