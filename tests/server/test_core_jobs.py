"""The table of jobs: one taker, the trace's state along with it, and nothing lost after a kill or a clock's jump."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from traceanalyzer.errors import InputError
from traceanalyzer.server.database.models import Job
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings
from traceanalyzer.server.traces import Found

NOW = 1_800_000_000_000
DAY = 86_400_000


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    opened = Services.open(Settings(folder=tmp_path))
    yield opened
    opened.close()


def added(services: Services, number: int = 1) -> Job:
    services.traces.add(sha(number), 1, 1, Labels(), None, NOW)
    return services.jobs.of(sha(number))[0]


def sha(number: int) -> str:
    return f"{number:064x}"


def states(services: Services, job: Job) -> tuple[str, str]:
    """Of the job and of its trace."""
    now, trace = services.jobs.get(job.id), services.traces.get(job.sha256)
    assert now is not None
    assert trace is not None
    return now.state, trace.state


def test_of_many_threads_one_takes_a_job(services: Services) -> None:
    jobs = [added(services, number) for number in range(5)]
    start = threading.Barrier(16)
    taken: list[int] = []

    def take() -> None:
        start.wait()
        for job in jobs:
            if services.jobs.take(job.id, NOW) is not None:
                taken.append(job.id)

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(taken) == sorted(job.id for job in jobs)
    assert {job.attempts for job in services.jobs.unfinished()} == {1}


def test_a_job_that_ends_well(services: Services) -> None:
    job = added(services)
    assert states(services, job) == ("queued", "queued")
    taken = services.jobs.take(job.id, NOW + 1)
    assert taken is not None
    assert (taken.state, taken.attempts, taken.started_at, taken.sha256) == ("running", 1, NOW + 1, job.sha256)
    assert states(services, job) == ("running", "running")
    services.traces.set_analysed(job.sha256, Found(analyser="1"), NOW + 2)
    services.jobs.done(job.id, NOW + 3, "said something")
    assert states(services, job) == ("done", "analysed")
    assert services.jobs.take(job.id, NOW + 4) is None
    assert services.jobs.unfinished() == []
    assert services.jobs.counts() == {"queued": 0, "running": 0, "done": 1, "failed": 0, "dead": 0}


def test_a_job_that_fails_waits_and_then_dies_with_its_trace(services: Services) -> None:
    job = added(services)
    services.jobs.take(job.id, NOW)
    services.jobs.failed(job.id, "out of\nmemory", NOW + 1, NOW + 5000, "last words")
    assert states(services, job) == ("failed", "queued")
    assert services.jobs.take(job.id, NOW + 4999) is None
    assert services.jobs.take(job.id, NOW + 5000) is not None
    services.jobs.dead(job.id, "out of memory", NOW + 6000)
    assert states(services, job) == ("dead", "failed")
    trace = services.traces.get(job.sha256)
    assert trace is not None
    assert trace.error == "out of memory"
    assert services.jobs.take(job.id, NOW + DAY) is None
    (dead,) = services.jobs.recent("dead").rows
    assert (dead.attempts, dead.error, dead.finished_at) == (2, "out of memory", NOW + 6000)


def test_the_output_is_the_end_and_can_be_shown(services: Services) -> None:
    job = added(services)
    services.jobs.take(job.id, NOW)
    noise = "\x1b[31mred\x1b[0m \u202e \0 é\n" * 2000
    services.jobs.failed(job.id, "a\nb\x07", NOW, NOW, noise + "the end")
    row = services.jobs.get(job.id)
    assert row is not None
    assert row.output is not None
    assert len(row.output.encode()) <= 4096
    assert row.output.endswith("the end")
    assert row.output.replace("\n", "").isprintable()
    assert row.error is not None
    assert row.error.isprintable()


def test_only_a_running_job_ends(services: Services) -> None:
    job = added(services)
    services.jobs.done(job.id, NOW)
    services.jobs.dead(job.id, "no", NOW)
    assert states(services, job) == ("queued", "queued")
    services.jobs.take(job.id, NOW)
    services.traces.delete(job.sha256)
    services.jobs.dead(job.id, "no", NOW)
    assert services.jobs.get(job.id) is None


def test_after_a_kill_what_was_running_is_queued_with_its_attempts(services: Services) -> None:
    first, second = added(services, 1), added(services, 2)
    services.jobs.take(first.id, NOW)
    again = Services.open(services.settings)
    assert again.jobs.recover() == 1
    assert again.jobs.recover() == 0
    assert states(again, first) == states(again, second) == ("queued", "queued")
    taken = again.jobs.take(first.id, NOW + 1)
    assert taken is not None
    assert taken.attempts == 2
    again.close()


def test_a_job_that_is_given_back_was_not_an_attempt(services: Services) -> None:
    job = added(services)
    services.jobs.take(job.id, NOW)
    services.jobs.release(job.id)
    assert states(services, job) == ("queued", "queued")
    services.jobs.release(job.id)
    taken = services.jobs.take(job.id, NOW)
    assert taken is not None
    assert taken.attempts == 1


def test_a_clock_that_was_ahead_holds_no_job_back(services: Services) -> None:
    job = added(services)
    services.jobs.take(job.id, NOW + 365 * DAY)
    services.jobs.failed(job.id, "no", NOW + 365 * DAY, NOW + 365 * DAY + 60_000)
    # The clock is right again; the retry is not a year away.
    assert services.jobs.take(job.id, NOW) is not None


def test_a_trace_has_one_open_job(services: Services) -> None:
    job = added(services)
    assert services.jobs.requeue(job.sha256, "manual", NOW).id == job.id
    services.jobs.take(job.id, NOW)
    assert services.jobs.requeue(job.sha256, "manual", NOW).state == "running"
    services.jobs.failed(job.id, "no", NOW, NOW + 5000)
    assert services.jobs.requeue(job.sha256, "manual", NOW).not_before == NOW
    services.jobs.take(job.id, NOW)
    services.jobs.dead(job.id, "no", NOW)
    other = services.jobs.requeue(job.sha256, "manual", NOW + 1)
    assert (other.id != job.id, other.reason, other.attempts) == (True, "manual", 0)
    assert states(services, other) == ("queued", "queued")
    trace = services.traces.get(job.sha256)
    assert trace is not None
    assert trace.error is None
    with pytest.raises(InputError):
        services.jobs.requeue(sha(99), "manual")


def test_a_new_version_finds_the_old_reports_and_leaves_them_readable(services: Services) -> None:
    for number in range(4):
        job = added(services, number)
        services.jobs.take(job.id, NOW)
        if number == 3:
            services.jobs.dead(job.id, "no", NOW)
            continue
        services.traces.set_analysed(job.sha256, Found(analyser="2" if number == 2 else "1"), NOW)
        services.jobs.done(job.id, NOW)
    assert sorted(services.jobs.outdated("2")) == [sha(0), sha(1)]
    assert len(services.jobs.outdated("2", limit=1)) == 1
    job = services.jobs.requeue(sha(0), "version", NOW)
    assert services.jobs.outdated("2") == [sha(1)]
    services.jobs.take(job.id, NOW)
    assert states(services, job) == ("running", "analysed")
    services.jobs.dead(job.id, "the new one cannot", NOW)
    assert states(services, job) == ("dead", "analysed")


def test_pages_of_jobs(services: Services) -> None:
    ids = [added(services, number).id for number in range(7)]
    first = services.jobs.recent(size=3)
    second = services.jobs.recent(page=first.next, size=3)
    third = services.jobs.recent(page=second.next, size=3)
    assert [row.id for page in (first, second, third) for row in page.rows] == ids[::-1]
    assert third.next is None
    assert services.jobs.recent("dead").rows == []
    for page in ("x", "", "-1", "9" * 30, "\u0661"):
        with pytest.raises(InputError):
            services.jobs.recent(page=page)
