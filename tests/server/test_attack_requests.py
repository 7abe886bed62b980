"""Hostile requests: foreign hosts, other sites, tokens where logs see them, stolen and ended rights."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.server.asking import NOTHING, TRACE, client, kept, opened, path_of, secret_of, sha256, token_of
from traceanalyzer.server import logs
from traceanalyzer.server.app import create_app
from traceanalyzer.server.gate import host_of
from traceanalyzer.server.services import Services
from traceanalyzer.server.sessions import COOKIE, Sessions
from traceanalyzer.server.text import now_ms

PATH = path_of(TRACE)
LIST = "/api/v1/traces"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with opened(tmp_path / "server") as made:
        yield made


@pytest.fixture
def api(services: Services) -> TestClient:
    return client(create_app(services))


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "localhost@evil.example", "", "[::1", "a b"]
)
def test_a_forged_host_is_refused(services: Services, api: TestClient, host: str) -> None:
    for answer in (api.get(LIST, headers={"Host": host}), api.put(PATH, content=TRACE, headers={"Host": host})):
        assert answer.status_code == 400
        assert "evil" not in answer.text
    assert kept(services) == NOTHING


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST.", "[::1]:8321", "traces.example", "10.0.0.7"])
def test_our_own_names_are_ours(tmp_path: Path, host: str) -> None:
    names = {"public_url": "https://traces.example/", "allowed_hosts": ("10.0.0.7",)}
    with opened(tmp_path / "server", **names) as services:
        assert client(create_app(services)).get(LIST, headers={"Host": host}).status_code == 200


def test_two_hosts_are_none(api: TestClient) -> None:
    assert api.get(LIST, headers=[("Host", "127.0.0.1"), ("Host", "evil.example")]).status_code == 400


def test_the_address_that_means_every_address_is_no_name(tmp_path: Path) -> None:
    with opened(tmp_path / "server", host="0.0.0.0") as services:
        assert client(create_app(services)).get(LIST, headers={"Host": "0.0.0.0:8321"}).status_code == 400


@pytest.mark.parametrize(("header", "host"), [("[::1]:80", "::1"), ("a:b", None), ("a/b", None), ("a:123456", None)])
def test_a_host_is_read_without_its_port(header: str, host: str | None) -> None:
    assert host_of(header) == host


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 201),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:8321"}, 201),
        ({"Sec-Fetch-Site": "none"}, 201),
        ({"Origin": "http://127.0.0.1:8321"}, 201),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_another_sites_form_changes_nothing(
    services: Services, api: TestClient, headers: dict[str, str], status: int
) -> None:
    assert api.put(PATH, content=TRACE, headers=headers).status_code == status
    if status == 403:
        assert kept(services) == NOTHING
        for path in ("/login", "/upload", f"/t/{sha256(TRACE)}/delete"):
            assert api.post(path, content=b"token=x", headers=headers).status_code == 403


def test_no_answer_lets_another_site_read_it(api: TestClient) -> None:
    for method, path in (("GET", LIST), ("OPTIONS", LIST), ("GET", "/"), ("GET", "/nowhere")):
        headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "PUT"}
        answer = api.request(method, path, headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("where", ["query", "encoded", "path", "name", "wrong"])
def test_a_token_in_an_address_is_refused_and_logged_nowhere(
    services: Services, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = token_of(services, "admin")
    path = {
        "query": f"{LIST}?token={token}",
        "encoded": f"{LIST}?q=%74%61_{token[3:]}",
        "path": f"/s/{token}",
        "name": f"{PATH}?model={token}",
        "wrong": f"{LIST}?access_token=guess",
    }[where]
    caplog.set_level(logging.DEBUG)
    answer = client(create_app(services), token).request("PUT" if where == "name" else "GET", path, content=TRACE)
    assert answer.status_code == 400
    secret = secret_of(token)
    lines = "\n".join(
        logs.JsonLines().format(record) for record in caplog.records if not record.name.startswith("httpx2")
    )
    assert '"status": 400' in lines
    assert secret not in lines
    assert secret not in answer.text
    assert kept(services) == NOTHING


def test_the_log_says_routes_and_no_addresses(
    services: Services, api: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "traceanalyzer")
    api.put(PATH, content=TRACE, params={"model": "secret-model"})
    link = api.post(f"{PATH}/links", json={}).json()["url"].rpartition("/")[2]
    api.get(f"/s/{link}")
    api.get(f"/nowhere/{link}")
    lines = [json.loads(logs.JsonLines().format(record)) for record in caplog.records]
    assert [line["status"] for line in lines[:2]] == [201, 201]
    assert lines[0]["received"] == len(TRACE)
    assert lines[0]["route"] == "/api/v1/traces/{sha256}"
    text = json.dumps(lines)
    for secret in (link, "secret-model", sha256(TRACE)):
        assert secret not in text


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("GET", "/", "/"),
        ("HEAD", "/jobs", "/jobs"),
        ("GET", PATH.removeprefix("/api/v1/traces").replace("/", "/t/", 1), "/t/{sha256}"),
        ("GET", "/s/" + "x" * 43, "/s/{secret}"),
        ("GET", "/static/server.css", "/static/{name}"),
        ("POST", "/login", "/login"),
        ("POST", "/upload", "/upload"),
        ("GET", PATH, "/api/v1/traces/{sha256}"),
        ("GET", f"{PATH}/report", "/api/v1/traces/{sha256}/report"),
        ("DELETE", "/api/v1/links/0123456789ab", "/api/v1/links/{id}"),
        ("GET", "/api/v1/health", "/api/v1/health"),
        ("GET", "/metrics", "/metrics"),
        ("GET", "/.env", "-"),
    ],
)
def test_a_request_is_counted_by_its_route(
    api: TestClient, caplog: pytest.LogCaptureFixture, method: str, path: str, route: str
) -> None:
    caplog.set_level(logging.INFO, "traceanalyzer.requests")
    status = api.request(method, path).status_code
    assert [record.__dict__["route"] for record in caplog.records if record.name == "traceanalyzer.requests"] == [route]
    counted = f'traceanalyzer_requests_total{{method="{method}",route="{route}",status="{status}"}} 1.0'
    assert counted in api.get("/metrics").text


def test_a_traceback_in_the_log_holds_no_token(services: Services) -> None:
    text = token_of(services, "read")
    try:
        raise ValueError(f"{text} /s/{secrets.token_urlsafe(32)}")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "failed for %s", (text,), __import__("sys").exc_info())
    line = logs.JsonLines().format(record)
    assert json.loads(line)["level"] == "error"
    assert secret_of(text) not in line
    assert "/s/..." in line


def test_an_unexpected_failure_tells_nothing_and_keeps_the_headers(
    services: Services, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("inner detail /home/x")

    monkeypatch.setattr(services.traces, "find", broken)
    answer = api.get(LIST)
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "inner detail" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_every_answer_has_the_headers(api: TestClient) -> None:
    for path in ("/", LIST, "/nowhere", "/metrics", "/login", "/api/v1/openapi.json", f"{PATH}/report"):
        answer = api.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["x-frame-options"] == "DENY", path
        assert "default-src 'none'" in answer.headers["content-security-policy"], path
        assert "no-store" in answer.headers["cache-control"], path
        assert answer.headers["referrer-policy"] in ("no-referrer", "same-origin"), path
        assert "strict-transport-security" not in answer.headers


def test_https_is_kept_where_the_server_is_known_by_it(tmp_path: Path) -> None:
    with opened(tmp_path / "server", public_url="https://traces.example") as services:
        api = client(create_app(services))
        assert api.get(LIST).headers["strict-transport-security"].startswith("max-age=")
        assert api.put(PATH, content=TRACE).json()["url"] == f"https://traces.example/t/{sha256(TRACE)}"


def test_a_link_opens_one_report_until_it_is_revoked_or_expires(services: Services, api: TestClient) -> None:
    api.put(PATH, content=TRACE)
    token_of(services, "read")
    stranger = client(create_app(services), address="203.0.113.9")
    _, good = services.links.make(sha256(TRACE), "x")
    revoked, stolen = services.links.make(sha256(TRACE), "x")
    _, ended = services.links.make(sha256(TRACE), "x", 60, now_ms() - 61_000)
    working = stranger.get(f"/s/{good}").status_code
    assert working not in (410, 401)
    assert stranger.get(f"/s/{stolen}").status_code == working
    services.links.revoke(revoked.id)
    for path in (f"/s/{stolen}", f"/s/{stolen}/report", f"/s/{ended}", f"/s/{ended}/report"):
        assert stranger.get(path).status_code == 410
    assert stranger.get(f"/s/{secrets.token_urlsafe(32)}").status_code == 404
    for path in (LIST, PATH, f"{PATH}/report"):
        assert stranger.get(path, headers={"Authorization": f"Bearer {good}"}).status_code == 401


SCOPES = ("upload", "read", "delete")
ROUTES: dict[tuple[str, str], frozenset[str]] = {
    ("PUT", PATH): frozenset({"upload"}),
    ("HEAD", PATH): frozenset({"upload", "read"}),
    ("GET", PATH): frozenset({"read"}),
    ("GET", LIST): frozenset({"read"}),
    ("GET", f"{PATH}/report"): frozenset({"read"}),
    ("GET", f"{PATH}/links"): frozenset({"read"}),
    ("POST", f"{PATH}/links"): frozenset({"read"}),
    ("DELETE", "/api/v1/links/0123456789ab"): frozenset({"read"}),
    ("GET", "/api/v1/metrics"): frozenset({"read"}),
    ("GET", "/metrics"): frozenset({"read"}),
    ("DELETE", PATH): frozenset({"delete"}),
}


def test_every_route_needs_its_scope(services: Services) -> None:
    app = create_app(services)
    tokens = {scope: token_of(services, scope) for scope in (*SCOPES, "admin")}
    for (method, path), wanted in ROUTES.items():
        content = b"{}" if method == "POST" else b"no trace" if method == "PUT" else None
        for scope in SCOPES:
            status = client(app, tokens[scope]).request(method, path, content=content).status_code
            assert (status == 403) == (scope not in wanted), (method, path, scope)
            assert status != 401
        assert client(app, tokens["admin"]).request(method, path, content=content).status_code not in (401, 403)
        refused = client(app).request(method, path, content=content)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
    assert client(app).get("/api/v1/health").status_code == 200
    assert kept(services) == NOTHING


def test_a_token_that_is_wrong_revoked_or_expired_opens_nothing(services: Services) -> None:
    app = create_app(services)
    good = token_of(services, "admin")
    other, revoked = services.tokens.make("x", ("admin",))
    services.tokens.revoke(other.id)
    expired = token_of(services, "admin", expires_s=60, now=now_ms() - 61_000)
    secret = secret_of(good)
    head = good[: -len(secret) - 1]
    swapped = f"{revoked[: -len(secret)]}{secret}"
    for text in (revoked, expired, f"{head}_{secret[::-1]}", swapped, good[:-1], good + "x", "", "ta_", "x" * 8000):
        assert client(app, text or " ").put(PATH, content=TRACE).status_code == 401, text
    assert client(app).put(PATH, content=TRACE, headers={"Authorization": f"Basic {good}"}).status_code == 401
    assert client(app, good).get(LIST).status_code == 200
    assert kept(services) == NOTHING


def test_nobody_else_is_trusted_while_no_token_exists(services: Services) -> None:
    app = create_app(services)
    assert client(app).get(LIST).status_code == 200
    assert client(app, address="::1").get(LIST).status_code == 200
    for address in ("10.0.0.5", "203.0.113.9", "testclient", "::ffff:10.0.0.5"):
        assert client(app, address=address).put(PATH, content=TRACE).status_code == 401
    for header in ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"):
        assert client(app).put(PATH, content=TRACE, headers={header: "127.0.0.1"}).status_code == 401
    assert kept(services) == NOTHING


@pytest.mark.parametrize("header", ["Bearer ", "Bearer ta_...", "Bearer ta_000000000000_" + "A" * 43, "Basic eDp5", ""])
def test_a_header_is_ignored_on_this_machine_until_the_first_token(services: Services, header: str) -> None:
    app, headers = create_app(services), {"Authorization": header}
    assert client(app).get(LIST, headers=headers).status_code == 200
    assert client(app, address="10.0.0.5").get(LIST, headers=headers).status_code == 401
    assert client(app).get(LIST, headers={**headers, "Via": "1.1 proxy"}).status_code == 401
    token, _ = services.tokens.make("x", ("read",))
    services.tokens.revoke(token.id)
    assert client(app).get(LIST, headers=headers).status_code == 401


def test_a_session_ends_with_its_token_and_cannot_be_forged(services: Services) -> None:
    app = create_app(services)
    token, _ = services.tokens.make("x", ("read",))
    sessions: Sessions = app.state.sessions
    cookie = sessions.make(token.id, token.hash)
    browser = client(app, address="203.0.113.9")

    def seen(value: str) -> int:
        return browser.get(LIST, headers={"Cookie": f"{COOKIE}={value}"}).status_code

    assert seen(cookie) == 200
    forged = Sessions(b"another secret").make(token.id, token.hash)
    other_hash = sessions.make(token.id, "0" * 64)
    for value in (forged, other_hash, cookie[:-2], cookie + "x", token.id, ""):
        assert seen(value) == 401
    delete = browser.delete(PATH, headers={"Cookie": f"{COOKIE}={cookie}", "Sec-Fetch-Site": "same-origin"})
    assert delete.status_code == 403
    services.tokens.revoke(token.id)
    assert seen(cookie) == 401


def test_a_caller_that_asks_too_often_waits(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 5, "failures_per_minute": 3, "upload_bytes_per_hour": len(TRACE) + 1}
    with opened(tmp_path / "server", limits=limits) as services:
        app = create_app(services)
        busy, calm = client(app, token_of(services, "upload", "read")), client(app, token_of(services, "upload"))
        assert [busy.head(PATH).status_code for _ in range(7)] == [404] * 5 + [429] * 2
        waiting = busy.put(PATH, content=TRACE)
        assert waiting.status_code == 429
        assert 0 < int(waiting.headers["retry-after"]) <= 60
        other = b'{"traceEvents":[1]}'
        assert calm.put(PATH, content=TRACE).status_code == 201
        assert calm.put(path_of(other), content=other).status_code == 201  # one byte was left, and debt is allowed
        more = b'{"traceEvents":[2]}'
        late = calm.put(path_of(more), content=more)
        assert (late.status_code, int(late.headers["retry-after"]) > 60) == (429, True)
        assert len(kept(services)["blobs"]) == 2
        nobody = client(app, address="203.0.113.9")
        assert [nobody.get(LIST).status_code for _ in range(5)] == [401] * 3 + [429] * 2
        assert client(app, address="203.0.113.8").get(LIST).status_code == 401
