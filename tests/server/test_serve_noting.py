"""What is only noted beside the work does not end the work: the disk is full, and a report is still read."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.server.test_serve_backup import add
from traceanalyzer.server.database import engine
from traceanalyzer.server.database.engine import Full
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Settings


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[Services, str, str]]:
    """A database that may not grow any more, a token's text and a link's secret."""
    services = Services.open(Settings(folder=tmp_path / "server"))
    digest = add(services, tmp_path, b'{"traceEvents": []}')
    _, text = services.tokens.make("ci", ("read",))
    _, secret = services.links.make(digest, None)
    yield services, text, secret
    services.close()


def _fill(services: Services) -> None:
    with services.database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    services.close()

    @event.listens_for(services.database.engine, "connect")
    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")


def test_reading_goes_on_and_the_log_has_what_was_not_noted(
    full: tuple[Services, str, str], caplog: pytest.LogCaptureFixture
) -> None:
    services, text, secret = full
    _fill(services)
    with caplog.at_level(logging.WARNING, "traceanalyzer.server"):
        for place in range(200):
            services.audit.note("somebody", "view", f"subject-{place}", "d" * 900)
        assert services.tokens.check(text) is not None
        assert services.links.open(secret) is not None
    lost = [record.getMessage() for record in caplog.records]
    assert any("somebody view subject-199" in line for line in lost)
    assert not any(text[16:] in line or secret in line for line in lost)
    with pytest.raises(Full):
        for _ in range(200):
            services.tokens.make("n" * 100, ("read",))


def test_a_busy_database_ends_no_reading_either(
    full: tuple[Services, str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    services, text, secret = full
    monkeypatch.setattr(engine, "BUSY_S", 0.1)
    services.close()  # the connections that wait longer
    holder = sqlite3.connect(services.settings.folder / "server.sqlite3", isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        services.audit.note("somebody", "view", "subject")
        assert services.tokens.check(text) is not None
        assert services.links.open(secret) is not None
    finally:
        holder.close()
    assert "somebody view subject" in caplog.text and text[16:] not in caplog.text and secret not in caplog.text
