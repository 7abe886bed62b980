"""Hostile bodies and labels: each is refused with its own status, and nothing of it is stored anywhere."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.server.asking import NOTHING, TRACE, client, kept, opened, path_of, sha256
from traceanalyzer.server.app import create_app
from traceanalyzer.server.services import Services

LIMITS = {"max_body_bytes": 2 << 20, "max_text_bytes": 32 << 20}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """One server for every attack: it stays empty."""
    with opened(tmp_path_factory.mktemp("server"), limits=LIMITS) as made:
        yield made


@pytest.fixture
def api(services: Services) -> TestClient:
    return client(create_app(services))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Services]:
    with opened(tmp_path / "server", limits=LIMITS) as made:
        yield made


def nested(depth: int) -> bytes:
    return b'{"traceEvents":[{"args":{"x":' + b"[" * depth + b"]" * depth + b"}}]}"


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("../../trace.json", "{}")
    return made.getvalue()


def tarred(mode: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:  # type: ignore[call-overload]
        entry = tarfile.TarInfo("../../trace.json")
        entry.size = 2
        archive.addfile(entry, io.BytesIO(b"{}"))
    return made.getvalue()


def many_events(count: int) -> bytes:
    event = b'{"ph":"X","ts":1,"dur":1},'
    return gzip.compress(b'{"traceEvents":[' + event * count + b"{}]}", 1)


NAME = b'{"traceEvents":[{"ph":"X","name":"' + b"a" * 1_000_000 + b'"}]}'
KEY = b'{"traceEvents":[{"' + b"a" * 1_000_000 + b'":1}]}'
ESCAPED = b'{"traceEvents":[{"ph":"X","name":"' + b"\\u0061" * 200_000 + b'"}]}'
BODIES: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 400),
    "zip": (zipped(), 415),
    "tar": (tarred("w"), 415),
    "tar.gz": (tarred("w:gz"), 415),
    "pickle": (pickle.dumps({"traceEvents": []}), 415),
    "pickle in gzip": (gzip.compress(pickle.dumps({"traceEvents": []}, protocol=5)), 415),
    "html": (b"<script>alert(1)</script>", 415),
    "program": (b"\x7fELF" + b"\0" * 600, 415),
    "over the limit": (b'{"traceEvents":[' + b"1," * (1 << 20) + b"1]}", 413),
    "gzip bomb": (gzip.compress(b'{"traceEvents":[' + b" " * (24 << 20) + b"]}"), 413),
    "gzip bomb in members": (gzip.compress(b'{"traceEvents":[') + gzip.compress(b" " * (1 << 20)) * 24, 413),
    "gzip bomb of text": (gzip.compress(b"[" + random.Random(1).randbytes(16).hex().encode() * (1 << 21)), 413),
    "empty members": (gzip.compress(b"[]") + gzip.compress(b"") * 70_000, 413),
    "nested lists": (nested(100_000), 422),
    "nested a little too deep": (nested(61), 422),
    "nested objects": (b'{"a":' * 1000 + b"1" + b"}" * 1000, 422),
    "million-character name": (NAME, 422),
    "million-character key": (KEY, 422),
    "million-character name in escapes": (ESCAPED, 422),
    "ten million events": (many_events(10_000_000), 413),
}


@pytest.mark.parametrize("what", BODIES)
def test_a_hostile_body_is_refused_and_leaves_nothing(services: Services, api: TestClient, what: str) -> None:
    body, status = BODIES[what]
    answer = api.put(path_of(body), content=body, params={"model": "m"})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert kept(services) == NOTHING
    assert not services.audit.recent()


def test_what_is_just_allowed_is_stored(fresh: Services) -> None:
    api = client(create_app(fresh))
    for body in (nested(60), b'{"traceEvents":[{"name":"' + b"a" * 499_990 + b'"}]}'):
        assert api.put(path_of(body), content=body).status_code == 201


def test_more_events_than_an_analysis_can_hold_are_refused_whatever_their_size(tmp_path: Path) -> None:
    draw = random.Random(7)
    events = ",".join(f'{{"ph":"X","ts":{draw.random()},"n":"{draw.randbytes(20).hex()}"}}' for _ in range(2001))
    body = gzip.compress(f'{{"traceEvents":[{events}]}}'.encode())
    for most, status in ((2000, 413), (2001, 201)):
        with opened(tmp_path / str(most), limits={"max_events": most}) as services:
            answer = client(create_app(services)).put(path_of(body), content=body)
            assert answer.status_code == status
            assert (kept(services) == NOTHING) == (status == 413)


@pytest.mark.parametrize(
    "change", [lambda b: b[:-1], lambda b: b + b" ", lambda b: b[:9] + b"\xff" + b[10:], lambda b: b[:20]]
)
def test_bytes_that_do_not_have_the_hash_are_refused(services: Services, api: TestClient, change) -> None:
    body = change(b'{"traceEvents":[{"ph":"X","name":"aten::add"}]}')
    right = sha256(b'{"traceEvents":[{"ph":"X","name":"aten::add"}]}')
    answer = api.put(f"/api/v1/traces/{right}", content=body)
    assert answer.status_code == 400  # not for good: the next try may arrive as it was sent
    assert "SHA-256" in answer.json()["detail"]
    assert kept(services) == NOTHING


@pytest.mark.parametrize(
    "digest",
    ["", "0" * 63, "0" * 65, "G" * 64, sha256(TRACE).upper(), "..%2F..%2Fetc%2Fpasswd", "%00" * 64, "../" * 10],
)
def test_only_a_hash_names_a_trace(services: Services, api: TestClient, digest: str) -> None:
    answer = api.put(f"/api/v1/traces/{digest}", content=TRACE)
    assert answer.status_code in (404, 405, 422)
    assert kept(services) == NOTHING


NAMES = (
    "../../etc/passwd",
    "..",
    "/etc/passwd",
    "..\\..\\boot.ini",
    "C:\\x",
    "a\0b",
    "a\nb",
    "a\u202eb",
    "\x1b[31mred",
    "n" * 201,
    "n" * 60_000,
)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_a_name_is_a_base_name_that_can_be_shown(services: Services, api: TestClient, name: str) -> None:
    answer = api.put(path_of(TRACE), content=TRACE, params={"name": name})
    assert answer.status_code == 422
    assert kept(services) == NOTHING


LABELS = ("model", "engine", "host", "revision", "environment", "recording")


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("value", ["a\0b", "a\x1b[2Jb", "n" * 201, "\u2066x"], ids=ascii)
def test_a_label_is_short_and_can_be_shown(services: Services, api: TestClient, label: str, value: str) -> None:
    assert api.put(path_of(TRACE), content=TRACE, params={label: value}).status_code == 422
    assert kept(services) == NOTHING


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e400", "x", "1e11"])
def test_a_weight_is_a_number_of_seconds(services: Services, api: TestClient, value: str) -> None:
    assert api.put(path_of(TRACE), content=TRACE, params={"weight_s": value}).status_code == 422
    assert kept(services) == NOTHING


def test_an_unknown_label_is_told_and_not_lost(services: Services, api: TestClient) -> None:
    assert api.put(path_of(TRACE), content=TRACE, params={"modle": "x"}).status_code == 422
    assert kept(services) == NOTHING


def test_html_in_every_field_stays_text(fresh: Services) -> None:
    api = client(create_app(fresh))
    html = "<img src=x onerror=alert(1)>\"'&"
    said = dict.fromkeys((*LABELS, "name"), html.replace("/", ""))
    body = json.dumps({"traceEvents": [{"ph": "X", "name": html, "cat": html, "args": {html: html}}]}).encode()
    assert api.put(path_of(body), content=body, params=said).status_code == 201
    fresh.traces.set_failed(sha256(body), html)
    for path in ("/api/v1/traces", path_of(body), f"{path_of(body)}/report", f"{path_of(body)}/links"):
        answer = api.get(path)
        assert not answer.headers["content-type"].startswith("text/html")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "\n" not in answer.headers.get("content-disposition", "")
        assert "<" not in answer.headers.get("content-disposition", "")
    for path in ("/", f"/t/{sha256(body)}", "/jobs", f"/?q={html}", f"/?model={html}"):
        page = api.get(path)
        assert page.status_code == 200
        assert "<img src=x" not in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "alert(1)" in api.get(f"/t/{sha256(body)}").text
