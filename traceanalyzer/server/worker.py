"""Runs one job: takes it, analyses its trace in a confined child, keeps the report, and says how it ended.

A trace that cannot be analysed is given up at once; whatever else goes wrong (a limit that was met, a full disk, a
killed child) is tried again after a while, a few times, and then given up too. What could be wrong: a job that was
killed together with the server runs again, so its work may be done twice; its result is the same both times.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traceanalyzer import __version__
from traceanalyzer.errors import InputError, TraceAnalyzerError
from traceanalyzer.server import child, sandbox, storing
from traceanalyzer.server.blobs import REPORTS, key_of_report, key_of_trace
from traceanalyzer.server.database.models import Job
from traceanalyzer.server.sandbox import Outcome
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import AnalysisLimits
from traceanalyzer.server.text import now_ms
from traceanalyzer.server.traces import Found, Labels

Ended = Literal["done", "failed", "dead", "released", "discarded"]
"""How a job ended. "released": the server stops, it is queued again; "discarded": its trace was deleted meanwhile."""

_log = logging.getLogger("traceanalyzer.server")
_FIRST_WAIT_S = 10.0
_WAIT_FACTOR = 6.0
_LONGEST_WAIT_S = 3600.0
_NAME_BYTES = 200
_LARGEST_SUMMARY = 1 << 16


class _Damaged(TraceAnalyzerError):
    """The stored trace is not what was sent; trying again does not help."""


@dataclass(frozen=True, slots=True)
class _End:
    """How an attempt ended: for good or not, why, and what the child said."""

    error: str
    output: str = ""
    final: bool = False


def run(job_id: int, services: Services, stop: threading.Event | None = None) -> Ended | None:
    """Run a job if it is waiting and due; None: it is not, or somebody else has it.

    Args:
        job_id: its number.
        services: what the server works with.
        stop: set it to kill the child and give the job back.

    Raises:
        TraceAnalyzerError: the database is busy or full; `Queue` queues the job again.
    """
    job = services.jobs.take(job_id, now_ms())
    if job is None:
        return None
    started = time.monotonic()
    if job.attempts > services.settings.analysis.attempts:
        ended = _end(job, services, _End("the server ended every time this trace was analysed", final=True))
    else:
        ended = _attempt(job, services, stop)
    _log.info(
        "analysis ended",
        extra={
            "event": "analysis",
            "job": job.id,
            "sha256": job.sha256,
            "ended": ended,
            "attempt": job.attempts,
            "seconds": round(time.monotonic() - started, 3),
        },
    )
    return ended


def _attempt(job: Job, services: Services, stop: threading.Event | None) -> Ended:
    try:
        with tempfile.TemporaryDirectory(
            prefix=f"{job.id}-", dir=services.settings.work, ignore_cleanup_errors=True
        ) as name:
            folder = Path(name)
            trace = _bring(job.sha256, services, folder)
            if trace is None:
                return "discarded"
            arguments = (child.__name__, str(trace), str(folder))
            outcome = sandbox.run_child(arguments, services.settings.analysis, folder, stop)
            if outcome.reason == "stopped":
                services.jobs.release(job.id)
                return "released"
            if outcome.reason != "done":
                return _end(job, services, explain(outcome, services.settings.analysis))
            return _keep(job, services, folder, outcome)
    except (OSError, InputError, _Damaged) as error:
        message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _end(job, services, _End(f"the analysis could not be run: {message}", final=isinstance(error, _Damaged)))


def _bring(sha256: str, services: Services, folder: Path) -> Path | None:
    """Copy the trace to where the child may read it, under the name it was sent with; None: it was deleted.

    A copy, because a child could write through a link.

    Raises:
        _Damaged: the stored bytes are gone or are others.
        OSError: there is no space.
    """
    row = services.traces.get(sha256)
    if row is None:
        return None
    place = folder / "trace"
    place.mkdir()
    path = place / _file_name(row.name)
    found = hashlib.sha256()
    try:
        with path.open("xb") as file:
            for piece in services.blobs.open(key_of_trace(sha256)):
                found.update(piece)
                file.write(piece)
    except FileNotFoundError as error:
        if services.traces.get(sha256) is None:
            return None
        raise _Damaged("the stored trace is gone") from error
    if found.hexdigest() != sha256:
        raise _Damaged("the stored trace is not what was sent: its hash is another")
    return path


def _file_name(label: str) -> str:
    """The label as one file name that any file system takes."""
    base = label.replace("/", "_").replace("\0", "_").encode("utf-8", "replace")
    name = base[-_NAME_BYTES:].decode("utf-8", "ignore")
    return "trace" if name in ("", ".", "..") else name


def _keep(job: Job, services: Services, folder: Path, outcome: Outcome) -> Ended:
    """Put the report's renderings in place and then what the list shows of it."""
    paths = {kind: folder / kind for kind in REPORTS}
    said = _summary(folder / child.SUMMARY)
    found = Found(
        gpu=_text(said, "gpu"),
        headline=_text(said, "headline"),
        bound=_text(said, "bound"),
        workload=_text(said, "workload"),
        span_us=_number(said, "span_us"),
        decode_step_us=_number(said, "decode_step_us"),
        tokens_per_s=_number(said, "tokens_per_s"),
        quality=_text(said, "quality"),
        report_id=_text(said, "report_id"),
        redaction=_text(said, "redaction"),
        analyser=__version__,
        report_bytes=sum(path.lstat().st_size for path in paths.values()),
    )
    with storing.exclusively(job.sha256):
        if services.traces.get(job.sha256) is None:
            return "discarded"
        for kind, path in paths.items():
            services.blobs.put_file(key_of_report(job.sha256, kind), path)
        if not services.traces.set_analysed(job.sha256, found, now_ms(), _labels(said)):
            storing.remove_reports(services.blobs, job.sha256)
            return "discarded"
    services.jobs.done(job.id, now_ms(), outcome.output)
    return "done"


