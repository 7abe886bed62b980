"""What Prometheus is told: counters of this process, and gauges that are read from the database when it asks.

Labels have few values: methods, route templates, statuses, states. What could be wrong: counters start again at a
restart, as Prometheus expects. Analyses are counted when they are first seen in the table, by their time of end: one
that ends while the clock is set back is not counted, nor one whose trace is deleted before the next scrape.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import select

from traceanalyzer.server.database.models import Job
from traceanalyzer.server.services import Services
from traceanalyzer.server.text import now_ms

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "traceanalyzer"
_ENDED = ("done", "failed", "dead")
_ANALYSIS_SECONDS = (0.5, 1, 2, 5, 10, 30, 60, 180, 600)
_SECONDS = (0.005, 0.02, 0.05, 0.15, 0.5, 2, 10, 60, 300)


class Metrics:
    """The metrics of one application.

    Args:
        services: what the gauges are read from.
    """

    def __init__(self, services: Services) -> None:
        """Start every counter at zero."""
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{_PREFIX}_requests", "Requests answered", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            f"{_PREFIX}_request_seconds", "Time until the end of the answer", ("method", "route"),
            registry=self._registry, buckets=_SECONDS,
        )  # fmt: skip
        self._uploads = Counter(
            f"{_PREFIX}_uploads", "Uploads: stored, known already, or refused", ("outcome",), registry=self._registry
        )
        self._bytes = Counter(f"{_PREFIX}_upload_bytes", "Bytes of stored uploads", registry=self._registry)
        self._analyses = Histogram(
            f"{_PREFIX}_analysis_seconds", "Time of one analysis, ended well or not", ("state",),
            registry=self._registry, buckets=_ANALYSIS_SECONDS,
        )  # fmt: skip
        self._registry.register(_Kept(services))
        self._database = services.database
        self._seen_until = now_ms()
        self._lock = threading.Lock()

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def uploaded(self, outcome: str, count: int = 0) -> None:
        """Count one upload: `stored` with its bytes, `known` or `refused`."""
        self._uploads.labels(outcome).inc()
        self._bytes.inc(count)

    def text(self) -> bytes:
        """Everything in Prometheus' text format; reads the database."""
        with self._lock:
            self._see_analyses()
        return generate_latest(self._registry)

    def _see_analyses(self) -> None:
        query = (
            select(Job.state, Job.started_at, Job.finished_at)
            .where(Job.finished_at > self._seen_until, Job.state.in_(_ENDED))
            .order_by(Job.finished_at)
        )
        with self._database.reading() as session:
            ended = session.execute(query).all()
        for state, started_at, finished_at in ended:
            if started_at is None or finished_at is None:
                continue
            self._analyses.labels(state).observe(max(0, finished_at - started_at) / 1000)
            self._seen_until = finished_at


class _Kept(Collector):
    """Gauges over what is kept, read at each scrape."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering reads no database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges as they are now."""
        services = self._services
        yield _gauge("traces", "Traces kept", "state", services.traces.counts())
        yield _gauge("jobs", "Analyses", "state", services.jobs.counts())
        waiting = services.jobs.unfinished(limit=1)
        age_s = (now_ms() - waiting[0].created_at) / 1000 if waiting else 0.0
        yield GaugeMetricFamily(
            f"{_PREFIX}_queue_age_seconds", "Age of the oldest unfinished analysis", max(0.0, age_s)
        )
        yield GaugeMetricFamily(
            f"{_PREFIX}_stored_bytes", "Bytes of traces and reports", services.traces.stored_bytes()
        )
        free = shutil.disk_usage(services.settings.folder).free
        yield GaugeMetricFamily(f"{_PREFIX}_disk_free_bytes", "Free bytes on the disk of the folder", free)


def _gauge(name: str, text: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family
