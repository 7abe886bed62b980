"""Hostile connections, over real sockets: slow, short, broken off, endless, many at once; nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.asking import NOTHING, TRACE, Wire, kept, listening, opened, path_of, sha256, until
from traceanalyzer.server import bodies, ingest
from traceanalyzer.server.blobs import key_of_trace
from traceanalyzer.server.ingest import Ingest
from traceanalyzer.server.labels import Labels
from traceanalyzer.server.problems import Problem
from traceanalyzer.server.services import Services

PATH = path_of(TRACE)
LIMITS = {"slow_body_s": 0.4, "max_body_bytes": 1 << 20}
LARGE = b"[" + gzip.compress(random.Random(3).randbytes(1 << 16)).hex().encode() * 64
"""8 MiB that no limit of its shape stops early."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with opened(tmp_path_factory.mktemp("server"), limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def port(services: Services) -> Iterator[int]:
    with listening(services) as found:
        yield found


@pytest.fixture
def wire(port: int) -> Iterator[Wire]:
    with Wire(port) as made:
        yield made


def until_empty(services: Services) -> None:
    """Nothing stays; what another test broke off may still be on its way out."""
    until(lambda: kept(services) == NOTHING)


def test_a_body_that_stops_is_ended(services: Services, wire: Wire) -> None:
    wire.head("PUT", PATH, Content_Length=str(len(TRACE)))
    wire.send(TRACE[:10])
    begun = time.monotonic()
    assert wire.status() == 408
    wire.read()  # to its end: the connection is closed, not kept for the rest
    assert time.monotonic() - begun < 20
    until_empty(services)


