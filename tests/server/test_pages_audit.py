"""The audit log: its page, which is for admins, and what goes from it when it is old."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.server.pages_setup import MEMORY, Page, add, browser, fill, opened, server
from traceanalyzer.server import audit as auditing
from traceanalyzer.server.database.models import Audit as Entry
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.services import Services
from traceanalyzer.server.settings import Limits
from traceanalyzer.server.text import now_ms

DAY_MS = 86_400_000
GONE = "0" * 64
Site = tuple[TestClient, Services]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with server(tmp_path, limits=Limits(page_size=3)) as (app, services):
        fill(services)
        yield browser(app), services


def signed_in(site: Site, *scopes: str) -> TestClient:
    app, services = site[0].app, site[1]
    client = browser(app)  # type: ignore[arg-type]
    client.post("/login", data={"token": services.tokens.make("a person", scopes)[1]})
    return client


def rows(text: str) -> list[str]:
    """What each row of the log says."""
    return [Page(row).shown.strip() for row in re.findall(r"<tr><td>.*?</tr>", text, re.DOTALL)]


def noted(services: Services, at: int, actor: str, action: str, subject: str, detail: str = "") -> None:
    with services.database.session() as session:
        session.add(Entry(at=at, actor=actor, action=action, subject=subject, detail=detail))


def test_the_log_says_who_did_what_to_which_and_when(site: Site) -> None:
    client, services = site
    token, _ = services.tokens.make("nightly robot", ["upload"])
    noted(services, 1_795_996_800_000, "retention", "delete", GONE, "too old")
    noted(services, 1_795_996_861_500, token.id, "upload", MEMORY, "stored")
    noted(services, 1_795_996_900_000, "command line", "token.create", token.id, "nightly robot: upload")
    answer = signed_in(site, "admin").get("/audit?subject=")
    assert answer.status_code == 200
    shown = rows(answer.text)
    assert len(shown) == 3
    assert re.search(r"UTC a person \w{12} Sign-in a person", shown[0])
    for part in ("2026-11-30 00:01:40 UTC", "Command line", "Token made", "nightly robot", token.id, "robot: upload"):
        assert part in shown[1], part
    for part in ("2026-11-30 00:01:01 UTC", "nightly robot", token.id, "Upload", "llama.pt.trace.json.gz", "stored"):
        assert part in shown[2], part
    assert f'href="/t/{MEMORY}"' in answer.text
    assert "400 days" in answer.text
    gone = client.get("/login").text  # nobody: no place leads there
    assert 'href="/audit"' not in gone


def test_a_trace_that_is_gone_is_named_by_its_hash_and_can_be_asked_for(site: Site) -> None:
    _, services = site
    for number in range(4):
        noted(services, now_ms(), "retention", "delete" if number == 2 else "view", GONE if number == 2 else MEMORY)
    client = signed_in(site, "admin")
    answer = client.get(f"/audit?subject={GONE}")
    (shown,) = rows(answer.text)
    assert "Deletion" in shown
    assert GONE[:12] in shown
    assert f'href="/t/{GONE}"' not in answer.text
    assert 'rel="next"' not in answer.text
    assert f'href="/audit?subject={GONE}"' in client.get("/audit").text
    assert "Nothing is noted here." in client.get("/audit?subject=nothing").text


def test_every_row_is_on_one_page(site: Site) -> None:
    _, services = site
    for number in range(8):
        noted(services, 5, "local", "view", MEMORY, f"row {number}")
    client, path, seen = signed_in(site, "admin"), f"/audit?subject={MEMORY}", []
    for _ in range(4):
        text = client.get(path).text
        seen += re.findall(r"row \d", text)
        following = re.findall(r'<a href="([^"]+)" rel="next">', text)
        if not following:
            break
        path = unescape(following[0])
        assert f"subject={MEMORY}" in path
    assert seen == [f"row {number}" for number in reversed(range(8))]
    for wrong in ("nonsense", "-1", "\N{SUPERSCRIPT TWO}", "9" * 19):
        assert client.get("/audit", params={"after": wrong}).status_code == 400, wrong


@pytest.mark.parametrize("scopes", [("read", "upload", "delete"), ("upload",), ("read",)])
def test_the_log_is_for_admins(site: Site, scopes: tuple[str, ...]) -> None:
    _, services = site
    noted(services, 5, "local", "view", MEMORY, "SECRET")
    client = signed_in(site, *scopes)
    answer = client.get("/audit")
    assert answer.status_code == 403
    assert "SECRET" not in answer.text
    assert 'href="/audit"' not in client.get("/upload" if "upload" in scopes else "/").text
    assert browser(client.app).get("/audit").headers["location"].startswith("/login")  # type: ignore[arg-type]
    assert 'href="/audit"' in signed_in(site, "admin").get("/").text


def test_what_is_written_in_the_log_stays_text(site: Site) -> None:
    _, services = site
    hostile = "<script>x</script>\"'\N{RIGHT-TO-LEFT OVERRIDE}\x1b[31m{{ 7*7 }}"
    noted(services, 10**18, hostile, hostile, hostile, hostile)
    text = signed_in(site, "admin").get("/audit").text
    assert "<script>x" not in text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;x") >= 4
    assert "{{ 7*7 }}" in text
    (path,) = {unescape(path) for path in re.findall(r'href="(/audit\?subject=[^"]+script[^"]+)"', text)}
    assert '"' not in path
    assert "<" not in path


def test_old_rows_go_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "_BATCH", 4)
    services = opened(tmp_path)
    now = 1_800_000_000_000
    before = now - auditing.KEEP_DAYS * DAY_MS
    assert services.audit.forget(before) == 0
    for number in range(11):
        noted(services, before - 1 - number, "local", "view", f"old {number}")
    for number in range(3):
        noted(services, before + number, "local", "view", f"kept {number}")
    assert services.audit.forget(before) == 11
    assert services.audit.forget(before) == 0
    assert [row.subject for row in services.audit.page().rows] == ["kept 2", "kept 1", "kept 0"]
    services.close()


def test_a_name_is_looked_up_once_a_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    _, services = site
    add(services, GONE, Labels(name="again.json"))
    for _ in range(3):
        noted(services, 5, "local", "view", GONE)
    client = signed_in(site, "admin")
    asked: list[str] = []
    get = services.traces.get
    monkeypatch.setattr(services.traces, "get", lambda sha256: asked.append(sha256) or get(sha256))
    assert client.get(f"/audit?subject={GONE}").text.count("again.json") == 3
    assert asked == [GONE]
