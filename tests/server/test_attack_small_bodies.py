"""Requests with a small body: a stranger is told so before it is read; nobody fills the memory or stays for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.server.asking import TRACE, Wire, client, listening, opened, path_of, token_of
from tests.server.serving import make_token, serving
from traceanalyzer.server.app import create_app
from traceanalyzer.server.services import Services

LINKS = f"{path_of(TRACE)}/links"
FORM = f"/t/{'0' * 64}/pin"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with opened(tmp_path_factory.mktemp("server"), limits={"slow_body_s": 0.4}) as made:
        yield made


@pytest.fixture(scope="module")
def token(services: Services) -> str:
    client(create_app(services)).put(path_of(TRACE), content=TRACE)
    return token_of(services, "read", "upload")


@pytest.fixture
def wire(services: Services, token: str) -> Iterator[Wire]:
    with listening(services) as port, Wire(port) as made:
        yield made


def flood(wire: Wire, pieces: int) -> threading.Thread:
    """Send a body of so many MiB, as far as the server takes it."""

    def send() -> None:
        with suppress(OSError):
            for _ in range(pieces):
                wire.chunk(b" " * (1 << 20))
            wire.send(b"0\r\n\r\n")

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_stranger_cannot_fill_the_memory(tmp_path: Path) -> None:
    with serving(tmp_path / "server", "--workers", "0") as running:
        make_token(tmp_path / "server", "read")
        process = psutil.Process(running.process.pid)
        before = process.memory_info().rss
        with Wire(running.port) as wire:
            wire.head("POST", LINKS, Transfer_Encoding="chunked", Content_Type="application/json")
            sending = flood(wire, 100)
            status = wire.status()
            grown = process.memory_info().rss - before
        sending.join(30)
        assert status == 401
        assert grown < 40 << 20


@pytest.mark.parametrize(("size", "status"), [(16_300, 201), (16_400, 413)])
def test_a_link_s_request_is_small(wire: Wire, token: str, size: int, status: int) -> None:
    headers = {"Authorization": f"Bearer {token}", "Content_Type": "application/json"}
    wire.head("POST", LINKS, Content_Length=str(size), **headers)
    wire.send(b'{"expires_s": 60}'.ljust(size))
    assert wire.status() == status


@pytest.mark.parametrize("path", [LINKS, FORM, "/login"])
def test_a_small_body_that_stops_is_ended(wire: Wire, token: str, path: str) -> None:
    wire.head("POST", path, Content_Length="10", Authorization=f"Bearer {token}", Content_Type="application/json")
    wire.send(b"{")
    assert wire.status() == 408


@pytest.mark.parametrize("path", [LINKS, FORM, "/login"])
def test_a_small_body_that_breaks_off_is_no_failure_of_the_server(wire: Wire, token: str, path: str) -> None:
    wire.head("POST", path, Content_Length="10", Authorization=f"Bearer {token}", Content_Type="application/json")
    wire.send(b"{")
    wire.half_close()
    assert wire.status() in (0, 400)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        ("{}", "application/json; charset=utf-8", 201),
        ("{}", "text/plain", 415),
        ("", "application/json", 422),
        ("{", "application/json", 422),
        ("[]", "application/json", 422),
        ('{"expires_s": 0}', "application/json", 422),
        ('{"expires_s": NaN}', "application/json", 422),
        ('{"expires": 60}', "application/json", 422),
        ("[" * 16_000, "application/json", 422),
    ],
)
def test_a_link_s_request_is_as_described(services: Services, token: str, body: str, kind: str, status: int) -> None:
    answer = client(create_app(services), token).post(LINKS, content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
    assert status == 201 or answer.json()["detail"]
