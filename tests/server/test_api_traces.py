"""The life of a trace over HTTP: stored, looked up, listed, fetched, reported, shared, deleted."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server.asking import NOTHING, TRACE, client, kept, opened, path_of, sha256, until
from traceanalyzer.server import ingest, storing
from traceanalyzer.server.app import create_app
from traceanalyzer.server.blobs import key_of_report, key_of_trace
from traceanalyzer.server.database.engine import Busy
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.services import Services
from traceanalyzer.server.text import now_ms
from traceanalyzer.server.traces import Found
from traceanalyzer.share.redact import redact_file

HASH = sha256(TRACE)
PATH = path_of(TRACE)


class FakeQueue:
    """Counts how often it was told to look."""

    def __init__(self) -> None:
        self.woken = 0
        self.tidied = 0
        self.workers = 1

    def wake(self) -> None:
        self.woken += 1

    def short_of_space(self) -> None:
        self.tidied += 1


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with opened(tmp_path / "server") as made:
        yield made


@pytest.fixture
def api(services: Services) -> TestClient:
    return client(create_app(services))


def report(services: Services, tmp_path: Path, kind: str, text: str) -> None:
    (tmp_path / kind).write_text(text, encoding="utf-8")
    services.blobs.put_file(key_of_report(HASH, kind), tmp_path / kind)


def test_a_trace_is_stored_once_byte_by_byte(services: Services, api: TestClient) -> None:
    first = api.put(
        PATH, content=TRACE, params={"name": "run.json.gz", "model": "m", "weight_s": 2.5, "pinned": "true"}
    )
    assert first.status_code == 201
    assert first.json() == {
        "sha256": HASH, "state": "queued", "bytes": len(TRACE), "url": f"http://127.0.0.1:8321/t/{HASH}",
    }  # fmt: skip
    row = services.traces.get(HASH)
    assert row is not None
    assert (row.name, row.model, row.weight_s, row.pinned) == ("run.json.gz", "m", 2.5, True)
    assert row.text_bytes == len(gzip.decompress(TRACE))
    again = api.put(PATH, content=TRACE, params={"model": "other"})
    assert again.status_code == 200
    assert again.json() == first.json()
    assert kept(services) == {"blobs": [key_of_trace(HASH)], "incoming": [], "traces": [HASH], "jobs": [HASH]}
    changed = services.traces.get(HASH)
    assert changed is not None
    assert (changed.model, changed.name) == ("other", "run.json.gz")
    assert [entry.action for entry in services.audit.recent(subject=HASH)] == ["upload", "upload"]


@pytest.mark.parametrize("before", ["queued", "failed", "analysed"])
def test_a_stored_trace_whose_blob_is_gone_is_taken_in_again(services: Services, before: str) -> None:
    queue = FakeQueue()
    api = client(create_app(services, queue))  # type: ignore[arg-type]
    api.put(PATH, content=TRACE, params={"model": "m"})
    if before != "queued":
        (job,) = services.jobs.of(HASH)
        services.jobs.take(job.id, now_ms())
        if before == "analysed":
            services.traces.set_analysed(HASH, Found(), now_ms())
            services.jobs.done(job.id, now_ms())
        else:
            services.jobs.dead(job.id, "the stored trace is gone", now_ms())
    services.blobs.delete(key_of_trace(HASH))
    assert api.head(PATH).status_code == 404  # so a client does not take it for stored, and sends it
    woken = queue.woken
    assert api.put(PATH, content=TRACE).status_code == 201
    assert services.blobs.size(key_of_trace(HASH)) == len(TRACE)
    assert api.head(PATH).headers["x-traceanalyzer-state"] == ("analysed" if before == "analysed" else "queued")
    assert [job.state for job in services.jobs.unfinished()] == ["queued"]
    assert queue.woken == woken + 1
    row = services.traces.get(HASH)
    assert row is not None
    assert row.model == "m"
    assert api.put(PATH, content=TRACE).status_code == 200


def test_a_blob_that_cannot_be_analysed_again_is_not_kept(
    services: Services, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next try would find it stored, and its analysis would never be asked for."""
    api.put(PATH, content=TRACE)
    services.blobs.delete(key_of_trace(HASH))

    def busy(*_: object) -> None:
        raise Busy("the database is busy")

    with monkeypatch.context() as patch:
        patch.setattr(services.jobs, "requeue", busy)
        assert api.put(PATH, content=TRACE).status_code == 503
    assert services.blobs.size(key_of_trace(HASH)) is None
    assert api.put(PATH, content=TRACE).status_code == 201


