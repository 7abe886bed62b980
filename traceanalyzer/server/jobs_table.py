"""The jobs: the truth about what is to be analysed. The queue only says when to look here.

queued -> running -> done, or failed (tried again after `not_before`), or dead. Whoever changes `queued` to `running`
has the job; a second one gets None. After a kill every `running` row is queued again, with its attempts counted, so a
trace that ends the server is not tried for ever.

What could be wrong: `not_before` is by the machine's clock. A time more than a day ahead can only come from a clock
that was ahead, and counts as now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from sqlalchemy import ColumnElement, and_, exists, func, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from traceanalyzer.errors import InputError
from traceanalyzer.server import paging
from traceanalyzer.server.database.engine import Database, changed
from traceanalyzer.server.database.models import Job, Trace
from traceanalyzer.server.text import clean, now_ms, tail
from traceanalyzer.server.traces import Page

_OPEN = ("queued", "running", "failed")
_WAITING = ("queued", "failed")
_LONGEST_WAIT_MS = 86_400_000
_ERROR_CHARS = 1000
_OUTPUT_BYTES = 4096


@overload
def is_due(not_before: int, now: int) -> bool: ...


@overload
def is_due(not_before: InstrumentedAttribute[int], now: int) -> ColumnElement[bool]: ...


def is_due(not_before: Any, now: int) -> Any:
    """Whether a job's time has come, of one job or in a query."""
    return (not_before <= now) | (not_before > now + _LONGEST_WAIT_MS)


class Jobs:
    """The jobs in one database."""

    def __init__(self, database: Database) -> None:
        """Nothing is read yet."""
        self._database = database

    def take(self, id: int, now: int) -> Job | None:
        """Start a job that is waiting and due; None: it is not, or somebody else has it."""
        query = (
            update(Job)
            .where(Job.id == id, Job.state.in_(_WAITING), is_due(Job.not_before, now))
            .values(state="running", attempts=Job.attempts + 1, started_at=now, finished_at=None)
        )
        with self._database.session() as session:
            if not changed(session, query):
                return None
            job = session.get_one(Job, id)
            _move(session, job.sha256, "queued", "running")
            return job

    def done(self, id: int, now: int, output: str = "") -> None:
        """A job has ended well; what it found is in the trace's row already."""
        self._end(id, "done", now, None, output)

    def failed(self, id: int, error: str, now: int, not_before: int, output: str = "") -> None:
        """A job has failed and is tried again from `not_before` on."""
        self._end(id, "failed", now, error, output, not_before)

    def dead(self, id: int, error: str, now: int, output: str = "") -> None:
        """A job has failed for good, and its trace with it; a report that is there stays good."""
        self._end(id, "dead", now, error, output)

    def requeue(self, sha256: str, reason: str, now: int | None = None) -> Job:
        """A job that will analyse this trace: the one that is open, made due now, or a new one.

        Raises:
            InputError: there is no such trace.
        """
        at = now_ms() if now is None else now
        with self._database.session() as session:
            if session.get(Trace, sha256) is None:
                raise InputError("there is no such trace")
            query = select(Job).where(Job.sha256 == sha256, Job.state.in_(_OPEN)).order_by(Job.id).limit(1)
            job = session.scalars(query).first()
            if job is None:
                job = Job(sha256=sha256, reason=reason, state="queued", attempts=0, not_before=at, created_at=at)
                session.add(job)
                _move(session, sha256, "failed", "queued")
            elif job.state == "failed":
                job.not_before = at
            session.flush()
            return job

    def recover(self) -> int:
        """At start: queue every job that was running when the server ended; returns how many."""
        with self._database.session() as session:
            session.execute(update(Trace).where(Trace.state == "running").values(state="queued"))
            return changed(session, update(Job).where(Job.state == "running").values(state="queued"))

    def release(self, id: int) -> None:
        """Give a running job back as if it had not been taken: the server ends before the job did."""
        with self._database.session() as session:
            job = session.get(Job, id)
            if job is not None and job.state == "running":
                job.state, job.attempts, job.started_at = "queued", job.attempts - 1, None
                _move(session, job.sha256, "running", "queued")

    def get(self, id: int) -> Job | None:
        """The job with this number."""
        with self._database.reading() as session:
            return session.get(Job, id)

    def of(self, sha256: str) -> Sequence[Job]:
        """The jobs of one trace, oldest first."""
        with self._database.reading() as session:
            return session.scalars(select(Job).where(Job.sha256 == sha256).order_by(Job.id)).all()

    def unfinished(self, limit: int = 10_000) -> Sequence[Job]:
        """What is waiting or running, oldest first."""
        query = select(Job).where(Job.state.in_(_OPEN)).order_by(Job.id).limit(limit)
        with self._database.reading() as session:
            return session.scalars(query).all()

    def outdated(self, version: str, limit: int = 100) -> Sequence[str]:
        """Analysed traces whose report another version of the analyser made, and that no job is waiting for."""
        waiting = exists().where(and_(Job.sha256 == Trace.sha256, Job.state.in_(_OPEN)))
        query = (
            select(Trace.sha256)
            .where(Trace.state == "analysed", or_(Trace.analyser < version, Trace.analyser > version), ~waiting)
            .limit(limit)
        )
        with self._database.reading() as session:
            return session.scalars(query).all()

    def recent(self, state: str | None = None, page: str | None = None, size: int = 50) -> Page[Job]:
        """One page of jobs, newest first; `page` is the `next` of the page before.

        Raises:
            InputError: `page` is none of ours.
        """
        wanted = [] if state is None else [Job.state == state]
        return paging.newest(self._database, Job, Job.id, wanted, page, size)

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        states = ("queued", "running", "done", "failed", "dead")
        query = select(Job.state, func.count()).group_by(Job.state)
        with self._database.reading() as session:
            found = dict(session.execute(query).all())
        return {state: found.get(state, 0) for state in states}

    def _end(
        self, id: int, state: str, now: int, error: str | None, output: str, not_before: int | None = None
    ) -> None:
        """Only a running job ends: one that was deleted or given back meanwhile stays as it is."""
        with self._database.session() as session:
            job = session.get(Job, id)
            if job is None or job.state != "running":
                return
            job.state, job.finished_at = state, now
            job.error = None if error is None else clean(error, _ERROR_CHARS)
            job.output = tail(output, _OUTPUT_BYTES) or None
            if not_before is not None:
                job.not_before = not_before
                _move(session, job.sha256, "running", "queued")
            elif state == "dead":
                _move(session, job.sha256, "running", "failed", job.error)


def _move(session: Session, sha256: str, before: str, after: str, error: str | None = None) -> None:
    """Change a trace's state; one that has a report stays `analysed` whatever its new jobs do."""
    query = update(Trace).where(Trace.sha256 == sha256, Trace.state == before)
    session.execute(query.values(state=after, error=error))