def _summary(path: Path) -> dict[str, object]:
    """What the child wrote; it may have written anything.

    Raises:
        InputError: it is no small JSON object in a regular file.
        OSError: there is none.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        text = file.read(_LARGEST_SUMMARY)
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("the child's summary is none") from error
    if not isinstance(said, dict):
        raise InputError("the child's summary is none")
    return said


def _text(said: dict[str, object], name: str) -> str | None:
    value = said.get(name)
    return value if isinstance(value, str) else None


def _number(said: dict[str, object], name: str) -> float | None:
    value = said.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def _labels(said: dict[str, object]) -> Labels | None:
    """What the file itself says, for where nobody else has said it."""
    try:
        return Labels.checked(
            model=_text(said, "model"),
            engine=_text(said, "engine"),
            host=_text(said, "host"),
            weight_s=_number(said, "weight_s"),
        )
    except InputError:
        return None


def _end(job: Job, services: Services, end: _End) -> Ended:
    limits = services.settings.analysis
    if end.final or job.attempts >= limits.attempts:
        tries = "" if end.final else f" ({limits.attempts} attempts)"
        services.jobs.dead(job.id, end.error + tries, now_ms(), end.output)
        return "dead"
    wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * _WAIT_FACTOR ** (job.attempts - 1))
    now = now_ms()
    services.jobs.failed(job.id, end.error, now, now + round(wait_s * 1000), end.output)
    return "failed"


def explain(outcome: Outcome, limits: AnalysisLimits) -> _End:
    """What happened, in one line for the list of jobs."""
    last = outcome.output.splitlines()[-1] if outcome.output else ""
    if outcome.reason == "refused":
        return _End(last or "the trace cannot be analysed", outcome.output, final=True)
    by = f"killed by {_signal_name(-outcome.code)}" if outcome.code < 0 else last or f"exit code {outcome.code}"
    texts = {
        "memory": f"the analysis needed more than {_size(limits.memory_bytes)} of memory",
        "cpu": f"the analysis took more than {limits.cpu_s:g} s of CPU time",
        "time": f"the analysis took longer than {limits.wall_s:g} s",
        "size": f"the analysis wrote more than {_size(limits.file_bytes)}",
    }
    return _End(texts.get(outcome.reason, f"the analysis failed: {by}"), outcome.output)


def _size(count: int) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 1 << 30 else f"{count / 2**20:.3g} MiB"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