def test_head_says_whether_a_trace_is_there(api: TestClient) -> None:
    assert api.head(PATH).status_code == 404
    api.put(PATH, content=TRACE)
    there = api.head(PATH)
    assert (there.status_code, there.content) == (200, b"")
    assert there.headers["x-traceanalyzer-state"] == "queued"
    assert there.headers["content-length"] == str(len(TRACE))


@pytest.mark.parametrize(
    ("body", "media_type"), [(TRACE, "application/gzip"), (gzip.decompress(TRACE), "application/octet-stream")]
)
def test_a_raw_trace_is_a_download_and_nothing_a_browser_shows(api: TestClient, body: bytes, media_type: str) -> None:
    api.put(path_of(body), content=body, params={"name": 'läuft; "x".json'})
    answer = api.get(path_of(body))
    assert answer.content == body
    assert answer.headers["content-type"] == media_type
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"l_uft_x_.json\"; filename*=UTF-8''l%C3%A4uft%3B%20%22x%22.json"
    )
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_report_is_waited_for_served_sandboxed_and_stays_while_it_is_renewed(
    services: Services, api: TestClient, tmp_path: Path
) -> None:
    assert api.get(f"{PATH}/report").status_code == 404
    api.put(PATH, content=TRACE)
    waiting = api.get(f"{PATH}/report")
    assert (waiting.status_code, waiting.json()) == (202, {"sha256": HASH, "state": "queued"})
    assert int(waiting.headers["retry-after"]) > 0
    report(services, tmp_path, "page.html", "<title>r</title>")
    report(services, tmp_path, "report.json", '{"a":1}')
    report(services, tmp_path, "report.md", "# r")
    services.traces.set_analysed(HASH, Found(headline="h", analyser="0"), now_ms())
    page = api.get(f"{PATH}/report")
    assert (page.status_code, page.text) == (200, "<title>r</title>")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy
    assert page.headers["x-frame-options"] == "SAMEORIGIN"
    assert api.get(f"{PATH}/report", params={"format": "json"}).json() == {"a": 1}
    markdown = api.get(f"{PATH}/report", params={"format": "md"})
    assert (markdown.text, markdown.headers["content-type"]) == ("# r", "text/markdown; charset=utf-8")
    services.jobs.requeue(HASH, "version")
    assert api.get(f"{PATH}/report").status_code == 200
    assert api.get(f"{PATH}/report", params={"format": "pdf"}).status_code == 422
    assert [entry.action for entry in services.audit.recent(subject=HASH)].count("view") == 4


def test_a_failed_analysis_is_told_with_its_reason(services: Services, api: TestClient) -> None:
    api.put(PATH, content=TRACE)
    services.traces.set_failed(HASH, "it holds no GPU kernel <b>")
    answer = api.get(f"{PATH}/report")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert "no GPU kernel <b>" in answer.json()["detail"]


def test_the_list_is_searched_and_paged(api: TestClient) -> None:
    bodies = [json.dumps({"traceEvents": [], "n": n}).encode() for n in range(7)]
    for number, body in enumerate(bodies):
        api.put(path_of(body), content=body, params={"model": f"m{number % 2}", "name": f"file{number}.json"})
    found, after = [], None
    while True:
        page = api.get("/api/v1/traces", params={"size": 3, **({"after": after} if after else {})}).json()
        assert page["total"] == 7
        found += [trace["sha256"] for trace in page["traces"]]
        after = page["next"]
        if after is None:
            break
    assert sorted(found) == sorted(map(sha256, bodies))
    assert len(api.get("/api/v1/traces", params={"model": "m1"}).json()["traces"]) == 3
    assert len(api.get("/api/v1/traces", params={"q": "FILE5"}).json()["traces"]) == 1
    assert api.get("/api/v1/traces", params={"until": 5}).json() == {"traces": [], "next": None, "total": 0}
    assert api.get("/api/v1/traces", params={"after": "nonsense"}).status_code == 422
    assert api.get("/api/v1/traces", params={"modle": "m1"}).status_code == 422