def test_a_body_that_crawls_is_ended(services: Services, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_RATE_AFTER_S", 0.5)
    wire.head("PUT", PATH, Transfer_Encoding="chunked")
    ended = threading.Event()

    def crawl() -> None:
        try:
            while not ended.wait(0.05):
                wire.chunk(b" ")
        except OSError:
            pass

    thread = threading.Thread(target=crawl)
    thread.start()
    try:
        assert wire.status() == 408
    finally:
        ended.set()
        thread.join()
    until_empty(services)


@pytest.mark.parametrize("half", [False, True], ids=["closed", "half closed"])
def test_a_short_body_is_not_stored(services: Services, wire: Wire, half: bool) -> None:
    wire.head("PUT", PATH, Content_Length=str(len(TRACE)))
    wire.send(TRACE[:-1])
    time.sleep(0.05)
    if half:
        wire.half_close()
        assert wire.status() in (0, 400, 408)
    wire.close()
    until_empty(services)


def test_a_connection_that_breaks_off_leaves_nothing(services: Services, port: int) -> None:
    for size in (0, 1, 5000, 300_000, 900_000):
        with Wire(port) as wire:
            wire.head("PUT", path_of(LARGE), Content_Length=str(1_000_000))
            wire.send(LARGE[:size])
            if size:
                time.sleep(0.02)
    until_empty(services)


def test_a_length_over_the_limit_is_refused_before_the_body(services: Services, wire: Wire) -> None:
    wire.head("PUT", path_of(LARGE), Content_Length=str(len(LARGE)), Expect="100-continue")
    assert wire.status() == 413
    until_empty(services)


def test_a_client_that_sends_all_the_same_gets_its_answer(services: Services, port: int) -> None:
    answer = httpx2.put(f"http://127.0.0.1:{port}{path_of(LARGE)}", content=LARGE, timeout=30, trust_env=False)
    assert answer.status_code == 413
    until_empty(services)


def test_a_body_without_an_end_is_cut_at_the_limit(services: Services, wire: Wire) -> None:
    wire.head("PUT", path_of(LARGE), Transfer_Encoding="chunked")
    with pytest.raises(OSError, match=r"reset|pipe"):
        for _ in range(100):
            wire.chunk(LARGE)
    until_empty(services)


def test_whoever_is_refused_at_the_gate_cannot_go_on_sending(wire: Wire) -> None:
    wire.head("PUT", PATH, Transfer_Encoding="chunked", Origin="https://evil.example")
    assert wire.status() == 403
    with pytest.raises(OSError, match=r"reset|pipe"):
        for _ in range(100):
            wire.chunk(LARGE)


@pytest.mark.parametrize(
    "head",
    [
        b"PUT %s HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " % PATH.encode() + b"a" * 200_000 + b"\r\n\r\n",
        b"PUT /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"PUT %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n" % PATH.encode(),
        b"PUT %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n" % PATH.encode(),
        b"PUT %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: abc\r\n\r\n" % PATH.encode(),
        b"PUT %s HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n" % PATH.encode(),
        b"PUT %s HTTP/1.1\r\n\r\n" % PATH.encode(),
        b"GET http://evil.example/api/v1/traces HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
    ],
    ids=["header", "address", "two lengths", "negative", "words", "two hosts", "no host", "proxy", "tls"],
)
def test_a_request_that_is_none_is_refused(services: Services, wire: Wire, head: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        wire.send(head)
    assert wire.status() in (0, 400)
    until_empty(services)


def test_a_broken_chunk_is_refused(services: Services, wire: Wire) -> None:
    wire.head("PUT", PATH, Transfer_Encoding="chunked")
    wire.chunk(TRACE[:20])
    wire.send(b"zz\r\nnonsense")
    assert wire.status() in (0, 400)
    until_empty(services)


def test_a_body_in_chunks_without_a_length_is_stored(tmp_path: Path) -> None:
    with opened(tmp_path / "server") as services, listening(services) as port, Wire(port) as wire:
        wire.head("PUT", PATH, Transfer_Encoding="chunked")
        for begin in range(0, len(TRACE), 7):
            wire.chunk(TRACE[begin : begin + 7])
        wire.send(b"0\r\n\r\n")
        assert wire.status() == 201
        assert kept(services)["blobs"] == [key_of_trace(sha256(TRACE))]


def test_two_hundred_uploads_of_one_hash_store_it_once_and_tell_the_truth(tmp_path: Path) -> None:
    body = b'{"traceEvents":[' + gzip.compress(random.Random(5).randbytes(100_000)).hex().join('""').encode() + b"]}"
    with opened(tmp_path / "server") as services, listening(services) as port:

        async def all_at_once() -> list[int]:
            limits = httpx2.Limits(max_connections=200)
            async with httpx2.AsyncClient(timeout=120, limits=limits, trust_env=False) as client:
                url = f"http://127.0.0.1:{port}{path_of(body)}"
                answers = await asyncio.gather(*(client.put(url, content=body) for _ in range(200)))
                for answer in answers:
                    assert (answer.json()["sha256"], answer.json()["bytes"]) == (sha256(body), len(body))
                return [answer.status_code for answer in answers]

        assert Counter(asyncio.run(all_at_once())) == {201: 1, 200: 199}
        digest = sha256(body)
        assert kept(services) == {"blobs": [key_of_trace(digest)], "incoming": [], "traces": [digest], "jobs": [digest]}
        assert b"".join(services.blobs.open(key_of_trace(digest))) == body


def test_uploads_and_deletions_of_one_hash_never_leave_a_row_without_its_blob(tmp_path: Path) -> None:
    with opened(tmp_path / "server") as services, listening(services) as port:
        url = f"http://127.0.0.1:{port}{PATH}"

        async def storm() -> Counter[int]:
            async with httpx2.AsyncClient(timeout=120, trust_env=False) as client:
                calls = [client.put(url, content=TRACE) if n % 3 else client.delete(url) for n in range(120)]
                return Counter([answer.status_code for answer in await asyncio.gather(*calls)])

        assert set(asyncio.run(storm())) <= {200, 201, 204, 404}
        left = kept(services)
        assert (left["traces"] == []) == (left["blobs"] == [])
        assert left["incoming"] == []


def test_a_server_with_its_hands_full_still_answers(tmp_path: Path) -> None:
    """Twenty bodies that stand still hold every turn; the twenty-first waits, others are answered."""
    limits = {"parallel_uploads": 20, "slow_body_s": 20.0}
    with opened(tmp_path / "server", limits=limits) as services, listening(services) as port:
        held = [Wire(port) for _ in range(20)]
        try:
            for wire in held:
                wire.head("PUT", PATH, Content_Length=str(len(TRACE)))
                wire.send(TRACE[:5])
            until(lambda: len(kept(services)["incoming"]) == 20)
            with Wire(port) as late, Wire(port) as other:
                late.head("PUT", PATH, Content_Length=str(len(TRACE)))
                late.send(TRACE)
                other.head("GET", "/api/v1/health")
                assert other.status() == 200
                held[0].close()
                assert late.status() == 201
        finally:
            for wire in held:
                wire.close()
        until(lambda: kept(services)["incoming"] == [])


Stage = Callable[[Ingest], Any]


@pytest.mark.parametrize("stage", ["open", "write", "finish", "waiting"])
def test_a_cancelled_upload_leaves_nothing(services: Services, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """The task ends while a thread works on the body, or while nothing arrives."""
    entered, leave = threading.Event(), threading.Event()
    if stage != "waiting":
        real = getattr(ingest._Body, stage)

        def held(*arguments: Any) -> Any:
            entered.set()
            assert leave.wait(20)
            return real(*arguments)

        monkeypatch.setattr(ingest._Body, stage, held)

    async def stream() -> AsyncIterator[bytes]:
        yield TRACE
        if stage == "waiting":
            entered.set()
            await asyncio.sleep(60)

    async def cancelled() -> None:
        taking = Ingest(services)
        task = asyncio.create_task(taking.receive(stream(), sha256(TRACE), Labels(), None, lambda _: None))
        await asyncio.to_thread(entered.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        leave.set()
        await asyncio.to_thread(taking._threads.shutdown)

    asyncio.run(cancelled())
    until_empty(services)


def test_a_thread_that_has_begun_to_keep_ends_what_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave = threading.Event(), threading.Event()
    real = ingest.keep

    def held(*arguments: Any) -> Any:
        entered.set()
        assert leave.wait(20)
        return real(*arguments)

    monkeypatch.setattr(ingest, "keep", held)

    async def stream() -> AsyncIterator[bytes]:
        yield TRACE

    async def cancelled(services: Services) -> None:
        taking = Ingest(services)
        task = asyncio.create_task(taking.receive(stream(), None, Labels(), None, lambda _: None))
        await asyncio.to_thread(entered.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        leave.set()
        await asyncio.to_thread(taking._threads.shutdown)

    with opened(tmp_path / "server") as services:
        asyncio.run(cancelled(services))
        digest = sha256(TRACE)
        assert kept(services) == {"blobs": [key_of_trace(digest)], "incoming": [], "traces": [digest], "jobs": [digest]}


def test_too_many_uploads_at_once_are_asked_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_WAIT_FOR_TURN_S", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        yield b"["
        await asyncio.sleep(60)

    async def crowded(services: Services) -> None:
        taking = Ingest(services)
        first = asyncio.create_task(taking.receive(endless(), None, Labels(), None, lambda _: None))
        await asyncio.sleep(0.05)
        with pytest.raises(Problem) as caught:
            await taking.receive(endless(), None, Labels(), None, lambda _: None)
        assert (caught.value.status, "Retry-After" in caught.value.headers) == (503, True)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.to_thread(taking._threads.shutdown)

    with opened(tmp_path / "server", limits={"parallel_uploads": 1}) as services:
        asyncio.run(crowded(services))
        assert kept(services) == NOTHING
