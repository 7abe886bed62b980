"""What the forms do, for whom, and what they refuse."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.server.asking import secret_of
from tests.server.pages_setup import HOST, MEMORY, RAW, Page, browser, fill, server
from traceanalyzer.server.blobs import key_of_report, key_of_trace
from traceanalyzer.server.services import Services
from traceanalyzer.server.sessions import COOKIE
from traceanalyzer.server.settings import Limits
from traceanalyzer.server.traces import Search

TRACE = gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": []}).encode(), mtime=0)
SHA = hashlib.sha256(TRACE).hexdigest()
Site = tuple[FastAPI, Services]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with server(tmp_path / "server") as (app, services):
        fill(services)
        yield app, services


def signed_in(site: Site, *scopes: str) -> TestClient:
    """A browser that has signed in with a new token."""
    app, services = site
    _, text = services.tokens.make("someone", scopes)
    client = browser(app)
    assert client.post("/login", data={"token": text, "next": "/"}).status_code == 303
    return client


# Signing in


def test_without_a_session_pages_lead_to_the_sign_in_page_and_back(site: Site) -> None:
    app, services = site
    _, text = services.tokens.make("someone", ["read"])
    client = browser(app)
    for path in ("/", f"/t/{MEMORY}", "/jobs?state=dead", "/upload", f"/t/{MEMORY}/delete"):
        assert client.get(path).status_code == 303
    back = client.get("/jobs?state=dead").headers["location"]
    assert back == "/login?next=%2Fjobs%3Fstate%3Ddead"
    form = Page(client.get(back).text)
    (kept,) = [field["value"] for field in form.all("input") if field["name"] == "next"]
    (token,) = [field for field in form.all("input") if field["name"] == "token"]
    assert token["type"] == "password"
    answer = client.post("/login", data={"token": f" {text}\n", "next": kept})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=dead")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert secret_of(text) not in cookie
    for part in ("HttpOnly", "SameSite=lax", "Path=/", "Max-Age=43200"):
        assert part in cookie
    assert "Secure" not in cookie
    listed = client.get("/")
    assert listed.status_code == 200
    assert "someone" in listed.text
    assert "There is no token yet" not in listed.text
    assert services.audit.recent(1)[0].action == "login"


@pytest.mark.parametrize(
    "back",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\r\nSet-Cookie: x=1", "",
     "/" + "a" * 5000, "evil", "/\t/evil.example"],
)  # fmt: skip
def test_signing_in_leads_nowhere_else(site: Site, back: str) -> None:
    app, services = site
    _, text = services.tokens.make("someone", ["read"])
    answer = browser(app).post("/login", data={"token": text, "next": back})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_wrong_token_opens_nothing_and_is_not_repeated(site: Site) -> None:
    app, services = site
    token, text = services.tokens.make("someone", ["read"])
    client = browser(app)
    for wrong in ("", "nonsense", text[:-1], f"ta_{token.id}_{'x' * 43}", "<script>"):
        answer = client.post("/login", data={"token": wrong, "next": "/"})
        assert answer.status_code == 403
        assert COOKIE not in answer.headers.get("set-cookie", "")
        assert not wrong or wrong not in answer.text.replace("<script ", "")
    services.tokens.revoke(token.id)
    assert client.post("/login", data={"token": text}).status_code == 403


def test_tokens_cannot_be_tried_without_end(tmp_path: Path) -> None:
    with server(tmp_path, limits=Limits(failures_per_minute=3)) as (app, services):
        _, text = services.tokens.make("someone", ["read"])
        client = browser(app)
        statuses = [client.post("/login", data={"token": "wrong"}).status_code for _ in range(5)]
        assert statuses[:3] == [403, 403, 403]
        assert statuses[-1] == 429
        answer = client.post("/login", data={"token": "wrong"})
        assert "too many requests" in answer.text.lower()
        assert "text/html" in answer.headers["content-type"]
        assert client.post("/login", data={"token": text}).status_code == 303, "a good token still opens"


def test_the_cookie_is_secure_where_the_server_is_reached_by_https(tmp_path: Path) -> None:
    with server(tmp_path, public_url="https://localhost") as (app, services):
        _, text = services.tokens.make("someone", ["read"])
        answer = browser(app).post("/login", data={"token": text})
        assert "Secure" in answer.headers["set-cookie"]


def test_a_session_ends_with_its_token_and_by_signing_out(site: Site) -> None:
    app, services = site
    client = signed_in(site, "read")
    assert client.get("/").status_code == 200
    answer = client.post("/logout")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert client.get("/").status_code == 303
    client = signed_in(site, "read")
    services.tokens.revoke(services.tokens.list()[-1].id)
    assert client.get("/").status_code == 303
    forged = browser(app, cookies={COOKIE: f"{services.tokens.list()[0].id}:{'0' * 24}.aaaa.bbbb"})
    assert forged.get("/").status_code == 303


def test_a_scope_shows_and_allows_what_it_is_for(site: Site) -> None:
    _, services = site
    reader = signed_in(site, "read")
    page = reader.get(f"/t/{MEMORY}").text
    assert "Make a share link" in page
    for absent in ("Analyse again", "/delete", "Pin</button>", 'href="/upload"'):
        assert absent not in page
    for path in ("/upload", f"/t/{MEMORY}/delete"):
        refused = reader.get(path)
        assert refused.status_code == 403
        assert "scope" in refused.text
    for path in (f"/t/{MEMORY}/pin", f"/t/{MEMORY}/analyse", f"/t/{MEMORY}/delete", "/jobs/1/retry", "/upload"):
        assert reader.post(path).status_code == 403, path
    uploader = signed_in(site, "upload")
    assert uploader.get("/upload").status_code == 200
    for path in ("/", f"/t/{MEMORY}", "/jobs", f"/t/{MEMORY}/delete"):
        assert uploader.get(path).status_code == 403, path
    assert uploader.post(f"/t/{MEMORY}/share").status_code == 403
    admin = signed_in(site, "admin")
    for path in ("/", "/upload", f"/t/{MEMORY}/delete", "/jobs"):
        assert admin.get(path).status_code == 200, path
    assert services.traces.get(MEMORY) is not None
    assert not services.traces.get(MEMORY).pinned  # type: ignore[union-attr]


# Forms that change something


POSTS = (
    f"/t/{MEMORY}/share", f"/t/{MEMORY}/pin", f"/t/{MEMORY}/analyse", f"/t/{MEMORY}/delete", "/jobs/1/retry", "/upload",
    "/login", "/logout",
)  # fmt: skip


@pytest.mark.parametrize(
    "stranger",
    [{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"},
     {"Origin": "null"}, {"Origin": "http://localhost:9"}],
)  # fmt: skip
def test_a_stranger_s_page_cannot_post_a_form(site: Site, stranger: dict[str, str]) -> None:
    _, services = site
    client = signed_in(site, "admin")
    before = (len(services.links.of(MEMORY)), len(services.jobs.of(MEMORY)))
    link, _ = services.links.make(HOST, None)
    for path in (*POSTS, f"/links/{link.id}/revoke"):
        answer = client.post(path, headers=stranger, data={"token": "x"})
        assert answer.status_code == 403, path
    row = services.traces.get(MEMORY)
    assert row is not None
    assert not row.pinned
    assert (len(services.links.of(MEMORY)), len(services.jobs.of(MEMORY))) == before
    assert services.links.of(HOST)[0].revoked_at is None
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("own", [{"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://localhost"}])
def test_our_own_page_can(site: Site, own: dict[str, str]) -> None:
    client = signed_in(site, "admin")
    assert client.post(f"/t/{MEMORY}/pin", headers=own).status_code == 303


def test_no_form_is_done_by_a_link(site: Site) -> None:
    client = signed_in(site, "admin")
    for path in POSTS:
        assert client.get(path).status_code in (200, 404, 405)
    assert site[1].traces.get(MEMORY) is not None


def test_pinning_analysing_again_and_trying_again(site: Site) -> None:
    _, services = site
    client = signed_in(site, "admin")
    answer = client.post(f"/t/{MEMORY}/pin")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/t/{MEMORY}")
    assert services.traces.get(MEMORY).pinned  # type: ignore[union-attr]
    assert "Unpin" in client.get(f"/t/{MEMORY}").text
    client.post(f"/t/{MEMORY}/pin")  # twice is once
    assert services.traces.get(MEMORY).pinned  # type: ignore[union-attr]
    client.post(f"/t/{MEMORY}/unpin")
    assert not services.traces.get(MEMORY).pinned  # type: ignore[union-attr]
    assert client.post(f"/t/{MEMORY}/analyse").status_code == 303
    job = services.jobs.of(MEMORY)[-1]
    assert (job.state, job.reason) == ("queued", "manual")
    taken = services.jobs.take(job.id, job.not_before)
    assert taken is not None
    services.jobs.dead(job.id, "too much memory", job.not_before)
    page = client.get("/jobs").text
    assert f'action="/jobs/{job.id}/retry"' in page
    assert client.post(f"/jobs/{job.id}/retry").status_code == 303
    assert services.jobs.of(MEMORY)[-1].state == "queued"
    assert services.jobs.of(MEMORY)[-1].id != job.id
    for path in ("/jobs/999999/retry", "/jobs/x/retry", "/jobs/%C2%B2/retry", f"/t/{'0' * 64}/pin"):
        assert client.post(path).status_code == 404, path
    done = {entry.action for entry in services.audit.recent()}
    assert {"pin", "unpin", "analyse"} <= done


def test_a_trace_is_deleted_after_a_question_only(site: Site) -> None:
    _, services = site
    client = signed_in(site, "delete", "read")
    asked = client.get(f"/t/{MEMORY}/delete")
    assert "llama.pt.trace.json.gz" in asked.text
    assert services.traces.get(MEMORY) is not None
    _, secret = services.links.make(MEMORY, None)
    answer = client.post(f"/t/{MEMORY}/delete")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert services.traces.get(MEMORY) is None
    assert services.blobs.size(key_of_trace(MEMORY)) is None
    assert services.blobs.size(key_of_report(MEMORY, "page.html")) is None
    assert client.get(f"/s/{secret}").status_code == 404
    assert client.post(f"/t/{MEMORY}/delete").status_code == 404
    assert services.audit.recent(1)[0].action == "delete"


def test_a_form_is_small(site: Site) -> None:
    client = signed_in(site, "admin")
    answer = client.post(f"/t/{MEMORY}/share", data={"expires": "x" * 20_000})
    assert answer.status_code == 413
    assert "larger" in answer.text
    many = client.post(f"/t/{MEMORY}/share", content="&".join(f"a{n}=1" for n in range(1000)))
    assert many.status_code in (201, 400)


def test_uploads_by_the_form_are_counted_too(tmp_path: Path) -> None:
    with server(tmp_path, limits=Limits(requests_per_minute=3)) as (app, _services):
        statuses = [sent(browser(app), ("a.json", RAW))[0] for _ in range(5)]
        assert statuses[:3] == [303] * 3
        assert statuses[3:] == [429] * 2


# Sharing


def shared(client: TestClient, expires: str = "week") -> str:
    """The path of a new link, as the page shows it."""
    answer = client.post(f"/t/{MEMORY}/share", data={"expires": expires})
    assert answer.status_code == 201
    (url,) = [field["value"] for field in Page(answer.text).all("input") if field["id"] == "link"]
    assert url.startswith("http://localhost/s/")
    return url.removeprefix("http://localhost")


def test_a_share_link_opens_one_report_for_anybody(site: Site) -> None:
    app, services = site
    path = shared(signed_in(site, "read"))
    assert len(path.removeprefix("/s/")) >= 43
    stranger = browser(app)
    answer = stranger.get(path)
    page = Page(answer.text)
    assert answer.status_code == 200
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "noindex" in answer.headers["x-robots-tag"]
    assert {link["href"] for link in page.all("a")} == {"#content", f"{path}/report"}
    assert MEMORY not in answer.text
    (frame,) = page.all("iframe")
    assert frame["sandbox"] == "allow-scripts"
    report = stranger.get(frame["src"])
    assert report.status_code == 200
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert report.headers["referrer-policy"] == "no-referrer"
    assert 'id="traceanalyzer-report"' in report.text
    (link,) = services.links.of(MEMORY)
    assert link.opened == 1
    assert path.removeprefix("/s/") not in signed_in(site, "read").get(f"/t/{MEMORY}").text
    for closed in ("/", f"/t/{MEMORY}", f"/api/v1/traces/{MEMORY}", f"/api/v1/traces/{MEMORY}/report"):
        assert stranger.get(closed).status_code in (303, 401), closed


def test_a_link_that_opens_nothing_says_the_same_whatever_it_was(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    app, services = site
    reader, stranger = signed_in(site, "read"), browser(app)
    revoked, expired = shared(reader), shared(reader, "day")
    link = services.links.of(MEMORY)[0]
    answer = reader.post(f"/links/{link.id}/revoke")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/t/{MEMORY}#share")
    unknown = f"/s/{'A' * 43}"
    told: dict[str, str] = {}
    for path, status in ((revoked, 410), (unknown, 404), ("/s/short", 404)):
        for more in ("", "/report"):
            answer = stranger.get(path + more)
            assert answer.status_code == status
            assert answer.headers["referrer-policy"] == "no-referrer"
            told[path + more] = answer.text
    assert stranger.get(expired).status_code == 200
    later = time.time_ns() + 25 * 3600 * 10**9
    monkeypatch.setattr("traceanalyzer.server.pages.visit.now_ms", lambda: later // 10**6)
    answer = stranger.get(expired)
    assert answer.status_code == 410
    told[expired] = answer.text
    assert len(set(told.values())) == 1
    assert "<nav" not in told[unknown]
    monkeypatch.undo()
    page = reader.get(f"/t/{MEMORY}").text
    assert "Revoked" in page
    assert page.count("/revoke") == 1
    assert reader.post("/links/000000000000/revoke").status_code == 404
    assert [entry.action for entry in services.audit.recent() if entry.subject == MEMORY][:2] == ["open", "revoke"]


def test_a_link_lives_as_long_as_was_chosen(site: Site) -> None:
    _, services = site
    client = signed_in(site, "read")
    shared(client, "never")
    shared(client, "quarter")
    first, second = services.links.of(MEMORY)
    assert first.expires_at is None
    assert second.expires_at == second.created_at + 90 * 86_400_000
    assert client.post(f"/t/{MEMORY}/share", data={"expires": "forever"}).status_code == 400
    assert client.post(f"/t/{'0' * 64}/share").status_code == 404
    assert len(services.links.of(MEMORY)) == 2


# Uploading without JavaScript


FORM = "multipart/form-data; boundary=b"
END = b"--b--\r\n"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    """One part of a form, as a browser writes it."""
    file = "" if filename is None else f'; filename="{filename}"'
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"


def posted(client: TestClient, body: bytes, kind: str = FORM) -> httpx2.Response:
    """Post a body that is written by hand."""
    return client.post("/upload", content=body, headers={"Content-Type": kind})


def sent(client: TestClient, *files: tuple[str, bytes], **labels: str) -> tuple[int, str, str]:
    """Post the form: the status, where it leads, and what the page says."""
    parts = [("files", (name, content, "application/gzip")) for name, content in files]
    answer = client.post("/upload", data=labels, files=parts)
    return answer.status_code, answer.headers.get("location", ""), Page(answer.text).shown


async def status_of(app: FastAPI, pieces: list[bytes]) -> int:
    """The status of a form of which these pieces arrive and then nothing."""
    statuses: list[int] = []
    arriving = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]

    async def receive() -> dict[str, Any]:
        if arriving:
            return arriving.pop(0)
        await asyncio.sleep(30)
        raise AssertionError("the server waited")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"host", b"localhost"), (b"content-type", FORM.encode()), (b"content-length", b"100000")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/upload", "raw_path": b"/upload", "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 40000), "server": ("localhost", 80), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return statuses[0]


def test_a_form_that_stops_or_hides_a_flood_is_ended(tmp_path: Path) -> None:
    limits = Limits(slow_body_s=0.3, max_body_bytes=2 << 20)
    with server(tmp_path, limits=limits) as (app, services):
        assert asyncio.run(status_of(app, [part("model", b"Llama")])) == 408
        refused = part("files", b"PK\x03\x04" + b"0" * (1 << 19), "a.json").removesuffix(b"\r\n")
        flood = [refused, *[b"0" * (1 << 20)] * 3, b"\r\n" + part("files", RAW, "b.json") + END]
        assert asyncio.run(status_of(app, flood)) in (400, 415)
        assert list(services.settings.incoming.iterdir()) == []
        assert services.traces.find(Search()).rows == []


def test_a_form_without_javascript_uploads_a_file_with_its_labels(site: Site) -> None:
    _, services = site
    client = signed_in(site, "upload", "read")
    status, path, _ = sent(
        client, ("run.pt.trace.json.gz", TRACE), model="Llama", weight_s="60", pinned="true", host=""
    )
    assert (status, path) == (303, f"/t/{SHA}")
    row = services.traces.get(SHA)
    assert row is not None
    assert (row.name, row.model, row.weight_s, row.pinned, row.host) == (
        "run.pt.trace.json.gz",
        "Llama",
        60.0,
        True,
        None,
    )
    assert b"".join(services.blobs.open(key_of_trace(SHA))) == TRACE
    assert row.bytes == len(TRACE)
    assert [job.state for job in services.jobs.of(SHA)] == ["queued"]
    assert sent(client, ("run.pt.trace.json.gz", TRACE))[:2] == (303, f"/t/{SHA}")
    assert len(services.jobs.of(SHA)) == 1


def test_files_that_are_refused_are_told_beside_the_ones_that_are_stored(site: Site) -> None:
    _, services = site
    client = signed_in(site, "upload", "read")
    status, _, shown = sent(
        client, ("good.json.gz", TRACE), ("zip.json", b"PK\x03\x04" + b"0" * 100), ("plain.json", RAW),
        ("text.json", b"hello"),
    )  # fmt: skip
    assert status in (415, 422)
    for name in ("good.json.gz", "zip.json", "plain.json", "text.json"):
        assert name in shown
    assert shown.count("its report is being made") == 2
    assert services.traces.get(hashlib.sha256(RAW).hexdigest()) is not None
    assert list(services.settings.incoming.iterdir()) == []
    assert client.post("/upload", data={"model": "m"}, files=[("files", ("", b""))]).status_code == 400


@pytest.mark.parametrize(
    ("name", "stored"),
    [("C:\\Users\\me\\run.json.gz", "run.json.gz"), ("/home/me/run.json.gz", "run.json.gz"),
     ("r\u00fcn \u05e9.json.gz", "r\u00fcn \u05e9.json.gz"), ('<img src="x">.json.gz', '<img src="x">.json.gz')],
)  # fmt: skip
def test_a_file_s_name_is_its_base_name(site: Site, name: str, stored: str) -> None:
    _, services = site
    client = signed_in(site, "upload")
    answer = posted(client, part("files", TRACE, name.replace('"', "%22")) + END)
    assert answer.status_code == 303, answer.text
    row = services.traces.get(SHA)
    assert row is not None
    assert row.name.replace("%22", '"') == stored


@pytest.mark.parametrize(
    ("labels", "name"),
    [({"model": "x" * 201}, "a.json"), ({"model": "a\u202eb"}, "a.json"), ({"weight_s": "much"}, "a.json"),
     ({}, "a\x07.json")],
)  # fmt: skip
def test_labels_that_cannot_be_shown_are_refused(site: Site, labels: dict[str, str], name: str) -> None:
    _, services = site
    client = signed_in(site, "upload")
    head = b"".join(part(key, value.encode()) for key, value in labels.items())
    answer = posted(client, head + part("files", TRACE, name) + END)
    assert answer.status_code in (400, 422)
    assert services.traces.get(SHA) is None
    assert list(services.settings.incoming.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FORM, part("files", b'{"traceEv', "a.json").removesuffix(b"\r\n")),
        (FORM, b""),
        (FORM, b"nonsense"),
        (FORM, part("model", b"x" * 9000) + END),
        (FORM, b"--b\r\nX: " + b"x" * 9000 + b"\r\n\r\n\r\n--b--\r\n"),
        (FORM, part("model", b"x") * 101 + END),
        ("multipart/form-data", END),
        ("multipart/form-data; boundary=" + "b" * 300, END),
        ("application/x-www-form-urlencoded", b"files=a"),
        ("", END),
    ],
)  # fmt: skip
def test_a_broken_form_stores_nothing(site: Site, kind: str, body: bytes) -> None:
    _, services = site
    client = signed_in(site, "upload")
    answer = posted(client, body, kind)
    assert answer.status_code == 400
    assert "text/html" in answer.headers["content-type"]
    assert {row.sha256 for row in services.traces.find(Search()).rows} == {MEMORY, HOST}
    assert list(services.settings.incoming.iterdir()) == []


def test_the_page_of_jobs_says_where_children_are_not_confined(site: Site) -> None:
    client = signed_in(site, "read")
    assert "Not confined" not in client.get("/jobs").text
    site[0].state.queue = SimpleNamespace(unconfined={"files": "<Landlock> is not there"})
    page = client.get("/jobs").text
    assert "Not confined" in page and "files: &lt;Landlock&gt; is not there" in page