def test_links_are_made_listed_and_revoked(services: Services, api: TestClient) -> None:
    assert api.post(f"{PATH}/links", json={}).status_code == 404
    api.put(PATH, content=TRACE)
    made = api.post(f"{PATH}/links", json={"expires_s": 60})
    assert made.status_code == 201
    link = made.json()
    secret = link["url"].removeprefix("http://127.0.0.1:8321/s/")
    assert len(secret) == 43  # 256 bits in base 64
    assert link["expires_at"] - link["created_at"] == 60_000
    assert services.links.open(secret) is not None
    listed = api.get(f"{PATH}/links")
    assert secret not in listed.text
    assert [entry["id"] for entry in listed.json()["links"]] == [link["id"]]
    assert api.delete(f"/api/v1/links/{link['id']}").status_code == 204
    assert services.links.open(secret) is None
    assert api.delete(f"/api/v1/links/{link['id']}").status_code == 404
    assert api.get(f"{PATH}/links").json()["links"][0]["revoked_at"] is not None
    actions = [entry.action for entry in services.audit.recent()]
    assert {"share", "revoke"} < set(actions)
    assert secret not in str([entry.detail for entry in services.audit.recent()])


def test_deleting_leaves_nothing(services: Services, api: TestClient, tmp_path: Path) -> None:
    api.put(PATH, content=TRACE)
    report(services, tmp_path, "page.html", "x")
    assert api.delete(PATH).status_code == 204
    assert kept(services) == NOTHING
    assert api.delete(PATH).status_code == 404
    assert services.audit.recent()[0].action == "delete"


def test_a_new_trace_wakes_the_queue_and_health_asks_it(services: Services) -> None:
    queue = FakeQueue()
    api = client(create_app(services, queue))  # type: ignore[arg-type]
    api.put(PATH, content=TRACE)
    api.put(PATH, content=TRACE)
    assert queue.woken == 1
    assert api.get("/api/v1/health").json() == {"status": "ok"}
    queue.workers = 0
    assert api.get("/api/v1/health").status_code == 503


def test_a_full_disk_has_room_made(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FakeQueue()
    api = client(create_app(services, queue))  # type: ignore[arg-type]
    usage = shutil.disk_usage(services.settings.folder)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage._replace(free=0))
    assert api.put(PATH, content=TRACE).status_code == 507
    assert queue.tidied == 1


def test_two_servers_worth_of_metrics_are_counted_apart(services: Services, api: TestClient) -> None:
    api.put(PATH, content=TRACE)
    api.put(PATH, content=TRACE)
    api.put(f"/api/v1/traces/{'0' * 64}", content=TRACE)
    text = api.get("/api/v1/metrics").text
    assert 'traceanalyzer_uploads_total{outcome="stored"} 1.0' in text
    assert 'traceanalyzer_uploads_total{outcome="known"} 1.0' in text
    assert 'traceanalyzer_uploads_total{outcome="refused"} 1.0' in text
    assert f"traceanalyzer_upload_bytes_total {float(len(TRACE))}" in text
    assert 'traceanalyzer_traces{state="queued"} 1.0' in text
    assert 'traceanalyzer_jobs{state="queued"} 1.0' in text
    assert 'status="400"' in text
    for name in ("queue_age_seconds", "disk_free_bytes", "stored_bytes"):
        assert f"\ntraceanalyzer_{name} " in text
    assert HASH not in text
    assert api.get("/metrics").text.splitlines()[0] == text.splitlines()[0]
    other = client(create_app(services))
    assert "uploads_total{" not in other.get("/metrics").text


