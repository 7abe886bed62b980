"""Rows of the database as what a page prints: labels made readable, figures as the report prints them.

What is not known is "unknown", never 0. What could be wrong: a trace without a note on its quality is called complete,
which says that nothing was found missing, not that nothing is.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceanalyzer.report import format as fmt
from traceanalyzer.report.strings.labels import SEVERITIES
from traceanalyzer.report.text_safety import shorten
from traceanalyzer.report.views.pieces import bound_chip
from traceanalyzer.server.database.models import Job, Link
from traceanalyzer.server.pages.moments import Moment, moment
from traceanalyzer.server.pages.words import TEXT, sentence, text
from traceanalyzer.server.traces import TraceRow

_SHORT_HASH = 12
_BOUNDS = ("memory", "compute", "host", "communication", "mixed", "unknown")
BOUNDS = {bound: bound_chip(bound) for bound in _BOUNDS}
"""What can bind a run -> its label."""
STATES = ("queued", "running", "analysed", "failed")
"""The states of a trace."""


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One trace, in the list and on top of its own page."""

    path: str
    name: str
    title: str
    state: str
    state_label: str
    bound_label: str
    labels: tuple[str, ...]
    step: str
    tokens: str
    weight: str
    size: str
    text_bytes: int
    quality: str
    quality_label: str
    redacted: bool
    redaction_label: str
    pinned: bool
    uploaded: Moment
    error: str


@dataclass(frozen=True, slots=True)
class Fact:
    """One line about a trace: a value, or a time."""

    label: str
    value: str
    code: bool = False
    long: bool = False
    when: Moment | None = None


@dataclass(frozen=True, slots=True)
class JobLine:
    """One analysis that is to be done or was."""

    id: int
    path: str
    name: str
    state: str
    state_label: str
    reason_label: str
    attempts: int
    when: Moment
    again: Moment | None
    error: str
    output: str
    can_retry: bool


@dataclass(frozen=True, slots=True)
class LinkLine:
    """One share link, without what opens it."""

    id: str
    made: Moment
    ends: Moment | None
    opened: int
    live: bool
    state_label: str


def trace_line(row: TraceRow, now: int) -> TraceLine:
    """A trace as the list shows it at the time `now`."""
    name = row.name or row.sha256[:_SHORT_HASH]
    analysed = row.analysed_at is not None
    worst = row.quality or ""
    quality = (worst if worst in SEVERITIES else "clean") if analysed else ""
    redacted = row.redaction not in (None, "", "none")
    return TraceLine(
        path=path_of(row.sha256),
        name=name,
        title=row.headline or name,
        state=row.state,
        state_label=named("state", row.state),
        bound_label=BOUNDS.get(row.bound or "", ""),
        labels=tuple(said for said in (row.model, row.gpu, row.engine, row.environment) if said),
        step=fmt.duration(row.decode_step_us),
        tokens=fmt.count(row.tokens_per_s),
        weight=_seconds(row.weight_s),
        size=fmt.size(row.bytes),
        text_bytes=row.text_bytes,
        quality=quality,
        quality_label=text(f"quality.{quality}") if quality else "",
        redacted=redacted,
        redaction_label=text("redaction.done", level=row.redaction) if redacted else text("redaction.none"),
        pinned=row.pinned,
        uploaded=moment(row.uploaded_at, now),
        error=sentence(row.error) if row.error else "",
    )  # fmt: skip


def trace_facts(row: TraceRow, now: int) -> list[Fact]:
    """Everything that is known about a trace, in the order of its page."""
    line = trace_line(row, now)
    size = text("about.size_value", packed=line.size, text=fmt.size(row.text_bytes))
    facts = [
        *_given("about.name", row.name, long=True),
        *_given("about.model", row.model),
        *_given("about.engine", row.engine),
        *_given("about.gpu", row.gpu),
        *_given("about.environment", row.environment),
        *_given("about.host", row.host),
        *_given("about.revision", row.revision),
        *_given("about.recording", row.recording),
        Fact(text("about.weight"), line.weight),
        *_given("about.workload", row.workload),
        Fact(text("about.span"), fmt.duration(row.span_us)),
        Fact(text("about.step"), line.step),
        Fact(text("about.tokens"), line.tokens),
        Fact(text("about.size"), size),
        Fact(text("about.redaction"), line.redaction_label),
        *_given("about.by", row.uploaded_by, code=True),
    ]
    if row.analysed_at is not None:
        facts += [
            Fact(text("about.analysed"), "", when=moment(row.analysed_at, now)),
            *_given("about.analyser", row.analyser),
            Fact(text("about.report_size"), fmt.size(row.report_bytes)),
            *_given("about.report", row.report_id, code=True),
        ]
    return [*facts, Fact(text("about.sha256"), row.sha256, code=True, long=True)]


def job_line(job: Job, name: str, now: int) -> JobLine:
    """A job as the page of jobs shows it; `name` is its trace's."""
    state = "again" if job.state == "failed" else job.state
    since = job.finished_at or job.started_at or job.created_at
    return JobLine(
        id=job.id,
        path=path_of(job.sha256),
        name=name,
        state=job.state,
        state_label=named("state", state),
        reason_label=named("reason", job.reason),
        attempts=job.attempts,
        when=moment(since, now),
        again=moment(job.not_before, now) if job.state == "failed" else None,
        error=sentence(job.error) if job.error else "",
        output=job.output or "",
        can_retry=job.state in ("failed", "dead"),
    )


def link_line(link: Link, now: int) -> LinkLine:
    """A share link as its trace's page shows it."""
    expired = link.expires_at is not None and now >= link.expires_at
    state = "share.revoked" if link.revoked_at is not None else "share.expired" if expired else "share.state"
    return LinkLine(
        id=link.id,
        made=moment(link.created_at, now),
        ends=None if link.expires_at is None else moment(link.expires_at, now),
        opened=link.opened,
        live=link.revoked_at is None and not expired,
        state_label=text(state),
    )


def path_of(sha256: str) -> str:
    """The address of a trace's page."""
    return f"/t/{sha256}"


def named(kind: str, code: str) -> str:
    """The words for a code; a code of another version stands for itself."""
    return TEXT.get(f"{kind}.{code}", code)


def stem_of(row: TraceRow) -> str:
    """What files about a trace are called, without the endings of its own name."""
    stem = row.name or row.sha256[:_SHORT_HASH]
    for ending in (".gz", ".zst", ".json", ".trace", ".pt"):
        stem = stem.removesuffix(ending)
    return shorten(stem, 100) or row.sha256[:_SHORT_HASH]


def _given(key: str, value: str | None, code: bool = False, long: bool = False) -> list[Fact]:
    return [Fact(text(key), value, code, long)] if value else []


def _seconds(seconds: float | None) -> str:
    return fmt.duration(None if seconds is None else seconds * 1e6)
