"""What a sweep deletes, what it must not, and what a killed server left in the store."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from traceanalyzer.server import recovery, retention, storing
from traceanalyzer.server.blobs import REPORTS, key_of_report, key_of_trace
from traceanalyzer.server.retention import Sweeper, Swept
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Retention, Settings
from traceanalyzer.server.traces import Found, Labels

DAY = 86_400_000
NOW = 1_790_000_000_000
Open = Callable[..., Services]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Open]:
    opened: list[Services] = []

    def do(**kept: object) -> Services:
        kept = {"min_free_bytes": 0, **kept}
        opened.append(Services.open(Settings(folder=tmp_path / "server", retention=Retention(**kept))))  # type: ignore[arg-type]
        return opened[-1]

    yield do
    for services in opened:
        services.close()


def add(
    services: Services, number: int, days: float, size: int = 100, environment: str | None = None, pinned: bool = False
) -> str:
    """A trace of `size` bytes that came `days` before NOW, with a report of ten bytes."""
    sha256 = f"{number * 0x9E3779B97F4A7C15 % 2**256:064x}"
    body = services.settings.incoming / "body"
    body.write_bytes(b"x" * size)
    labels = Labels(environment=environment, pinned=pinned)
    services.blobs.put_file(key_of_trace(sha256), body)
    body.unlink()
    assert services.traces.add(sha256, size, size, labels, None, NOW - round(days * DAY))
    for kind in REPORTS:
        body.write_bytes(b"report")
        services.blobs.put_file(key_of_report(sha256, kind), body)
        body.unlink()
    services.traces.set_analysed(sha256, Found(report_bytes=10), NOW - round(days * DAY))
    return sha256


def left(services: Services) -> set[str]:
    """The traces that are there, as rows and as blobs alike."""
    with_rows = {row.sha256 for row in services.traces.oldest(1000)} | {
        sha256 for sha256 in (key.split("/")[2] for key in services.blobs.keys("")) if services.traces.get(sha256)
    }
    assert {key.split("/")[2] for key in services.blobs.keys("")} == with_rows
    return with_rows


def test_age_deletes_what_is_older_and_never_what_is_pinned(make: Open) -> None:
    services = make(keep_days=30)
    young, edge, old, pinned = (add(services, 1, 1), add(services, 2, 29.99), add(services, 3, 30.01),
                                add(services, 4, 400, pinned=True))  # fmt: skip
    assert Sweeper(services).sweep(NOW) == Swept(old=1)
    assert left(services) == {young, edge, pinned}
    assert services.blobs.size(key_of_report(old, "page.html")) is None
    entry = services.audit.recent()[0]
    assert (entry.actor, entry.action, entry.subject, entry.detail) == ("retention", "delete", old, "too old")
    assert Sweeper(services).sweep(NOW) == Swept()


def test_environments_have_their_own_age(make: Open) -> None:
    services = make(keep_days=90, keep_days_by_environment={"ci": 7, "audit": 1000})
    kept = {add(services, 1, 80), add(services, 2, 6, environment="ci"), add(services, 3, 900, environment="audit"),
            add(services, 4, 80, environment="production")}  # fmt: skip
    add(services, 5, 8, environment="ci")
    add(services, 6, 91)
    add(services, 7, 91, environment="production")
    assert Sweeper(services).sweep(NOW).old == 3
    assert left(services) == kept


def test_none_keeps_for_good_but_for_the_environments_that_say_otherwise(make: Open) -> None:
    services = make(keep_days=None, keep_days_by_environment={"ci": 1})
    kept = add(services, 1, 5000)
    add(services, 2, 2, environment="ci")
    assert Sweeper(services).sweep(NOW).old == 1
    assert left(services) == {kept}


def test_quota_deletes_the_oldest_and_no_more_than_needed(make: Open) -> None:
    services = make(keep_days=None, quota_bytes=500)
    pinned = add(services, 1, 50, pinned=True)
    gone = [add(services, n, 40 - n) for n in (2, 3)]
    kept = {add(services, n, 20 - n) for n in (4, 5, 6)}
    assert services.traces.stored_bytes() == 660
    assert Sweeper(services).sweep(NOW) == Swept(over_quota=2)
    assert left(services) == kept | {pinned}
    assert not set(gone) & left(services)


def test_quota_of_pinned_traces_ends(make: Open) -> None:
    services = make(keep_days=None, quota_bytes=50)
    pinned = {add(services, n, n, pinned=True) for n in range(3)}
    assert Sweeper(services).sweep(NOW) == Swept()
    assert left(services) == pinned


Disk = namedtuple("Disk", "total used free")


def test_free_space_is_made_from_traces_only_where_they_fill_the_disk(
    make: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = make(keep_days=None, min_free_bytes=1000)
    traces = [add(services, n, 10 - n) for n in range(5)]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(0, 0, 1000))
    assert Sweeper(services).sweep(NOW) == Swept()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(0, 0, 850))
    assert Sweeper(services).sweep(NOW) == Swept(for_space=2)
    assert left(services) == set(traces[2:])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(0, 0, 10))
    crowded = Sweeper(services).sweep(NOW)
    assert crowded.for_space == 0
    assert "not of traces" in str(crowded.held)
    assert left(services) == set(traces[2:])


def test_clock_that_jumps_deletes_nothing_for_a_day(make: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    services = make(keep_days=90)
    traces = {add(services, n, n) for n in range(30)}
    clock = 1000.0
    monkeypatch.setattr(retention.time, "monotonic", lambda: clock)
    sweeper = Sweeper(services)
    jumped = NOW + 365 * DAY
    assert sweeper.sweep(jumped).held == (
        "30 of 30 traces are too old at once: unless the clock or the settings change, they are deleted after a day"
    )
    clock += 80_000
    assert sweeper.sweep(jumped + DAY).old == 0
    assert sweeper.sweep(NOW) == Swept(), "the clock is right again"
    clock += 80_000
    assert sweeper.sweep(jumped).old == 0
    assert left(services) == traces
    clock += 86_400
    assert sweeper.sweep(jumped) == Swept(old=30)
    assert left(services) == set()


def test_clock_that_jumps_back_deletes_nothing(make: Open) -> None:
    services = make(keep_days=1)
    traces = {add(services, n, n / 30) for n in range(20)}
    assert Sweeper(services).sweep(0) == Swept()
    assert left(services) == traces


def test_a_clock_that_jumps_deletes_nothing_on_a_small_server_either(make: Open) -> None:
    services = make(keep_days=90)
    traces = {add(services, n, n) for n in range(3)}
    swept = Sweeper(services).sweep(NOW + 200 * DAY)
    assert swept.old == 0 and "3 of 3 traces" in str(swept.held)
    assert left(services) == traces


def test_a_minority_goes_at_once(make: Open) -> None:
    services = make(keep_days=30)
    for n in range(12):
        add(services, n, 31)
    for n in range(12, 30):
        add(services, n, 1)
    assert Sweeper(services).sweep(NOW) == Swept(old=12)


def test_pinned_meanwhile_stays(make: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    services = make(keep_days=30)
    add(services, 1, 31)
    late = add(services, 2, 31)
    others = {add(services, 3, 1), add(services, 4, 1)}
    real = storing.forget

    def forget(of: Services, sha256: str, even_pinned: bool = True) -> bool:
        of.traces.pin(late, True)
        return real(of, sha256, even_pinned)

    monkeypatch.setattr(storing, "forget", forget)
    Sweeper(services).sweep(NOW)
    assert left(services) == {late, *others}


def test_the_audit_log_keeps_a_year_and_a_month(make: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    services = make(keep_days=None)
    for age in (401, 399):
        monkeypatch.setattr("traceanalyzer.server.audit.now_ms", lambda age=age: NOW - age * DAY)
        services.audit.note("a", f"{age} days ago", "x")
    Sweeper(services).sweep(NOW)
    assert [entry.action for entry in services.audit.recent()] == ["399 days ago"]


def test_blobs_without_a_row_go_at_the_second_look(make: Open) -> None:
    services = make()
    kept = add(services, 1, 1)
    stray = add(services, 2, 1)
    coming = add(services, 3, 1)
    for sha256 in (stray, coming):
        services.traces.delete(sha256)
    stray_look = recovery.Stray(services)
    assert stray_look.look() == (0, 0)
    services.traces.add(coming, 100, 100, Labels(), None, NOW)  # its row was on its way
    assert stray_look.look() == (1 + len(REPORTS), 0)
    assert left(services) == {kept, coming}
    assert stray_look.look() == (0, 0)


def test_row_whose_blob_is_gone_is_marked(make: Open) -> None:
    services = make()
    add(services, 1, 1)
    sha256 = f"{5:064x}"
    services.traces.add(sha256, 100, 100, Labels(), None, NOW)
    look = recovery.Stray(services)
    assert look.look() == (0, 1)
    row = services.traces.get(sha256)
    assert row is not None
    assert (row.state, row.error) == ("failed", "the stored trace is gone")
    assert look.look() == (0, 0)


def test_start_empties_what_was_under_way(make: Open, tmp_path: Path) -> None:
    services = make()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("stays")
    (services.settings.incoming / "half").write_text("half")
    (services.settings.work / "1-x" / "trace").mkdir(parents=True)
    (services.settings.work / "1-x" / "trace" / "run.json").write_text("{}")
    (services.settings.work / "link").symlink_to(tmp_path / "elsewhere")
    sha256 = f"{7:064x}"
    services.traces.add(sha256, 1, 1, Labels(), None, NOW)
    job = services.jobs.take(services.jobs.of(sha256)[0].id, NOW)
    assert job is not None
    assert recovery.recover(services) == 1
    assert list(services.settings.incoming.iterdir()) == list(services.settings.work.iterdir()) == []
    assert (tmp_path / "elsewhere" / "file").exists()
    assert services.jobs.get(job.id).state == "queued"  # type: ignore[union-attr]