def test_analyses_are_timed_once(services: Services, api: TestClient) -> None:
    api.put(PATH, content=TRACE)
    job = services.jobs.unfinished()[0]
    services.jobs.take(job.id, now_ms())
    ended = now_ms() + 3000
    services.jobs.done(job.id, ended)
    for _ in range(2):
        text = api.get("/metrics").text
        assert 'traceanalyzer_analysis_seconds_count{state="done"} 1.0' in text
        assert 'traceanalyzer_analysis_seconds_bucket{le="10.0",state="done"} 1.0' in text
        assert 'traceanalyzer_analysis_seconds_bucket{le="2.0",state="done"} 0.0' in text


def test_version_says_what_the_server_takes(api: TestClient) -> None:
    told = api.get("/api/v1/version").json()
    assert (told["api"], told["max_body_bytes"], told["redacted_only"]) == (1, 256 << 20, False)


def test_a_full_disk_stores_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "server", limits={"min_free_bytes": 1 << 60}) as services:
        answer = client(create_app(services)).put(PATH, content=TRACE)
        assert answer.status_code == 507
        assert kept(services) == NOTHING


def test_nothing_is_left_where_the_database_fails(
    services: Services, api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(services.traces, "add", full)
    assert api.put(PATH, content=TRACE).status_code == 507
    assert kept(services) == NOTHING
    monkeypatch.undo()
    assert api.put(PATH, content=TRACE).status_code == 201
    assert until(lambda: kept(services)["blobs"]) == [key_of_trace(HASH)]


REDACTED = b'{"traceEvents":[{"ph":"X"}],"traceanalyzer":{"schema":1,"redaction":{"level":"%s","version":1,"paths":2}}}'


@pytest.mark.parametrize(
    ("body", "level", "status"),
    [
        (REDACTED % b"default", "default", 201),
        (REDACTED % b"strict", "strict", 201),
        (REDACTED % b"none", "none", 422),
        (b'{"traceanalyzer":{"schema":1,"window":{"number":1}},"traceEvents":[1]}', None, 422),
        (b'{"traceEvents":[1]}', None, 422),
        (b'{"traceEvents":[1],"traceanalyzer":{"schema":1,"redaction":', None, 422),
    ],
)
def test_a_server_may_take_redacted_traces_only(tmp_path: Path, body: bytes, level: str | None, status: int) -> None:
    for packed in (body, gzip.compress(body)):
        digest = sha256(packed)
        with opened(tmp_path / digest[:6], redacted_only=True) as strict:
            answer = client(create_app(strict)).put(path_of(packed), content=packed)
            assert answer.status_code == status
            assert (kept(strict) == NOTHING) == (status == 422)
        with opened(tmp_path / digest[6:12]) as services:
            client(create_app(services)).put(path_of(packed), content=packed)
            row = services.traces.get(digest)
            assert row is not None
            assert row.redaction == level


def test_what_redaction_writes_is_what_the_server_looks_for(tmp_path: Path) -> None:
    source, target = tmp_path / "a.json", tmp_path / "b.json.gz"
    events = ",".join(f'{{"ph":"X","cat":"kernel","name":"k","ts":{n},"dur":1,"args":{{}}}}' for n in range(9000))
    source.write_text(f'{{"host_name":"h","traceEvents":[{events}],"traceName":"/tmp/x"}}', encoding="utf-8")
    redact_file(source, target, "default")
    with opened(tmp_path / "server", redacted_only=True) as services:
        body = target.read_bytes()
        assert client(create_app(services)).put(path_of(body), content=body).status_code == 201


def test_a_deletion_between_blob_and_row_waits_for_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "server") as services:
        real = services.traces.add
        deletion = threading.Thread(target=storing.forget, args=(services, sha256(TRACE)))

        def meanwhile(*arguments: Any) -> bool:
            deletion.start()
            deletion.join(0.3)
            return real(*arguments)

        monkeypatch.setattr(services.traces, "add", meanwhile)
        path = services.settings.incoming / "x.part"
        path.write_bytes(TRACE)
        received = ingest.Received(path, sha256(TRACE), len(TRACE), 1, None)
        assert ingest.keep(services, received, Labels(), None).new
        deletion.join(20)
        assert kept(services) == NOTHING
